"""What else a request to /v2 may bring and ask for, by every client of the protocol, unmodified."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from serving import Server, start_server
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from wire import JSON, SAFETENSORS, Reply, bits, call, safetensors_file

from models.repository import EncoderEntry, ModelEntry, builtin, write
from models.types import ALL_TENSOR_NAMES, TENSOR_NAMES
from tests.encoders import draw_weights, make_spec, word_pieces

pytestmark = pytest.mark.server

WIDTHS = {entry.spec.name: entry.spec.embed_dim for entry in builtin() if isinstance(entry, ModelEntry)}
RANDOM = np.random.default_rng(7)
OWN = ("query", "key", "value")
SPARSE = ("weights.indices", "weights.values")

SPEC = make_spec()
TEXTS = ("The cat sat.", "cats", "the cat sat on the 😀 café", "")

Arrays = Mapping[str, np.ndarray]
Infer = Callable[..., Any]


@pytest.fixture(scope="module")
def own(artifacts: Path) -> Iterator[Server]:
    folder = artifacts.parent / f"{artifacts.name}-encoder"
    write(folder, EncoderEntry(SPEC, draw_weights(SPEC), word_pieces(), ""))
    running = start_server(artifacts, ATTENTION_GRPC_PORT="0", ATTENTION_MODEL_REPOSITORY=str(folder))
    yield running
    assert running.stop() == 0


def asking(library: Any, arrays: Arrays, outputs: tuple[str, ...], **how: Any) -> dict[str, Any]:
    """Arguments of `infer` as the library has them; `how` concerns tensors over REST."""
    inputs = []
    for name, array in arrays.items():
        given = library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        given.set_data_from_numpy(array, **how)
        inputs.append(given)
    return {"inputs": inputs, "outputs": [library.InferRequestedOutput(name, **how) for name in outputs] or None}


def over_rest(server: Server, model: str, arrays: Arrays, outputs: tuple[str, ...] = (), **more: Any) -> Any:
    with http_client.InferenceServerClient(server.url.removeprefix("http://")) as client:
        return client.infer(model, **asking(http_client, arrays, outputs), **more)


def in_json(server: Server, model: str, arrays: Arrays, outputs: tuple[str, ...] = (), **more: Any) -> Any:
    with http_client.InferenceServerClient(server.url.removeprefix("http://")) as client:
        return client.infer(model, **asking(http_client, arrays, outputs, binary_data=False), **more)


def over_grpc(server: Server, model: str, arrays: Arrays, outputs: tuple[str, ...] = (), **more: Any) -> Any:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        return client.infer(model, **asking(grpc_client, arrays, outputs), **more)


def asynchronous(library: Any, place: Callable[[Server], str]) -> Infer:
    def infer(server: Server, model: str, arrays: Arrays, outputs: tuple[str, ...] = (), **more: Any) -> Any:
        async def scenario() -> Any:
            async with library.InferenceServerClient(place(server)) as client:
                return await client.infer(model, **asking(library, arrays, outputs), **more)

        return asyncio.run(scenario())

    return infer


CLIENTS: dict[str, Infer] = {
    "rest": over_rest,
    "rest, in JSON": in_json,
    "rest, aio": asynchronous(http_aio, lambda server: server.url.removeprefix("http://")),
    "grpc": over_grpc,
    "grpc, aio": asynchronous(grpc_aio, lambda server: server.grpc),
}


@pytest.fixture(params=list(CLIENTS))
def infer(request: pytest.FixtureRequest) -> Infer:
    return CLIENTS[request.param]


def v1(server: Server, query: str, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """The answer of the main endpoint, by the names that tensors have there in safetensors."""
    body = safetensors_file({name.replace("__", "."): array for name, array in arrays.items()})
    reply = call(server.url, "POST", f"/v1/attention?{query}", body, {"Content-Type": SAFETENSORS})
    return read_safetensors(reply)[0]


def read_safetensors(reply: Reply) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors of an answer under their own names, and its metadata."""
    assert reply.status == 200, reply.body
    length = int.from_bytes(reply.body[:8], "little")
    kinds = {"F32": np.float32, "I32": np.int32}
    header, data = json.loads(reply.body[8 : 8 + length]), reply.body[8 + length :]
    told = {name: json.loads(value) for name, value in header.pop("__metadata__").items()}
    return {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], kinds[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }, told


