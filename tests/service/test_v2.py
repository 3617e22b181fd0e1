"""The Open Inference Protocol, driven by its own client, unmodified: tritonclient, the sync and the async one."""

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from serving import ROOT, Server, start_server
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import InferenceServerException
from wire import JSON, SAFETENSORS, Reply, asgi, attend, bits, call, safetensors_file

from models.repository import ModelEntry, builtin, write
from models.spec import AttentionSpec
from models.types import TENSOR_NAMES
from models.weights import seeded
from service.app import create_app
from service.codecs.v2 import PARAMETERS
from service.routes.infer import EXAMPLE
from service.settings import Settings

pytestmark = pytest.mark.server

ENTRIES = {entry.spec.name: entry for entry in builtin() if isinstance(entry, ModelEntry)}
RANDOM = np.random.default_rng(3)
ADMIN = {"X-API-Key": "root"}
BOTH = ("outputs", "weights")


@pytest.fixture(scope="module")
def own(artifacts: Path) -> Iterator[Server]:
    """A service that others do not talk to, so that what it counts is known; it knows an admin."""
    running = start_server(artifacts, ATTENTION_ADMIN_KEYS="root", ATTENTION_DEFAULT_MODEL="lesson")
    yield running
    assert running.stop() == 0


def place(server: Server) -> str:
    return server.url.removeprefix("http://")


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(place(server)) as found:
        yield found


def draw(model: str, *shape: int) -> np.ndarray:
    return RANDOM.standard_normal((*shape, ENTRIES[model].spec.embed_dim)).astype(np.float32)


def tensors(binary: bool = True, **arrays: np.ndarray) -> list[Any]:
    names = {"float16": "FP16", "float32": "FP32", "float64": "FP64", "bool": "BOOL"}
    found = []
    for name, array in arrays.items():
        given = triton.InferInput(name, list(array.shape), names[str(array.dtype)])
        given.set_data_from_numpy(array, binary_data=binary)
        found.append(given)
    return found


def wanted(*names: str, binary: bool = True) -> list[Any]:
    return [triton.InferRequestedOutput(name, binary_data=binary) for name in names]


