"""Text in, attention out, in a service that really runs: a tiny encoder, and the real MiniLM."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving import Server, start_server
from wire import JSON, NPZ, SAFETENSORS, Reply, attend, bits, call, from_tensor_object

from models.encoder_reference import encode
from models.repository import EncoderEntry, write
from models.tokenizer import Tokenizer
from models.types import ALL_TENSOR_NAMES
from tests import parity_table
from tests.checkpoints import library, library_run
from tests.contract.layers import assert_close
from tests.encoders import draw_weights, make_spec, word_pieces
from tests.minilm import minilm, minilm_folder
from tests.models.test_minilm import SENTENCES

pytestmark = pytest.mark.server

SPEC = make_spec(description="An encoder of three layers.")
WEIGHTS = draw_weights(SPEC)
TOKENIZER = Tokenizer(word_pieces(), SPEC.vocab_size)
TEXTS = ("The cat sat.", "cats", "the cat sat on the 😀 café", "")
ALL = ",".join(ALL_TENSOR_NAMES)


@pytest.fixture(scope="module")
def service(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, EncoderEntry(SPEC, WEIGHTS, word_pieces(), ""))
    running = start_server(
        artifacts,
        ATTENTION_MODEL_REPOSITORY=str(folder),
        ATTENTION_DEFAULT_TEXT_MODEL="tiny",
        ATTENTION_ADMIN_KEYS="root",
    )
    yield running
    assert running.stop() == 0


def ask(url: str, document: Any, query: str = "", **headers: str) -> Reply:
    """Post a JSON request; `x_y=…` is the header X-Y."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(url, "POST", f"/v1/text/attention{query}", body, {"Content-Type": JSON} | named)


def numbers(value: Any) -> np.ndarray:
    return from_tensor_object(value) if isinstance(value, dict) else np.array(value, np.float32)


def layers_of(reply: Reply) -> dict[int, dict[str, np.ndarray]]:
    """Tensors of a JSON answer to one text, by layer."""
    assert reply.status == 200, reply.body[:500]
    return {
        layer.pop("layer"): {name: numbers(value) for name, value in layer.items()} for layer in reply.json()["layers"]
    }


def weights_of(reply: Reply) -> list[np.ndarray]:
    return [layer["weights"] for layer in layers_of(reply).values()]


# ---- what is computed


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("backend", ["onnx", "eager", "reference"])
@pytest.mark.parametrize("encoding", ["json", "base64"])
def test_every_tensor_of_every_layer_equals_the_reference(service: Server, backend: str, text: str, encoding: str):
    """The float64 mathematics decide, from the text on."""
    want = encode(TOKENIZER.encode(text).ids, SPEC, WEIGHTS)

    found = layers_of(ask(service.url, {"text": text, "backend": backend, "encoding": encoding}, f"?return={ALL}"))

    assert list(found) == [0, 1, 2]
    for layer, tensors in found.items():
        assert tuple(tensors) == ALL_TENSOR_NAMES
        for name, tensor in tensors.items():
            assert_close(tensor, want[layer].tensor(name), 1e-5, f"layer {layer}, {name}")


@pytest.mark.parametrize("media_type", [SAFETENSORS, NPZ])
def test_a_binary_answer_has_the_same_bits(service: Server, media_type: str):
    """Its tensors are called `layers.1.weights` and so on, and the tokens are in the metadata."""
    request = {"text": list(TEXTS), "layers": [2, 1], "return": ["weights", "outputs"], "encoding": "base64"}
    json_answer = ask(service.url, request).json()

    reply = ask(service.url, request, Accept=media_type)

    assert reply.headers["content-type"] == media_type
    tensors, metadata = raw(reply)
    assert metadata["tokens"] == json_answer["tokens"]
    assert set(tensors) == {
        f"layers.{i}.{name}.{t}" for i in (1, 2) for name in ("weights", "outputs") for t in range(4)
    }
    for i, layer in enumerate((1, 2)):
        for name in ("weights", "outputs"):
            for t in range(len(TEXTS)):
                want = from_tensor_object(json_answer["layers"][i][name][t])
                assert bits(tensors[f"layers.{layer}.{name}.{t}"]) == bits(want)