def draw(model: str, *shape: int) -> np.ndarray:
    return RANDOM.standard_normal((*shape, WIDTHS[model])).astype(np.float32)


def scores(answer: Any) -> np.ndarray:
    """Masked ones are null in JSON, of which the client makes NaN."""
    found = answer.as_numpy("scores")
    return np.where(np.isnan(found), np.float32(-np.inf), found)


def said(answer: Any, name: str) -> Any:
    """A parameter of an answer."""
    parameters = answer.get_response()["parameters"] if isinstance(answer, http_client.InferResult) else None
    return answer.get_response().parameters[name].string_param if parameters is None else parameters[name]


# ---- the largest weights


@pytest.mark.parametrize("model", ["lesson", "multi-head-384x12"])
@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_sparse_weights_are_those_of_the_main_endpoint(own: Server, infer: Infer, model: str, shape: Any):
    """By default with the outputs; `top_k` may be more than there are tokens."""
    x = draw(model, *shape)

    for k in (2, 9):
        expected = v1(own, f"model={model}&top_k={k}", inputs=x)
        answer = infer(own, model, {"inputs": x}, parameters={"top_k": k})

        assert expected.keys() == {"outputs", *SPARSE}
        for name in expected:
            assert answer.as_numpy(name).dtype == expected[name].dtype
            assert bits(answer.as_numpy(name)) == bits(expected[name])
        assert answer.as_numpy("weights") is None


def test_heads_are_averaged_before_the_largest_are_taken(own: Server, infer: Infer):
    model = "multi-head-384x12"
    x = draw(model, 6)
    expected = v1(own, f"model={model}&top_k=3&average_heads=true", inputs=x)

    answer = infer(own, model, {"inputs": x}, SPARSE[::-1], parameters={"top_k": 3, "average_heads": True})

    for name in SPARSE:
        assert bits(answer.as_numpy(name)) == bits(expected[name])
    assert answer.as_numpy("outputs") is None


def test_all_weights_and_the_largest_are_not_to_be_had_at_once(own: Server, infer: Infer):
    x = draw("lesson", 2)
    for outputs, parameters, match in (
        (("weights",), {"top_k": 1}, "with top_k they come as weights.indices and weights.values"),
        (("weights.values",), {}, "with the parameter top_k only"),
        (("weights.values",), {"top_k": 0}, "greater than or equal to 1"),
    ):
        with pytest.raises(InferenceServerException, match=match):
            infer(own, "lesson", {"inputs": x}, outputs, parameters=parameters)


# ---- the caller's own matrices


@pytest.mark.parametrize("shape", [(4,), (3, 5)])
def test_own_matrices_answer_as_at_the_main_endpoint(own: Server, infer: Infer, shape: Any):
    x = RANDOM.standard_normal((*shape, 7)).astype(np.float32)
    query, key, value = (RANDOM.standard_normal((7, d)).astype(np.float32) for d in (5, 5, 3))
    mask = np.tri(shape[-1], dtype=bool)
    masks = np.stack([mask] * shape[0]) if len(shape) == 2 else mask
    asked = f"return={','.join(TENSOR_NAMES)}&is_causal=true"
    expected = v1(
        own, asked, inputs=x, attn_mask=masks, projections__query=query, projections__key=key, projections__value=value
    )

    given = {"inputs": x, "attn_mask": mask, "projections.query": query, "projections.key": key,
             "projections.value": value}  # fmt: skip
    answer = infer(own, "projections", given, TENSOR_NAMES, parameters={"is_causal": True})

    for name in TENSOR_NAMES:
        found = scores(answer) if name == "scores" else answer.as_numpy(name)
        assert bits(found) == bits(expected[name])