def v1(server: Server, model: str, query: str = "", **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """The answer of the main endpoint, in safetensors."""
    reply = call(server.url, "POST", f"/v1/attention?model={model}{query}", safetensors_file(arrays),
                 {"Content-Type": SAFETENSORS})  # fmt: skip
    found = reply.decoded(len(arrays["inputs"]) if arrays["inputs"].ndim == 3 else None)
    stacked = arrays["inputs"].ndim == 3
    return {name: np.stack(parts) if stacked else parts[0] for name, parts in found.tensors.items()}


def post(server: Server, path: str, body: bytes = b"", **headers: str) -> Reply:
    return call(server.url, "POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})


# ---- what there is


def test_the_server_and_its_models_are_live_and_ready(client: Any):
    assert client.is_server_live()
    assert client.is_server_ready()
    for name in ENTRIES:
        assert client.is_model_ready(name)
        assert client.is_model_ready(name, "1")
        assert not client.is_model_ready(name, "2")
    assert client.is_model_ready("lesson@1")
    assert not client.is_model_ready("none")
    assert client.is_model_ready("minilm-l6")


def test_the_server_says_what_it_can(client: Any):
    """Each extension that is listed is served; see the other tests."""
    found = client.get_server_metadata()

    assert found.keys() == {"name", "version", "extensions"}
    assert found["extensions"] == [
        "binary_tensor_data", "parameters", "statistics", "model_configuration", "model_repository",
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["", "1"])
@pytest.mark.parametrize("model", list(ENTRIES))
def test_the_metadata_are_those_of_the_answers(client: Any, model: str, version: str):
    """Every output can be asked for, and comes with the datatype and the shape that were said."""
    found = client.get_model_metadata(model, version)
    config = client.get_model_config(model, version)
    names = [output["name"] for output in found["outputs"]]
    answer = client.infer(model, tensors(inputs=draw(model, 2, 3)), version, outputs=wanted(*names))

    assert (found["name"], found["versions"], found["platform"]) == (model, ["1"], "self_attention")
    assert found["inputs"] == [
        {"name": "inputs", "datatype": "FP32", "shape": [-1, -1, ENTRIES[model].spec.embed_dim]},
        {"name": "attn_mask", "datatype": "BOOL", "shape": [-1, -1, -1]},
        {"name": "attn_bias", "datatype": "FP32", "shape": [-1, -1, -1, -1]},
        {"name": "lengths", "datatype": "INT64", "shape": [-1]},
    ]
    assert names == list(TENSOR_NAMES)
    for output in found["outputs"]:
        shape = answer.as_numpy(output["name"]).shape
        assert len(shape) == len(output["shape"])
        assert all(said in (-1, real) for said, real in zip(output["shape"], shape, strict=True))
        assert output["datatype"] == answer.get_output(output["name"])["datatype"] == "FP32"
    for kind, others in (("input", "inputs"), ("output", "outputs")):
        assert [(t["name"], t["data_type"], t["dims"]) for t in config[kind]] == [
            (t["name"], f"TYPE_{t['datatype']}", t["shape"]) for t in found[others]
        ]
    assert [t["optional"] for t in config["input"]] == [False, True, True, True]
    assert (config["name"], config["max_batch_size"], config["backend"]) == (model, 0, "onnx")


def test_the_repository_shows_its_models_and_what_is_broken(artifacts: Path, tmp_path: Path):
    """A layer with an output projection has one output more."""
    spec = AttentionSpec(
        name="full", version="1", embed_dim=8, num_heads=2, head_dim=4, seed=None, source="made by a test",
        license="Apache-2.0",
    )  # fmt: skip
    weights = replace(seeded(spec, 1), output=RANDOM.standard_normal((8, 8)).astype(np.float32))
    write(tmp_path / "models", ModelEntry(spec, weights, ""))
    (tmp_path / "models" / "broken").mkdir()
    (tmp_path / "models" / "broken" / "spec.json").write_text("{")
    running = start_server(artifacts, ATTENTION_MODEL_REPOSITORY=str(tmp_path / "models"))
    try:
        with triton.InferenceServerClient(place(running)) as client:
            (broken,) = [entry for entry in client.get_model_repository_index() if entry["state"] != "READY"]
            assert (broken["name"], broken["version"], broken["state"]) == ("broken", "", "UNAVAILABLE")
            assert "spec.json" in broken["reason"]
            names = [output["name"] for output in client.get_model_metadata("full")["outputs"]]
            x = RANDOM.standard_normal((3, 8)).astype(np.float32)
            answer = client.infer("full", tensors(inputs=x), outputs=wanted("projected"))

            assert names == [*TENSOR_NAMES, "projected"]
            assert bits(answer.as_numpy("projected")) == bits(
                v1(running, "full", "&return=projected", inputs=x)["projected"]
            )
    finally:
        assert running.stop() == 0


# ---- infer


@pytest.mark.parametrize("model", list(ENTRIES))
@pytest.mark.parametrize("shape", [(1,), (5,), (1, 4), (3, 7)])
def test_answers_are_those_of_the_main_endpoint_to_the_bit(server: Server, client: Any, model: str, shape: Any):
    """All four ways to send and to get numbers; every tensor."""
    x = draw(model, *shape)
    query = f"&return={','.join(TENSOR_NAMES)}"
    expected = v1(server, model, query, inputs=x)

    for into in (True, False):
        for out in (True, False):
            answer = client.infer(model, tensors(into, inputs=x), outputs=wanted(*reversed(TENSOR_NAMES), binary=out))
            entries = answer.get_response()["outputs"]
            assert [entry["name"] for entry in entries] == list(reversed(TENSOR_NAMES))
            for entry in entries:
                assert ("data" in entry) is not out
                assert bits(answer.as_numpy(entry["name"])) == bits(expected[entry["name"]])


def test_masks_biases_and_parameters_mean_what_they_mean_there(server: Server, client: Any):
    """Masked scores are -inf in binary; null in JSON, which the client makes NaN of."""
    model = "multi-head-384x12"
    x, mask = draw(model, 2, 4), np.tri(4, dtype=bool)[None].repeat(2, axis=0)
    mask[1, 0] = False
    bias = RANDOM.standard_normal((2, 12, 4, 4)).astype(np.float32)
    expected = v1(
        server, model, "&is_causal=true&scale=0.5&average_heads=true&backend=eager&return=weights,scores",
        inputs=x, attn_mask=mask, attn_bias=bias,
    )  # fmt: skip
    given = {"inputs": x, "attn_mask": mask, "attn_bias": bias}
    parameters = {"is_causal": True, "scale": 0.5, "average_heads": True, "backend": "eager"}

    for into in (True, False):
        answer = client.infer(
            model, tensors(into, **given), outputs=wanted("weights", "scores"), parameters=parameters, priority=1
        )
        for name in ("weights", "scores"):
            assert bits(answer.as_numpy(name)) == bits(expected[name])
        assert np.isneginf(answer.as_numpy("scores")).any()
        assert answer.get_response()["parameters"]["backend"] == "eager"
        assert json.loads(answer.get_response()["parameters"]["fully_masked_rows"]) == [[], [0]]
    text = client.infer(model, tensors(**given), outputs=wanted("scores", binary=False), parameters=parameters)
    assert (np.isnan(text.as_numpy("scores")) == np.isneginf(expected["scores"])).all()


def test_a_matrix_alone_masks_every_sequence(server: Server, client: Any):
    x, mask = draw("lesson", 3, 2), np.tri(2, dtype=bool)
    answer = client.infer("lesson", tensors(inputs=x, attn_mask=mask))

    expected = v1(server, "lesson", inputs=x, attn_mask=np.stack([mask] * 3))
    assert [bits(answer.as_numpy(name)) for name in BOTH] == [bits(expected[name]) for name in BOTH]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_are_computed_in_float32(server: Server, client: Any, dtype: str):
    x = draw("lesson", 4).astype(dtype)

    answer = client.infer("lesson", tensors(inputs=x))

    expected = v1(server, "lesson", inputs=x)
    assert bits(answer.as_numpy("weights")) == bits(expected["weights"])


def test_a_stock_call_says_nothing_but_its_input(server: Server, client: Any):
    """Outputs and weights, binary; name, version and id echoed."""
    x = draw("single-head-64", 16)
    answer = client.infer("single-head-64", tensors(inputs=x), request_id="no 7")
    response = answer.get_response()

    assert (response["model_name"], response["model_version"], response["id"]) == ("single-head-64", "1", "no 7")
    assert [output["name"] for output in response["outputs"]] == ["outputs", "weights"]
    expected = v1(server, "single-head-64", inputs=x)
    assert [bits(answer.as_numpy(name)) for name in BOTH] == [bits(expected[name]) for name in BOTH]
    assert "id" not in client.infer("single-head-64", tensors(inputs=x)).get_response()


@pytest.mark.parametrize("into", [None, "gzip", "deflate"])
@pytest.mark.parametrize("out", [None, "gzip", "deflate"])
def test_bodies_may_be_compressed(server: Server, client: Any, into: str | None, out: str | None):
    """The length of the JSON part counts bytes before that."""
    x = draw("single-head-64", 40)
    expected = v1(server, "single-head-64", inputs=x)

    for binary in (True, False):
        answer = client.infer(
            "single-head-64", tensors(binary, inputs=x), outputs=wanted(*BOTH, binary=binary),
            request_compression_algorithm=into, response_compression_algorithm=out,
        )  # fmt: skip
        assert [bits(answer.as_numpy(name)) for name in BOTH] == [bits(expected[name]) for name in BOTH]


@pytest.mark.parametrize(
    ("accepted", "binary", "coding"),
    [
        ("gzip", True, "gzip"), ("deflate", True, "deflate"), ("gzip, deflate, br", True, None),
        ("gzip, deflate, br", False, "gzip"), ("br, deflate, zstd", False, "deflate"), ("zstd", False, None),
        ("br", True, None), ("", False, None),
    ],
)  # fmt: skip
def test_answers_have_no_coding_that_the_clients_cannot_read(
    server: Server, accepted: str, binary: bool, coding: str | None
):
    """aiohttp offers br unasked, and its answers are decoded by hand; binary ones are left alone then."""
    x = draw("single-head-64", 40)
    entry = {"name": "inputs", "shape": [40, 64], "datatype": "FP32", "data": x.reshape(-1).tolist()}
    body = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": binary}}).encode()

    reply = post(server, "/v2/models/single-head-64/infer", body, Accept_Encoding=accepted)

    assert reply.headers.get("content-encoding") == coding
    assert reply.headers["vary"] == "accept-encoding"
    read = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[coding]
    length = reply.headers.get("inference-header-content-length")
    assert (length is not None) is binary
    assert json.loads(read(reply.body)[: int(length) if length else None])["model_name"] == "single-head-64"
    assert reply.headers["content-type"] == ("application/octet-stream" if binary else JSON)


def test_the_async_client_is_served_too(server: Server):
    """aiohttp, many at the same time."""
    xs = [draw("single-head-64", n) for n in (1, 5, 16, 40)]

    async def scenario() -> list[Any]:
        async with triton_aio.InferenceServerClient(place(server)) as client:
            assert await client.is_server_ready()
            assert await client.is_model_ready("lesson")
            assert (await client.get_model_metadata("lesson"))["name"] == "lesson"
            with pytest.raises(InferenceServerException, match="there is no model 'none'"):
                await client.infer("none", tensors(inputs=xs[0]))
            one = await client.infer(
                "single-head-64", tensors(inputs=xs[3]), request_compression_algorithm="gzip",
                response_compression_algorithm="deflate",
            )  # fmt: skip
            others = await asyncio.gather(
                *(client.infer("single-head-64", tensors(binary, inputs=x), outputs=wanted(*BOTH, binary=binary))
                  for x in xs for binary in (True, False))
            )  # fmt: skip
            return [one, *others]

    one, *others = asyncio.run(scenario())

    for x, answer in zip([xs[3], *(x for x in xs for _ in range(2))], [one, *others], strict=True):
        expected = v1(server, "single-head-64", inputs=x)
        assert [bits(answer.as_numpy(name)) for name in BOTH] == [bits(expected[name]) for name in BOTH]


def test_an_answer_has_the_headers_of_every_other(server: Server):
    body = json.dumps(EXAMPLE).encode()

    reply = post(server, "/v2/models/lesson/infer", body, X_Request_Id="mine", Content_Type="text/plain")

    assert reply.status == 200
    assert reply.headers["x-request-id"] == "mine"
    assert [part.partition(";")[0] for part in reply.headers["server-timing"].split(", ")] == [
        "decode", "queue", "compute", "encode",
    ]  # fmt: skip
    text = call(server.url, "GET", "/metrics").body.decode()
    assert 'attention_requests_total{method="POST",outcome="ok",route="/v2/models/{name}/infer",status="200"}' in text


# ---- errors


def refused(reply: Reply, status: int, code: str) -> dict[str, Any]:
    found: dict[str, Any] = reply.json()
    assert reply.status == found["status"] == status, found
    assert reply.headers["content-type"] == JSON
    assert found["type"] == f"/problems/{code}"
    assert found["error"] == found["detail"]
    return found


def test_errors_reach_the_caller_in_our_words(client: Any):
    """Whatever it is."""
    x = draw("lesson", 2)
    bad = x.copy()
    bad[1, 3] = np.inf
    for status, text, given in (
        ("400", "/inputs/1/3: inf is not a finite number", {"inputs": tensors(inputs=bad)}),
        ("400", "the embedding has 4 numbers, but lesson@1 takes 5", {"inputs": tensors(inputs=x[:, :4].copy())}),
        ("400", "no such parameter; did you mean 'is_causal'?", {"parameters": {"is_casual": True}}),
        ("400", "/sequence_id: no such parameter", {"sequence_id": 5, "sequence_start": True}),
        ("400", "no such output; did you mean 'weights'?", {"outputs": wanted("weight")}),
        ("400", "known is binary_data", {"outputs": [triton.InferRequestedOutput("weights", class_count=2)]}),
        ("400", "nothing is read from the query string", {"query_params": {"is_causal": "true"}}),
        ("400", "lesson@1 has no output projection", {"outputs": wanted("projected")}),
        ("404", "'lesson' has no version '9'", {"model_version": "9"}),
        ("404", "there is no model 'lessen'; did you mean 'lesson'?", {"model_name": "lessen"}),
        ("400", "/inputs: minilm-l6 takes text", {"model_name": "minilm-l6"}),
        ("504", "deadline|not done in time", {"timeout": 1}),
    ):
        call = {"model_name": "lesson", "inputs": tensors(inputs=x)} | given
        with pytest.raises(InferenceServerException, match=text) as caught:
            client.infer(**call)
        assert caught.value.status() == status
    for ask in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
        with pytest.raises(InferenceServerException, match="there is no model 'none'"):
            ask("none")


def test_every_refusal_has_the_protocols_form(server: Server):
    """Also those that no endpoint makes."""
    lesson = "/v2/models/lesson/infer"

    refused(call(server.url, "GET", lesson), 405, "method-not-allowed")
    refused(call(server.url, "DELETE", "/v2/models/lesson"), 405, "method-not-allowed")
    refused(call(server.url, "GET", "/v2/nothing"), 404, "not-found")
    refused(call(server.url, "GET", "/v2/models/a/b/c"), 404, "not-found")
    refused(post(server, "/v2/systemsharedmemory/region/x/register"), 404, "not-found")
    refused(post(server, lesson, b"{"), 400, "unparsable")
    refused(post(server, lesson, b"{}", Content_Encoding="zstd"), 415, "unsupported-media-type")
    refused(post(server, lesson, b"{}", Content_Encoding="gzip"), 400, "unparsable")
    refused(post(server, lesson, b"{}", X_Request_Timeout_Ms="soon"), 400, "invalid-option")
    refused(post(server, lesson, bytes(65 << 20)), 413, "too-large")
    bomb = gzip.compress(bytes(65 << 20))
    refused(post(server, lesson, bomb, Content_Encoding="gzip"), 413, "too-large")
    found = refused(post(server, "/v2/models/lesson/infer", b'{"inputs": 1}'), 400, "wrong-type")
    assert found["errors"] == [{"pointer": "/inputs", "detail": "expected a list of tensors, got a number"}]


def test_what_the_main_endpoint_answers_to_errors_is_as_it_was(server: Server):
    assert attend(server.url, {"inputs": [[1, 2], [3]]}).status == 422


def ask(settings: Settings, method: str, path: str, drain: bool = False, **headers: str) -> Reply:
    """One request to an application in this process, whose models are not loaded."""
    app = create_app(settings)
    if drain:
        app.runtime.begin_drain()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(asgi(app, method, path, json.dumps(EXAMPLE).encode(), named))


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v2/models/lesson/infer"), ("GET", "/v2/models/lesson"), ("GET", "/v2/health/ready"),
     ("GET", "/v2/models/lesson/ready"), ("GET", "/v2/models/stats"), ("POST", "/v2/repository/index")],
)  # fmt: skip
def test_until_models_are_loaded_the_service_is_not_ready(settings: Settings, method: str, path: str):
    """Which says when to come again; and while it stops, too."""
    body = {} if "index" not in path else {"content_length": "0"}
    reply = ask(settings, method, path) if not body else asyncio.run(asgi(create_app(settings), method, path))

    refused(reply, 503, "not-ready")
    assert int(reply.headers["retry-after"]) >= 1
    assert ask(settings, "GET", "/v2/health/live").json() == {"live": True}