def raw(reply: Reply) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors of a binary answer under their own names, and its metadata."""
    import io

    import safetensors.numpy

    if reply.headers["content-type"] == SAFETENSORS:
        (length,) = np.frombuffer(reply.body[:8], "<u8")
        texts = json.loads(reply.body[8 : 8 + int(length)])["__metadata__"]
        return safetensors.numpy.load(reply.body), {name: json.loads(text) for name, text in texts.items()}
    with np.load(io.BytesIO(reply.body), allow_pickle=False) as archive:
        tensors = dict(archive)
    return tensors, json.loads(tensors.pop("metadata").tobytes())


def test_tokens_say_where_in_the_text_they_stand(service: Server):
    """In code points; the ones around it belong to no text."""
    text = "The cat 😀 sat."

    found = ask(service.url, {"text": text}).json()["tokens"]

    assert [token["token"] for token in found] == ["[CLS]", "the", "cat", "😀", "sat", ".", "[SEP]"]
    assert [token["special"] for token in found] == [True, *[False] * 5, True]
    assert [text[token["start"] : token["end"]] for token in found[1:-1]] == ["The", "cat", "😀", "sat", "."]
    assert [token["id"] for token in found] == TOKENIZER.encode(text).ids.tolist()


@pytest.mark.parametrize("backend", ["onnx", "eager"])
def test_a_text_is_answered_alike_alone_and_in_a_list(service: Server, backend: str):
    """Nothing is padded, so there is nothing to notice: the same bits."""
    request = {"backend": backend, "return": list(ALL_TENSOR_NAMES), "encoding": "base64"}

    together = ask(service.url, request | {"text": [*TEXTS, *TEXTS]}).json()

    assert len(together["tokens"]) == 2 * len(TEXTS)
    for i, text in enumerate(TEXTS):
        alone = ask(service.url, request | {"text": text}).json()
        for own, layer in zip(alone["layers"], together["layers"], strict=True):
            for name in ALL_TENSOR_NAMES:
                assert own[name] == layer[name][i] == layer[name][i + len(TEXTS)]
        assert alone["tokens"] == together["tokens"][i]


@pytest.mark.parametrize("backend", ["onnx", "eager"])
def test_few_layers_have_the_bits_they_have_among_all(service: Server, backend: str):
    """Layers come in the order of their numbers, each once, and none after the last is needed for them."""
    request = {"text": TEXTS[0], "backend": backend}
    every = ask(service.url, request | {"layers": "all"}).json()["layers"]

    for layers in ([0], [1], [2, 0], [1, 1, 0]):
        assert ask(service.url, request | {"layers": layers}).json()["layers"] == [
            every[layer] for layer in sorted(set(layers))
        ]


def test_heads_are_averaged_and_weights_made_sparse(service: Server):
    """As in `/v1/attention`."""
    full = weights_of(ask(service.url, {"text": TEXTS[2]}))

    mean = weights_of(ask(service.url, {"text": TEXTS[2], "average_heads": True}))
    sparse = ask(service.url, {"text": TEXTS[2], "top_k": 2}).json()["layers"]

    for layer, weights in enumerate(full):
        np.testing.assert_allclose(mean[layer], weights.mean(axis=0), atol=1e-6)
        best = np.array(sparse[layer]["weights"]["indices"])
        assert best.shape == (SPEC.num_heads, weights.shape[1], 2)
        np.testing.assert_array_equal(best[..., 0], weights.argmax(axis=-1))


@pytest.mark.parametrize("accept", [JSON, SAFETENSORS, NPZ])
def test_an_answer_may_be_float16(service: Server, accept: str):
    """Each layer's tensors are those in float32, rounded."""
    request = {"text": list(TEXTS), "layers": [1], "return": ["weights", "projected"], "encoding": "base64"}
    full = ask(service.url, request).json()["layers"][0]

    reply = ask(service.url, request, "?dtype=float16", Accept=accept)

    for name in ("weights", "projected"):
        for t in range(len(TEXTS)):
            if accept == JSON:
                got = from_tensor_object(reply.json()["layers"][0][name][t])
            else:
                got = raw(reply)[0][f"layers.1.{name}.{t}"]
            assert got.dtype == np.float16
            assert bits(got) == bits(from_tensor_object(full[name][t]).astype(np.float16))