def test_a_model_has_its_own_matrices(own: Server, infer: Infer):
    """And whoever brings some says so."""
    x, matrix = draw("lesson", 2), np.ones((5, 2), np.float32)
    matrices = {f"projections.{name}": matrix for name in OWN}
    for model, given, match in (
        ("lesson", matrices, "give `model` or `projections`, not both"),
        ("projections", {}, "/projections/query: the matrix is missing"),
        ("projections@1", matrices, "there is no model 'projections'"),
    ):
        with pytest.raises(InferenceServerException, match=match):
            infer(own, model, {"inputs": x, **given})
    with pytest.raises(InferenceServerException, match="projections has no output projection"):
        infer(own, "projections", {"inputs": x, **matrices}, ("projected",))


def test_own_matrices_are_described_and_counted_like_a_model(own: Server):
    """The metadata fit what is answered."""
    with (
        http_client.InferenceServerClient(own.url.removeprefix("http://")) as client,
        grpc_client.InferenceServerClient(own.grpc) as other,
    ):
        found, config = client.get_model_metadata("projections"), client.get_model_config("projections")
        before = client.get_inference_statistics("projections")["model_stats"][0]
        x = RANDOM.standard_normal((2, 3, 5)).astype(np.float32)
        given = {"inputs": x} | {f"projections.{name}": np.eye(5, dtype=np.float32) for name in OWN}
        answer = over_rest(own, "projections", given, tuple(output["name"] for output in found["outputs"]))
        after = client.get_inference_statistics("projections")["model_stats"][0]

        assert client.is_model_ready("projections")
        assert other.is_model_ready("projections")
        assert (found["name"], found["versions"]) == ("projections", [])
        assert [(t["name"], t["optional"]) for t in config["input"]] == [
            ("inputs", False), ("attn_mask", True), ("attn_bias", True), ("lengths", True),
            ("projections.query", False), ("projections.key", False), ("projections.value", False),
        ]  # fmt: skip
        assert [output["name"] for output in found["outputs"]] == list(TENSOR_NAMES)
        for output in found["outputs"]:
            assert answer.as_numpy(output["name"]).ndim == len(output["shape"])
        described = other.get_model_metadata("projections")
        assert [(t.name, t.datatype, list(t.shape)) for t in described.inputs] == [
            (t["name"], t["datatype"], t["shape"]) for t in found["inputs"]
        ]
        assert (after["name"], after["version"]) == ("projections", "")
        assert after["inference_count"] - before["inference_count"] == 2
        assert after["execution_count"] > before["execution_count"]


# ---- sequences of different lengths


@pytest.mark.parametrize("backend", ["onnx", "eager"])
@pytest.mark.parametrize("model", ["lesson", "multi-head-384x12"])
def test_a_padded_sequence_is_answered_as_it_is_alone(own: Server, infer: Infer, model: str, backend: str):
    """To the bit; what is behind it, also what is no number, is not looked at, and answered by zeros."""
    lengths, n = np.array([3, 7, 1, 5]), 8
    x, mask = draw(model, 4, n), RANDOM.random((4, n, n)) < 0.7
    mask[1, 0] = False
    asked = f"model={model}&backend={backend}&is_causal=true&return={','.join(TENSOR_NAMES)}"
    expected = [
        v1(own, asked, inputs=x[i, :length], attn_mask=mask[i, :length, :length]) for i, length in enumerate(lengths)
    ]
    if infer is not in_json:
        for i, length in enumerate(lengths):
            x[i, length:] = np.nan

    answer = infer(
        own, model, {"inputs": x, "attn_mask": mask, "lengths": lengths}, TENSOR_NAMES,
        parameters={"is_causal": True, "backend": backend},
    )  # fmt: skip

    for name in TENSOR_NAMES:
        found = scores(answer) if name == "scores" else answer.as_numpy(name)
        square = name in ("weights", "scores")
        for i, length in enumerate(lengths):
            real = found[i, ..., :length, : length if square else None]
            assert bits(real) == bits(expected[i][name])
            assert not found[i, ..., length:, :].any()
            assert not square or not found[i, ..., length:].any()
    assert json.loads(said(answer, "fully_masked_rows"))[1][0] == 0