def test_while_draining_new_work_is_refused(settings: Settings):
    refused(ask(settings, "POST", "/v2/models/lesson/infer", drain=True), 503, "draining")
    refused(ask(settings, "GET", "/v2/health/ready", drain=True), 503, "not-ready")


def test_keys_guard_everything_but_health(settings: Settings):
    """Orchestrators have no key."""
    guarded = settings.model_copy(update={"api_keys": ("secret",)})

    for path in ("/v2", "/v2/models/lesson", "/v2/models/stats", "/v2/models/lesson/ready", "/v2/nothing"):
        refused(ask(guarded, "GET", path), 401, "unauthorized")
    refused(ask(guarded, "POST", "/v2/models/lesson/infer"), 401, "unauthorized")
    refused(ask(guarded, "POST", "/v2/models/lesson/infer", authorization="Bearer bad"), 403, "forbidden")
    refused(ask(guarded, "POST", "/v2/models/lesson/infer", authorization="Bearer secret"), 503, "not-ready")
    assert ask(guarded, "GET", "/v2/health/live").status == 200
    assert ask(guarded, "GET", "/v2/health/ready").status == 503
    limited = create_app(settings.model_copy(update={"rate_limit": "1/minute"}))
    assert asyncio.run(asgi(limited, "GET", "/v2")).status == 200
    refused(asyncio.run(asgi(limited, "GET", "/v2")), 429, "rate-limited")


