"""`/v1/explain` in a service that really runs."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from PIL import Image
from serving import Server, start_server
from wire import JSON, PROBLEM, Reply, call, metrics_of, tensor_object, total

from models.encoder_reference import encode
from models.reference import self_attention
from models.repository import EncoderEntry, ModelEntry, write
from models.spec import Alibi, AttentionSpec, QueryKeyNorm, Rope
from models.tokenizer import Tokenizer
from models.weights import AttentionWeights, shapes
from service.routes.explain import EXAMPLES
from service.tutor.render import RENDERERS
from service.tutor.steps import STEPS
from tests.encoders import draw_weights, make_spec, word_pieces

pytestmark = pytest.mark.server

PATH = "/v1/explain"
TINY = make_spec()
TINY_WEIGHTS = draw_weights(TINY)
TYPES = {
    "application/json": JSON,
    "text/html": "text/html; charset=utf-8",
    "text/markdown": "text/markdown; charset=utf-8",
    "application/x-tex": "application/x-tex; charset=utf-8",
    "image/svg+xml": "image/svg+xml",
    "image/png": "image/png",
}


def layer(**changes: Any) -> ModelEntry:
    spec = AttentionSpec(**{"name": "plain", "embed_dim": 6, "head_dim": 4, **changes})
    random = np.random.default_rng(0)
    tensors = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes(spec).items()}
    return ModelEntry(spec, AttentionWeights(**tensors), "")


SHARED = layer(name="shared", num_heads=4, num_kv_heads=2, is_causal=True, scale=0.3, value_dim=3)
LAYERS = [
    SHARED,
    layer(name="rotary", position=Rope(scheme="rope")),
    layer(name="alibi", position=Alibi(scheme="alibi")),
    layer(name="capped", logit_softcap=5.0),
    layer(name="window", window=2),
    layer(name="normed", query_key_norm=QueryKeyNorm()),
]


@pytest.fixture(scope="module")
def service(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, EncoderEntry(TINY, TINY_WEIGHTS, word_pieces(), ""))
    for entry in LAYERS:
        write(folder, entry)
    running = start_server(artifacts, ATTENTION_MODEL_REPOSITORY=str(folder), ATTENTION_DEFAULT_TEXT_MODEL="tiny")
    yield running
    assert running.stop() == 0


def ask(service: Server, document: Any = None, query: str = "", **headers: str) -> Reply:
    body = b"" if document is None else document if isinstance(document, bytes) else json.dumps(document).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(service.url, "POST", f"{PATH}{query}", body, {"Content-Type": JSON} | named)


def steps(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    return {step["id"]: step for step in reply.json()["steps"]}


def test_nothing_at_all_explains_the_lesson(service):
    """The shortest request there is has the whole story in its answer."""
    for reply in (ask(service, {}), ask(service), call(service.url, "GET", PATH)):
        answer = reply.json()
        assert answer["summary"] == "'her' attends most to 'Mia', 0.90."
        assert answer["model"] == {"name": "lesson", "version": "1"}
        assert answer["labels"] == ["Mia", "reads", "her", "book"]
        assert answer["projections"]["query"][1][0] == 0.5
        assert answer["inputs"][2][0] == 0.2  # not the nearest float32


def test_the_numbers_are_those_of_the_main_job(service):
    """Within what float32 leaves of them."""
    inputs = np.random.default_rng(1).normal(size=(5, 6)).tolist()
    bias = np.random.default_rng(2).normal(size=(4, 5, 5)).tolist()
    body = {"model": "shared", "inputs": inputs, "attn_bias": bias, "attn_mask": np.tri(5, k=1).astype(bool).tolist()}
    asked = {**body, "return": ["outputs", "weights", "scores", "query", "key", "value"]}

    explained = steps(ask(service, body))
    computed = call(service.url, "POST", "/v1/attention", json.dumps(asked).encode(), {"Content-Type": JSON}).json()

    def close(step: str, name: str) -> None:
        one = np.array(explained[step]["values"], float)
        other = np.array(computed[name], float)
        if name in ("query", "key", "value"):
            other = np.concatenate(list(other), axis=-1)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

    for step, name in (("query", "query"), ("key", "key"), ("value", "value"), ("masked_scores", "scores"),
                       ("weights", "weights"), ("outputs", "outputs")):  # fmt: skip
        close(step, name)
    trace = self_attention(
        np.array(inputs), SHARED.weights, SHARED.spec, attn_bias=np.array(bias), attn_mask=np.tri(5, k=1).astype(bool)
    )
    np.testing.assert_allclose(np.array(explained["weights"]["values"]), trace.weights, atol=1e-12)


def test_own_matrices_labels_and_tensor_objects(service):
    inputs = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    own = {"query": [[1, 0], [0, 2]], "key": tensor_object(np.array([[1, 1], [0, 1]], "<f4")), "value": [[1], [3]]}

    reply = ask(
        service, {"inputs": tensor_object(inputs), "projections": own, "labels": ["sun", "moon", "sky"], "focus": "sky"}
    )

    assert reply.json()["model"] == {"name": "projections", "version": ""}
    assert reply.json()["focus"] == {"head": 0, "row": 2, "token": "sky"}
    assert steps(reply)["raw_scores"]["exact"] == [["1", "0", "1"], ["2", "2", "4"], ["3", "2", "5"]]
    assert steps(reply)["scaled_scores"]["exact"][2] == ["3/√2 = 3√2/2", "2/√2 = √2", "5/√2 = 5√2/2"]


def test_a_mask_is_a_step_and_rows_that_see_nothing_are_named(service):
    reply = ask(service, {"attn_mask": [[True] * 4, [False] * 4, [True] * 4, [True] * 4]})

    assert list(steps(reply)) == list(STEPS)
    assert reply.json()["fully_masked_rows"] == [1]
    assert steps(reply)["masked_scores"]["values"][1] == [None] * 4
    assert steps(reply)["weights"]["values"][1] == [0] * 4
    assert "masked_scores" not in steps(ask(service, {}))


@pytest.mark.parametrize("media_type", TYPES)
def test_accept_chooses_the_form(service, media_type):
    reply = ask(service, {"is_causal": True}, Accept=media_type)

    assert reply.status == 200
    assert reply.headers["content-type"] == TYPES[media_type]
    assert reply.headers["vary"] == "accept, accept-encoding"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert set(TYPES) == set(RENDERERS)


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", "application/json"), ("*/*", "application/json"), ("text/*", "text/html"), ("image/*", "image/svg+xml"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"),
        ("image/svg+xml;q=0.5, image/png", "image/png"), ("application/json;q=0, */*", "text/html"),
        ("text/csv, text/markdown;q=0.1", "text/markdown"),
    ],
)  # fmt: skip
def test_accept_is_weighed(service, accept, media_type):
    assert ask(service, {}, Accept=accept).headers["content-type"] == TYPES[media_type]


def test_what_nobody_writes_is_406(service):
    reply = ask(service, {}, Accept="text/csv")

    assert (reply.status, reply.headers["content-type"]) == (406, PROBLEM)
    assert "image/svg+xml" in reply.json()["detail"]


@pytest.mark.parametrize("media_type", TYPES)
def test_the_same_request_is_answered_with_the_same_bytes_and_not_again(service, media_type):
    first, second = (ask(service, {"labels": list("abcd")}, Accept=media_type) for _ in range(2))
    tag = first.headers["etag"]

    again = ask(service, {"labels": list("abcd")}, Accept=media_type, If_None_Match=f'"x", W/{tag}')

    assert first.body == second.body
    assert second.headers["etag"] == tag
    assert not tag.startswith("W/")
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    other = ask(service, {"labels": list("abce")}, Accept=media_type, If_None_Match=tag)
    assert other.status == 200


def test_another_coding_is_another_tag(service):
    plain, packed = ask(service, {}), ask(service, {}, Accept_Encoding="gzip")

    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["etag"] != plain.headers["etag"]
    assert len(packed.body) < len(plain.body) / 2
    assert "content-encoding" not in ask(service, {}, Accept="image/png", Accept_Encoding="gzip").headers


def test_a_link_is_enough_for_a_picture(service):
    """As the address of an image; a browser takes SVG there."""
    reply = call(
        service.url, "GET", f"{PATH}?picture=flow&focus=book&theme=dark", headers={"Accept": "image/*,*/*;q=0.8"}
    )

    root = fromstring(reply.body)
    assert root.find("{http://www.w3.org/2000/svg}title").text == "How 'book' reads the others"
    assert b"prefers-color-scheme" not in reply.body
    image = Image.open(io.BytesIO(call(service.url, "GET", f"{PATH}?theme=dark", headers={"Accept": "image/png"}).body))
    assert np.asarray(image.convert("L"))[0, 0] < 60
    head = call(service.url, "HEAD", PATH)
    assert (head.status, head.body) == (200, b"")


def test_numbers_have_the_decimals_that_are_asked_for(service):
    answer = ask(service, {"decimals": 3}).json()

    weights = next(step for step in answer["steps"] if step["id"] == "weights")["values"]
    assert all(round(x, 3) == x for row in weights for x in row)
    assert answer["summary"] == "'her' attends most to 'Mia', 0.896."
    assert "0.8960" in ask(service, {}, "?decimals=4", Accept="image/svg+xml").body.decode()


def test_a_head_of_an_encoder_is_explained_as_it_sees_a_text(service):
    text = "The cat sat."
    tokens = Tokenizer(word_pieces(), TINY.vocab_size).encode(text)
    trace = encode(tokens.ids, TINY, TINY_WEIGHTS)[1]

    reply = ask(service, {"text": text, "model": "tiny", "layer": 1, "head": 2})
    page = ask(service, {"text": text, "layer": 1, "head": 2}, Accept="text/html")

    found = steps(reply)
    np.testing.assert_allclose(np.array(found["weights"]["values"]), trace.weights[2], atol=1e-12)
    np.testing.assert_allclose(np.array(found["query"]["values"]), trace.query[2], atol=1e-12)
    np.testing.assert_allclose(np.array(found["outputs"]["values"]), trace.outputs[:, 12:18], atol=1e-12)
    assert reply.json()["labels"] == list(tokens.tokens)
    assert reply.json()["place"] == "tiny, layer 1, head 2"
    assert "terms" not in found["query"]
    assert "left out" in reply.json()["notes"][0]
    assert not {"inputs", "projections"} & set(reply.json())  # 24 columns
    assert len(reply.body) < 1 << 16
    assert b"tiny, layer 1, head 2" in page.body
    assert ask(service, {"text": text}).json()["place"].startswith("tiny, layer 0, head ")


@pytest.mark.parametrize(
    ("document", "status", "code", "pointer"),
    [
        (b"{", 400, "unparsable", None),
        (b"[]", 422, "wrong-type", ""),
        ({"inputs": [[[1] * 5]]}, 422, "shape-mismatch", "/inputs"),
        ({"inputs": []}, 422, "shape-mismatch", "/inputs"),
        ({"inputs": [[1] * 5, [1] * 4]}, 422, "shape-mismatch", "/inputs/1"),
        ({"inputs": [[1] * 4]}, 422, "shape-mismatch", "/inputs/0"),
        ({"inputs": [[1, 0, "a", 0, 0]]}, 422, "wrong-type", "/inputs/0/2"),
        (b'{"inputs": [[1, 0, 1e999, 0, 0]]}', 422, "non-finite", "/inputs/0/2"),
        ({"inputs": [[1] * 5] * 17}, 422, "shape-mismatch", "/inputs"),
        ({"inputs": [[1e200] * 5] * 2}, 422, "numeric-overflow", "/inputs"),
        ({"projections": {}, "inputs": [[1]]}, 422, "shape-mismatch", "/projections/query"),
        ({"projections": {"query": [[1]], "key": [[1]], "value": [[1]]}}, 422, "shape-mismatch", "/inputs"),
        ({"projections": {"querry": [[1]]}}, 422, "unknown-field", "/projections/querry"),
        ({"projections": {"query": [[1]], "key": [[1, 2]], "value": [[1]]}, "inputs": [[1]]}, 422, "shape-mismatch",
         "/projections/key"),
        ({"projections": {"query": [[1]], "key": [[1]], "value": [[1], [2]]}, "inputs": [[1]]}, 422, "shape-mismatch",
         "/projections/value"),
        ({"projections": {"query": [[1]] * 17, "key": [[1]] * 17, "value": [[1]] * 17}, "inputs": [[1] * 17]}, 422,
         "shape-mismatch", "/inputs"),
        ({"projections": {"query": [[1]], "key": [[1]], "value": [[1]]}, "model": "lesson", "inputs": [[1]]}, 422,
         "conflicting-fields", "/projections"),
        ({"attn_mask": [[1] * 4] * 4}, 422, "wrong-type", "/attn_mask/0/0"),
        ({"attn_mask": [[True]]}, 422, "shape-mismatch", "/attn_mask"),
        ({"attn_bias": [[[0] * 4] * 4] * 2}, 422, "shape-mismatch", "/attn_bias"),
        ({"labels": ["a"]}, 422, "shape-mismatch", "/labels"),
        ({"labels": ["a", "b", "\u0000", "d"]}, 422, "invalid-option", "/labels/2"),
        (b'{"labels": ["a", "b", "\\ud800", "d"]}', 422, "invalid-option", "/labels/2"),
        ({"labels": ["a", "b", 3, "d"]}, 422, "wrong-type", "/labels/2"),
        ({"labels": "abcd"}, 422, "wrong-type", "/labels"),
        ({"focus": 4}, 422, "invalid-option", "/focus"),
        ({"focus": "her!"}, 422, "unknown-field", "/focus"),
        ({"head": 1}, 422, "invalid-option", "/head"),
        ({"layer": 0}, 422, "conflicting-fields", "/layer"),
        ({"decimals": 7}, 422, "invalid-option", "/decimals"),
        ({"scale": 0}, 422, "invalid-option", "/scale"),
        ({"picture": "pie"}, 422, "invalid-option", "/picture"),
        ({"return": ["weights"]}, 422, "unknown-field", "/return"),
        ({"labls": []}, 422, "unknown-field", "/labls"),
        ({"model": "none"}, 404, "not-found", "/model"),
        ({"model": "tiny"}, 404, "not-found", "/model"),
        ({"model": "minilm-l6", "text": "x"}, 503, "not-installed", "/model"),
        ({"model": "single-head-64"}, 422, "invalid-option", "/model"),
        ({"model": "shared"}, 422, "shape-mismatch", "/inputs"),
        *(({"model": name}, 422, "invalid-option", "/model") for name in
          ("rotary", "alibi", "capped", "window", "normed")),
        ({"text": "the " * 15}, 422, "shape-mismatch", "/text"),
        ({"text": 3}, 422, "wrong-type", "/text"),
        ({"text": "x", "inputs": [[1]]}, 422, "conflicting-fields", "/inputs"),
        ({"text": "x", "layer": 3}, 422, "invalid-option", "/layer"),
        ({"text": "x", "head": 4}, 422, "invalid-option", "/head"),
        (b"{" + b" " * (1 << 20) + b"}", 413, "too-large", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(service, document, status, code, pointer):
    reply = ask(service, document)

    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == PROBLEM
    assert reply.json()["type"] == f"/problems/{code}"
    pointers = [error["pointer"] for error in reply.json().get("errors", [])]
    assert pointers == ([] if pointer is None else [pointer])


def test_a_model_that_does_more_than_the_recipe_is_told_what_would_be_right(service):
    detail = ask(service, {"model": "rotary"}).json()["detail"]

    assert "rope positions" in detail
    assert "lesson" in detail
    assert "/v1/attention" in detail


def test_body_and_query_string_must_agree(service):
    assert ask(service, {"decimals": 2}, "?decimals=3").status == 422
    assert ask(service, {}, "?decimal=3").json()["errors"][0]["pointer"] == "/decimal"
    assert ask(service, {}, "?is_causal=true").json()["is_causal"] is True
    assert ask(service, {}, "?focus=1").json()["focus"]["token"] == "reads"


def test_only_json_is_read(service):
    assert ask(service, b"x", Content_Type="text/plain").status == 415
    refused = call(service.url, "PUT", PATH)
    assert (refused.status, set(refused.headers["allow"].split(", "))) == (405, {"GET", "HEAD", "POST"})


def test_a_deadline_that_has_passed_is_504(service):
    assert ask(service, {"labels": list("wxyz")}, Accept="image/png", X_Request_Timeout_Ms="1").status == 504


def test_it_is_counted_like_every_route(service):
    before = total(metrics_of(service), "attention_requests_total", route=PATH, status="200")

    ask(service, {})

    assert total(metrics_of(service), "attention_requests_total", route=PATH, status="200") == before + 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_works_as_it_stands(service, name):
    assert steps(ask(service, EXAMPLES[name]["value"]))