def test_numbers_may_have_few_decimals(service: Server):
    """As tensors of layers, and as BertViz takes them."""
    full = weights_of(ask(service.url, {"text": TEXTS[0]}))
    rounded = [np.round(weights.astype(np.float64), 2).tolist() for weights in full]

    layers = ask(service.url, {"text": TEXTS[0], "decimals": 2}).json()["layers"]
    bertviz = ask(service.url, {"text": TEXTS[0], "format": "bertviz"}, "?decimals=2").json()["attention"]

    assert [layer["weights"] for layer in layers] == rounded
    assert [layer[0] for layer in bertviz] == rounded


def test_options_may_stand_in_the_query(service: Server):
    """Layers are comma-separated there."""
    reply = ask(service.url, {"text": "cats"}, "?layers=2,0&return=weights,scores&backend=eager&model=tiny@1")

    found = layers_of(reply)
    assert [(layer, tuple(tensors)) for layer, tensors in found.items()] == [
        (0, ("weights", "scores")),
        (2, ("weights", "scores")),
    ]
    assert reply.json()["backend"]["name"] == "eager"
    assert reply.json()["model"] == {"name": "tiny", "version": "1"}
    assert [part.partition(";")[0].strip() for part in reply.headers["server-timing"].split(",")] == [
        "decode", "queue", "compute", "encode",
    ]  # fmt: skip


# ---- what is refused