def test_the_clients_own_authentication_passes(artifacts: Path):
    """Its plugin sends a user and a password."""
    running = start_server(artifacts, ATTENTION_API_KEYS="secret")
    try:
        with triton.InferenceServerClient(place(running)) as client:
            assert client.is_server_ready()
            with pytest.raises(InferenceServerException, match="send an API key"):
                client.get_server_metadata()
            client.register_plugin(BasicAuth("anyone", "secret"))
            assert client.infer("lesson", tensors(inputs=draw("lesson", 2))).as_numpy("weights").shape == (2, 2)
            client.unregister_plugin()
            client.register_plugin(BasicAuth("anyone", "wrong"))
            with pytest.raises(InferenceServerException, match="the API key is not known"):
                client.get_server_metadata()
    finally:
        assert running.stop() == 0


# ---- the repository


def test_models_come_and_go(own: Server):
    """Through the loader, with an admin's key."""
    with triton.InferenceServerClient(place(own)) as client:
        index = client.get_model_repository_index()
        names = [*((name, "1") for name in sorted(ENTRIES)), ("projections", "")]
        assert index == [{"name": n, "version": v, "state": "READY", "reason": ""} for n, v in names]
        with pytest.raises(InferenceServerException) as caught:
            client.unload_model("single-head-64")
        assert caught.value.status() == "401"
        with pytest.raises(InferenceServerException, match="without it"):
            client.unload_model("lesson", headers=ADMIN)

        client.unload_model("single-head-64", headers=ADMIN, unload_dependents=True)

        assert not client.is_model_ready("single-head-64")
        assert [entry for entry in client.get_model_repository_index() if entry["state"] != "READY"] == [
            {"name": "single-head-64", "version": "", "state": "UNAVAILABLE", "reason": "not loaded"}
        ]
        with pytest.raises(InferenceServerException, match="neither a config nor files can be sent") as caught:
            client.load_model("single-head-64", headers=ADMIN, config="{}")
        assert caught.value.status() == "400"
        assert not client.is_model_ready("single-head-64")

        client.load_model("single-head-64", headers=ADMIN)

        assert client.is_model_ready("single-head-64")
        with pytest.raises(InferenceServerException, match="there is no model 'none'"):
            client.load_model("none", headers=ADMIN)