def test_lengths_go_with_everything_else(own: Server, infer: Infer):
    """Sparse weights, own matrices, one bias for all, INT32."""
    lengths, n = np.array([4, 2], np.int32), 5
    x, bias = RANDOM.standard_normal((2, n, 6)).astype(np.float32), RANDOM.standard_normal((n, n)).astype(np.float32)
    matrices = {f"projections.{name}": RANDOM.standard_normal((6, 6)).astype(np.float32) for name in OWN}

    answer = infer(
        own, "projections", {"inputs": x, "lengths": lengths, "attn_bias": bias, **matrices}, parameters={"top_k": 3}
    )

    assert answer.as_numpy("weights.indices").shape == (2, n, 3)
    for i, length in enumerate(lengths):
        own_matrices = {name.replace(".", "__"): matrix for name, matrix in matrices.items()}
        expected = v1(own, "top_k=3", inputs=x[i, :length], attn_bias=bias[:length, :length], **own_matrices)
        for name in ("outputs", *SPARSE):
            found = answer.as_numpy(name)[i, :length]
            assert bits(found[:, : expected[name].shape[-1]]) == bits(expected[name])
            assert not found[:, expected[name].shape[-1] :].any()


def test_padding_counts(own: Server, infer: Infer):
    """A batch of short sequences, of which the padding would be gigabytes."""
    x = np.zeros((4, 9_000, 5), np.float16 if infer is not in_json else np.float32)

    with pytest.raises(InferenceServerException, match="the answer would take") as caught:
        infer(own, "lesson", {"inputs": x, "lengths": np.array([1, 1, 1, 1])})

    assert caught.value.status() in ("413", "StatusCode.RESOURCE_EXHAUSTED")


def test_lengths_that_do_not_fit_are_refused(own: Server, infer: Infer):
    x = draw("lesson", 2, 3)
    for lengths, match in (
        (np.array([3, 4]), "/lengths/1: expected a whole number from 1 to 3, got 4"),
        (np.array([3]), r"/lengths: its shape is \[1\], expected \[2\]"),
        (np.array([3.0, 1.0]), "lengths: expected INT64 or INT32, got 'FP64'"),
    ):
        with pytest.raises(InferenceServerException, match=match):
            infer(own, "lesson", {"inputs": x, "lengths": lengths})


# ---- encoders