@pytest.mark.parametrize(
    ("document", "query", "status", "pointer", "says"),
    [
        ({}, "", 422, "/text", "the field is missing"),
        ({"text": 7}, "", 422, "/text", "expected a string, got a number"),
        ({"text": None}, "", 422, "/text", "expected a string, got null"),
        ({"text": []}, "", 422, "/text", "at least one text"),
        ({"text": ["a", ["b"]]}, "", 422, "/text/1", "expected a string, got an array"),
        ({"text": "a", "txt": 1}, "", 422, "/txt", "did you mean 'text'"),
        ({"text": "a", "is_causal": True}, "", 422, "/is_causal", "no such field"),
        ({"text": "a"}, "?scale=2", 422, "/scale", "no such parameter"),
        ({"text": "a", "layers": [0, 3]}, "", 422, "/layers/1", "no layer 3; its layers are 0 to 2"),
        ({"text": "a", "layers": []}, "", 422, "/layers", "such as [0, 5]"),
        ({"text": "a", "layers": [-1]}, "", 422, "/layers", "whole number from 0, not -1"),
        ({"text": "a", "layers": "some"}, "", 422, "/layers", "whole number"),
        ({"text": "a", "layers": 1}, "", 422, "/layers", "such as [0, 5]"),
        ({"text": "a", "layers": [True]}, "", 422, "/layers", "not True"),
        ({"text": "a"}, "?layers=1,x", 422, "/layers", "not 'x'"),
        ({"text": "a", "layers": [0]}, "?layers=1", 422, "/layers", "the query string"),
        ({"text": "a", "return": ["weight"]}, "", 422, None, "weights"),
        ({"text": "a", "return": "weights"}, "", 422, "/return", "expected a list"),
        ({"text": "a", "top_k": 0}, "", 422, "/top_k", "greater than or equal to 1"),
        ({"text": "the " * 400}, "", 413, "/text", "402 tokens; tiny@1 takes 300"),
        ({"text": ["a", "the " * 400]}, "", 413, "/text/1", "402 tokens"),
        ({"text": "a" * 140_000}, "", 413, "/text", "a request may have 131072"),
        ({"text": ["a"] * 257}, "", 413, "/text", "at most 256"),
        ({"text": "a", "model": "tine"}, "", 404, "/model", "did you mean 'tiny'"),
        ({"text": "a", "model": "tiny@2"}, "", 404, "/model", "it has 1"),
        ({"text": "a", "model": "lesson"}, "", 404, "/model", "takes embeddings, not text"),
        ({"text": "a", "model": "minilm-l6"}, "", 503, "/model", "Run `attention models get minilm-l6`"),
        (b"{", "", 400, None, "not JSON"),
        (b"", "", 400, None, 'a JSON object with "text" is needed'),
        (b"[]", "", 422, "", 'a JSON object with "text" is needed'),
        (b'{"text": "a", "text": "b"}', "", 422, "/text", "stands twice"),
        (b'{"text": "\\ud800"}', "", 422, "/text", "lone surrogate"),
        (b'{"text": "\xff"}', "", 400, None, "not UTF-8"),
        ({"text": "a", "format": "bertviz", "top_k": 1}, "", 422, "/top_k", "all weights"),
        ({"text": "a", "format": "bertviz", "encoding": "base64"}, "", 422, "/encoding", "nested numbers"),
        ({"text": "a", "format": "bertviz"}, "?return=outputs", 422, "/return", "the answer is the weights"),
        ({"text": "a", "decimals": 2}, "?dtype=float16", 422, "/decimals", "leave out"),
        ({"text": "a", "decimals": 2}, "?encoding=base64", 422, "/decimals", "leave out"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_says_where_and_why(
    service: Server, document: Any, query: str, status: int, pointer: str | None, says: str
):
    """One problem, at its place, with what would be right."""
    reply = ask(service.url, document, query)

    problem = reply.json()
    assert (reply.status, problem["status"]) == (status, status), problem
    assert says in problem["detail"]
    if pointer is not None:
        assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
    assert ("retry-after" in reply.headers) == (status == 503)


def test_other_bodies_methods_and_answers_are_refused(service: Server):
    """As everywhere."""
    assert call(service.url, "GET", "/v1/text/attention").status == 405
    assert ask(service.url, b"cats", Content_Type="text/plain").status == 415
    assert ask(service.url, {"text": "a"}, Accept="text/csv").status == 406
    assert ask(service.url, {"text": "a", "format": "bertviz"}, Accept=SAFETENSORS).status == 406
    assert ask(service.url, {"text": "a", "decimals": 2}, Accept=NPZ).status == 406


def test_an_encoder_is_no_layer(service: Server):
    """Whoever posts embeddings to it learns where text goes."""
    reply = attend(service.url, {"model": "tiny", "inputs": [[0.0] * SPEC.embed_dim]})

    assert reply.status == 404
    assert "POST it to /v1/text/attention" in reply.json()["detail"]


# ---- BertViz


def test_bertviz_gets_what_it_takes(service: Server):
    """[layers][1][heads][n][n], and the tokens' texts."""
    full = weights_of(ask(service.url, {"text": TEXTS[0]}))

    answer = ask(service.url, {"text": TEXTS[0], "format": "bertviz"}).json()

    assert answer["tokens"] == ["[CLS]", "the", "cat", "sat", ".", "[SEP]"]
    assert "layers" not in answer
    n = len(answer["tokens"])
    attention = np.array(answer["attention"], np.float32)
    assert attention.shape == (SPEC.num_layers, 1, SPEC.num_heads, n, n)
    np.testing.assert_array_equal(attention[:, 0], np.array(full))


def test_bertviz_gets_a_list_for_a_list(service: Server):
    """Texts of different lengths cannot be one array."""
    answer = ask(service.url, {"text": list(TEXTS), "format": "bertviz", "layers": [1]}).json()

    assert [len(tokens) for tokens in answer["tokens"]] == [len(TOKENIZER.encode(text).ids) for text in TEXTS]
    for tokens, attention in zip(answer["tokens"], answer["attention"], strict=True):
        assert np.array(attention).shape == (1, 1, SPEC.num_heads, len(tokens), len(tokens))


@pytest.mark.parametrize(("model", "width", "heads"), [("lesson", 5, 1), ("multi-head-384x12", 384, 12)])
def test_bertviz_gets_the_weights_of_embeddings_too(service: Server, model: str, width: int, heads: int):
    """One layer, with its axis of heads even where there is one."""
    request = {"model": model, "inputs": np.eye(3, width).tolist()}
    weights = np.array(attend(service.url, request | {"return": ["weights"]}).json()["weights"], np.float32)

    answer = attend(service.url, request | {"format": "bertviz"}).json()

    attention = np.array(answer["attention"], np.float32)
    assert attention.shape == (1, 1, heads, 3, 3)
    np.testing.assert_array_equal(attention[0, 0], weights.reshape(heads, 3, 3))
    assert "tokens" not in answer
    assert "outputs" not in answer


# ---- the catalog


def test_encoders_are_listed_and_those_that_are_missing_with_the_command(service: Server):
    """Sizes, origin, hashes and parity; and what to run."""
    found = call(service.url, "GET", "/v1/models").json()

    (encoder,) = found["encoders"]
    assert call(service.url, "GET", "/v1/models/tiny").json() == encoder
    assert (encoder["name"], encoder["num_layers"], encoder["origin"]) == ("tiny", 3, "tiny/1")
    assert encoder["digest"] == WEIGHTS.digest()
    assert set(encoder["parity"]) == {"eager-onnx", "eager-reference", "onnx-reference"}
    assert max(encoder["parity"].values()) < 1e-5
    (missing,) = found["not_installed"]
    assert (missing["name"], missing["command"]) == ("minilm-l6", "attention models get minilm-l6")
    assert "tiny" not in [model["name"] for model in found["models"]]


def test_an_encoder_is_unloaded_and_loaded_again_while_the_service_answers(service: Server):
    """Like a layer."""
    key = {"X-API-Key": "root"}

    assert call(service.url, "POST", "/v1/models/tiny/unload", headers=key).json()["unloaded"] == ["tiny@1"]
    assert ask(service.url, {"text": "cats"}).status == 404
    loaded = call(service.url, "POST", "/v1/models/tiny/load", headers=key)

    assert [model["name"] for model in loaded.json()["loaded"]] == ["tiny"]
    assert ask(service.url, {"text": "cats"}).status == 200
    metrics = call(service.url, "GET", "/metrics").body.decode()
    assert 'attention_parity_difference{model="tiny",pair="eager-onnx",version="1"}' in metrics


# ---- the real MiniLM


@pytest.fixture(scope="module")
def minilm_service(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("minilm")
    write(folder, minilm())
    running = start_server(artifacts, ATTENTION_MODEL_REPOSITORY=str(folder))
    yield running
    assert running.stop() == 0


@pytest.mark.parity
@pytest.mark.parametrize("backend", ["onnx", "eager"])
def test_minilm_answers_what_its_own_library_computes(
    minilm_service: Server, measured: parity_table.Measure, backend: str
):
    """6 layers of 12 heads over ten sentences of different lengths, each alone and all in one request."""
    theirs = library(minilm_folder(), torch.float32)
    together = ask(minilm_service.url, {"text": list(SENTENCES), "backend": backend, "encoding": "base64"}).json()

    for i, sentence in enumerate(SENTENCES):
        alone = ask(minilm_service.url, {"text": sentence, "backend": backend, "encoding": "base64"}).json()
        ids = np.array([token["id"] for token in alone["tokens"]])
        weights, _ = library_run(theirs, ids[None])
        assert len(alone["layers"]) == len(together["layers"]) == len(weights) == 6
        for layer in range(6):
            found = from_tensor_object(alone["layers"][layer]["weights"])
            assert found.shape == (12, len(ids), len(ids))
            from_library = np.abs(found - weights[layer][0]).max()
            from_list = np.abs(from_tensor_object(together["layers"][layer]["weights"][i]) - found).max()
            measured(parity_table.MINILM, ("weights, over HTTP",), backend, from_library)
            measured(parity_table.MINILM, ("weights, over HTTP, all in one list against alone",), backend, from_list)
            assert from_library <= 1e-5
            assert from_list <= 5e-6


def test_layer_0_head_2_of_minilm_looks_one_token_back(minilm_service: Server):
    """The first thing that the documents let a reader see."""
    reply = ask(minilm_service.url, {"text": "The cat sat on the mat.", "layers": [0]})

    weights = weights_of(reply)[0][2]

    assert weights.argmax(axis=-1).tolist() == [0, *range(len(weights) - 1)]
    assert weights[np.arange(1, len(weights)), np.arange(len(weights) - 1)].min() > 0.99