def test_the_repository_takes_empty_bodies_and_refuses_strange_ones(own: Server):
    for body in (b"", b"  ", b"{}", b'{"ready": false}', b'{"ready": true}'):
        assert {entry["name"] for entry in post(own, "/v2/repository/index", body).json()} == {*ENTRIES, "projections"}
    for body, code in (
        (b"[]", "wrong-type"), (b"{", "unparsable"), (b'{"reedy": true}', "unknown-field"),
        (b'{"ready": 1}', "invalid-option"),
    ):  # fmt: skip
        refused(post(own, "/v2/repository/index", body), 400, code)
    load, unload = (f"/v2/repository/models/multi-head-384x12/{action}" for action in ("load", "unload"))
    for path, body, code in (
        (load, b'{"parameters": []}', "wrong-type"),
        (load, b'{"parameters": {"file:1/x": "AA=="}}', "unknown-field"),
        (load, b'{"config": "{}"}', "unknown-field"),
        (unload, b'{"parameters": {"force": true}}', "unknown-field"),
        (unload, b'{"parameters": {"unload_dependents": 1}}', "invalid-option"),
    ):
        refused(post(own, path, body, **{"X-API-Key": "root"}), 400, code)
    assert post(own, unload, X_API_Key="root").json() == {"loaded": [], "unloaded": ["multi-head-384x12@1"]}
    assert post(own, load, X_API_Key="root").json() == {"loaded": ["multi-head-384x12@1"], "unloaded": []}