def v1_text(server: Server, text: str, **options: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What /v1 answers to one text."""
    body = json.dumps({"model": "tiny", "text": text, **options}).encode()
    headers = {"Content-Type": JSON, "Accept": SAFETENSORS}
    return read_safetensors(call(server.url, "POST", "/v1/text/attention", body, headers))


def strings(*texts: str) -> np.ndarray:
    return np.array([text.encode() for text in texts], object)


def decoded(array: np.ndarray) -> list[list[str]]:
    """Strings that come as bytes in binary."""
    return [[text.decode() if isinstance(text, bytes) else text for text in row] for row in array.tolist()]


@pytest.mark.parametrize("backend", ["onnx", "eager"])
def test_a_text_is_answered_as_at_its_own_endpoint(own: Server, infer: Infer, backend: str):
    """To the bit, every tensor of the layers that are asked for; beyond the end of a text are zeros."""
    names = tuple(f"layers.{layer}.{name}" for layer in (2, 0) for name in ALL_TENSOR_NAMES)

    answer = infer(own, "tiny", {"text": strings(*TEXTS)}, (*names, "lengths"), parameters={"backend": backend})

    lengths = answer.as_numpy("lengths")
    for i, text in enumerate(TEXTS):
        expected, told = v1_text(own, text, layers=[0, 2], backend=backend, **{"return": list(ALL_TENSOR_NAMES)})
        assert lengths[i] == (n := len(told["tokens"]))
        for name in names:
            found = answer.as_numpy(name)
            square = name.endswith(("weights", "scores"))
            assert found.shape[-2] == max(lengths)
            assert bits(found[i, ..., :n, : n if square else None]) == bits(expected[name])
            assert not found[i, ..., n:, :].any()
            assert not square or not found[i, ..., n:].any()
    assert said(answer, "backend") == backend


def test_tokens_are_told_of(own: Server, infer: Infer):
    """As /v1 does, each in a tensor of its own."""
    names = ("special", "offsets", "token_ids", "tokens", "lengths")

    answer = infer(own, "tiny", {"text": strings(*TEXTS)}, names)

    tokens, ids, offsets, special = (answer.as_numpy(name) for name in ("tokens", "token_ids", "offsets", "special"))
    most = max(answer.as_numpy("lengths"))
    assert (ids.dtype, offsets.dtype, special.dtype) == (np.int64, np.int64, np.bool_)
    for i, text in enumerate(TEXTS):
        expected = v1_text(own, text, layers=[0])[1]["tokens"]
        beyond = most - len(expected)
        assert decoded(tokens)[i] == [token["token"] for token in expected] + [""] * beyond
        assert ids[i].tolist() == [token["id"] for token in expected] + [0] * beyond
        assert offsets[i].tolist() == [[token["start"], token["end"]] for token in expected] + [[0, 0]] * beyond
        assert special[i].tolist() == [token["special"] for token in expected] + [False] * beyond


def test_without_a_list_the_weights_of_every_layer_are_answered(own: Server, infer: Infer):
    for parameters, names in (
        ({}, ["weights"]),
        ({"top_k": 2, "average_heads": True}, ["weights.indices", "weights.values"]),
    ):
        answer = infer(own, "tiny", {"text": strings(TEXTS[0])}, parameters=parameters)

        expected, _ = v1_text(own, TEXTS[0], **parameters)
        assert expected.keys() == {f"layers.{layer}.{name}" for layer in range(3) for name in names}
        for name, tensor in expected.items():
            assert bits(answer.as_numpy(name)[0]) == bits(tensor)
        assert decoded(answer.as_numpy("tokens")) == [["[CLS]", "the", "cat", "sat", ".", "[SEP]"]]
        assert answer.as_numpy("lengths").tolist() == [6]


def test_a_long_text_is_read_while_others_go_on(own: Server, infer: Infer):
    """It is made tokens of in a thread, and refused for the number of them."""
    with pytest.raises(InferenceServerException, match="/text/1: 3002 tokens; tiny@1 takes 300"):
        infer(own, "tiny", {"text": strings("cat", "cat " * 3000)})


def test_what_an_encoder_does_not_take_is_refused_by_name(own: Server, infer: Infer):
    text = {"text": strings("cat")}
    for model, given, outputs, parameters, match in (
        ("tiny", {"inputs": draw("lesson", 2)}, (), {}, "/inputs: tiny takes text"),
        ("lesson", text, (), {}, "/text: lesson takes embeddings"),
        ("projections", text, (), {}, "/text: projections takes embeddings"),
        ("tiny", text, ("layers.3.weights",), {}, "layers.0.weights to layers.2.weights"),
        ("tiny", text, ("weights",), {}, "no such output"),
        ("tiny", text, ("layers.0.weights",), {"top_k": 1}, "with top_k they come as"),
        ("lesson", {"inputs": draw("lesson", 2)}, ("tokens",), {}, "no such output"),
        ("tiny", text, (), {"is_causal": True}, "no such parameter"),
        ("tiny", {"text": strings()}, (), {}, r"its shape is \[0\], expected \[texts\]"),
        ("tiny", {"text": strings("a", "b").reshape(2, 1)}, (), {}, r"its shape is \[2, 1\], expected \[texts\]"),
        ("tiny", {"text": np.ones(1, np.float32)}, (), {}, "text: expected BYTES, got 'FP32'"),
        ("tiny", {"text": strings("a" * 70_000, "a" * 70_000)}, (), {}, "/text/1: 140000 characters so far"),
    ):  # fmt: skip
        with pytest.raises(InferenceServerException, match=match):
            infer(own, model, given, outputs, parameters=parameters)


def test_an_encoder_is_described_and_counted_like_a_layer(own: Server):
    """Every output that is listed is answered, in the datatype and the shape that are said."""
    with (
        http_client.InferenceServerClient(own.url.removeprefix("http://")) as client,
        grpc_client.InferenceServerClient(own.grpc) as other,
    ):
        found, config = client.get_model_metadata("tiny", "1"), client.get_model_config("tiny")
        before = client.get_inference_statistics("tiny")["model_stats"][0]
        answer = over_rest(own, "tiny", {"text": strings(*TEXTS)}, tuple(o["name"] for o in found["outputs"]))
        v1_text(own, "cat")
        after = client.get_inference_statistics("tiny")["model_stats"][0]

        assert client.is_model_ready("tiny")
        assert other.is_model_ready("tiny", "1")
        assert "tiny" in {entry["name"] for entry in client.get_model_repository_index()}
        assert found["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        assert config["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [-1], "optional": False}]
        for output in found["outputs"]:
            shape = answer.as_numpy(output["name"]).shape
            assert answer.get_output(output["name"])["datatype"] == output["datatype"]
            assert all(said in (-1, real) for said, real in zip(output["shape"], shape, strict=True))
        assert len(found["outputs"]) == 3 * 7 + 5
        described, theirs = other.get_model_metadata("tiny"), other.get_model_config("tiny").config
        assert [t.name for t in described.outputs] == [t["name"] for t in found["outputs"]]
        assert model_config_pb2.DataType.Name(theirs.input[0].data_type) == "TYPE_STRING"
        assert after["inference_count"] - before["inference_count"] == len(TEXTS) + 1
        assert after["execution_count"] > before["execution_count"]
        assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 2


@pytest.mark.parametrize(
    ("content", "shape", "match"),
    [
        (b"\x03\0\0\0cat\x01\0\0\0", [2], "element 1 of the BYTES is cut short"),
        (b"\x03\0\0\0cat\x01\0", [2], "element 1 of the BYTES is cut short"),
        (b"\xff\xff\xff\xffcat", [1], "element 0 of the BYTES is cut short"),
        (b"\x03\0\0\0cat", [2], "no array has the shape"),
        (b"\x02\0\0\0\xc3\x28", [1], "/text/0: byte 0 of the text is not UTF-8"),
        (b"\0\0\0\0" * 20_000, [20_000], "element 16384 of the BYTES is cut short, or one too many"),
    ],
)
def test_strings_must_be_what_they_say(own: Server, content: bytes, shape: list[int], match: str):
    """Over both transports, by one reader."""
    entry = {"name": "text", "shape": shape, "datatype": "BYTES", "parameters": {"binary_data_size": len(content)}}
    head = json.dumps({"inputs": [entry]}).encode()
    reply = call(
        own.url, "POST", "/v2/models/tiny/infer", head + content, {"Inference-Header-Content-Length": str(len(head))}
    )
    assert reply.status == 400
    assert re.search(match, reply.json()["error"])
    given = grpc_client.InferInput("text", shape, "BYTES")
    given.set_data_from_numpy(strings(*["x"] * shape[0]))
    given._raw_content = content
    with (
        grpc_client.InferenceServerClient(own.grpc) as client,
        pytest.raises(InferenceServerException, match=match),
    ):
        client.infer("tiny", [given])


@pytest.mark.parametrize("data", [["cat", 7], [True], [["cat"], "dog"], ["\ud800"], [1.5] * 900])
def test_a_text_in_json_is_a_string(own: Server, data: list[Any]):
    entry = {"name": "text", "shape": [len(data)], "datatype": "BYTES", "data": data}

    reply = call(own.url, "POST", "/v2/models/tiny/infer", json.dumps({"inputs": [entry]}).encode())

    assert (reply.status, reply.json()["errors"][0]["pointer"].split("/")[1]) == (400, "text")


def test_typed_strings_are_read(own: Server):
    message = service_pb2.ModelInferRequest(model_name="tiny")
    message.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"cats")
    message.outputs.add(name="token_ids")
    with grpc.insecure_channel(own.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message)

    tokens = v1_text(own, "cats", layers=[0])[1]["tokens"]
    assert np.frombuffer(answer.raw_output_contents[0], np.int64).tolist() == [token["id"] for token in tokens]