# ---- statistics


def test_statistics_are_what_the_client_counted(own: Server):
    """Answered and failed requests, sequences, batches and stages, all whole numbers; from every endpoint."""
    with triton.InferenceServerClient(place(own)) as client:

        def kept() -> dict[str, Any]:
            (found,) = client.get_inference_statistics("lesson")["model_stats"]
            (same,) = client.get_inference_statistics("lesson", "1")["model_stats"]
            everything = {entry["name"]: entry for entry in client.get_inference_statistics()["model_stats"]}
            assert found == same == everything["lesson"]
            assert everything.keys() == {*ENTRIES, "projections"}
            return found

        before = kept()
        for _ in range(3):
            client.infer("lesson", tensors(inputs=draw("lesson", 2, 4)))
        client.infer("lesson", tensors(inputs=draw("lesson", 4)), "1")
        assert attend(own.url, {"model": "lesson", "inputs": [[1, 0, 0, 0, 0]]}).status == 200
        for _ in range(2):
            with pytest.raises(InferenceServerException):
                client.infer("lesson", tensors(inputs=draw("lesson", 4)), parameters={"scale": -1})
        with pytest.raises(InferenceServerException):
            client.infer("lesson", tensors(inputs=draw("single-head-64", 4)))
        after = kept()

    assert after["name"] == "lesson"
    assert after["version"] == "1"
    assert after["inference_count"] - before["inference_count"] == 3 * 2 + 1 + 1
    assert 1 + 1 + 3 <= after["execution_count"] - before["execution_count"] <= 3 * 2 + 1 + 1
    assert after["last_inference"] > before["last_inference"]
    more = {}
    for name, now in after["inference_stats"].items():
        assert now.keys() == {"count", "ns"}
        assert all(type(number) is int and number >= 0 for number in now.values())
        more[name] = now["count"] - before["inference_stats"][name]["count"]
    assert more == {
        "success": 5, "fail": 3, "queue": 5, "compute_input": 5, "compute_infer": 5, "compute_output": 5,
        "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip
    stages = sum(after["inference_stats"][name]["ns"] for name in more if name.startswith("compute"))
    assert 0 < stages + after["inference_stats"]["queue"]["ns"] <= after["inference_stats"]["success"]["ns"]


def test_statistics_begin_anew_with_a_model_that_is_loaded_again(own: Server):
    with triton.InferenceServerClient(place(own)) as client:
        client.infer("multi-head-384x12", tensors(inputs=draw("multi-head-384x12", 2)))
        client.load_model("multi-head-384x12", headers=ADMIN)
        (found,) = client.get_inference_statistics("multi-head-384x12")["model_stats"]

    assert found["inference_count"] == found["execution_count"] == found["last_inference"] == 0


# ---- the page


PAGE = (ROOT / "docs/v2.md").read_text()
CURL = re.compile(r"^curl -s (?:-X (POST) )?http://127.0.0.1:8000(/v2\S*)(?: -d '(.*?)')?$", re.MULTILINE | re.DOTALL)


def test_every_curl_example_of_the_page_works(server: Server):
    """An example that does not run teaches mistrust."""
    examples = CURL.findall(PAGE)

    assert len(examples) == PAGE.count("curl -s ") == 6
    for method, path, body in examples:
        reply = call(server.url, method or ("POST" if body else "GET"), path, body.encode() or None)
        assert reply.status == 200, (path, reply.body)


def test_the_python_example_of_the_page_works(server: Server, capsys: pytest.CaptureFixture[str]):
    """The last of them is for gRPC."""
    codes = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(codes) == 4
    # The tiny encoder of these tests has four heads, and most words are one token that it does not know.
    for code, expected in zip(codes[:3], ([1] * 32, [1, 1, 1, 1, 0, 0], [2, 4, 9, 9, 9, 7]), strict=True):
        scope: dict[str, Any] = {}

        exec(code.replace("127.0.0.1:8000", place(server)), scope)

        scope["client"].close()
        numbers = re.sub(r"[\[\](),]", " ", capsys.readouterr().out).split()
        assert np.array(numbers, float).round(6).tolist() == expected


def test_the_page_names_every_parameter_and_every_endpoint(server: Server):
    """What is served is on the page, and the other way round."""
    paths = {path for path in call(server.url, "GET", "/openapi.json").json()["paths"] if path.startswith("/v2")}
    named = set()
    for path in re.findall(
        r"`(?:(?:GET|POST) )?(/[^`]*)`", PAGE[PAGE.index("## Endpoints") : PAGE.index("## Inference")]
    ):
        plain = path.replace("{m}", "{name}").replace("{v}", "{version}")
        if plain == "/unload":
            plain = "/v2/repository/models/{name}/unload"
        if plain.startswith("/v2"):
            named |= {plain.replace("[/versions/{version}]", ""), plain.replace("[", "").replace("]", "")}

    assert named == paths
    for name in PARAMETERS:
        assert f"`{name}`" in PAGE
