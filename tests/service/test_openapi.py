"""The OpenAPI document: valid, true, and complete. What it says is tried out on a running service."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import openapi_spec_validator
import pytest
from serving import Server
from wire import JSON, NPY, NPZ, PROBLEM, SAFETENSORS, Reply, attend, call, npy

from models.types import TENSOR_NAMES
from service.messages import Options
from service.routes.attention import AttentionRoute
from service.routes.explain import EXAMPLES as EXPLANATIONS
from service.routes.tensors import REFUSALS
from service.routes.text import TextRoute
from service.tutor.render import RENDERERS

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    reply = call(server.url, "GET", "/openapi.json")
    assert reply.headers["content-type"] == JSON
    found: dict[str, Any] = reply.json()
    return found


def conforms(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """Raise unless `value` is what `schema`, part of `document`, describes."""
    whole = {"components": document["components"], **schema}
    jsonschema.Draft202012Validator(whole).validate(value)


def component(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def test_the_document_is_valid_openapi(document: dict[str, Any]):
    """3.1, by the specification's own schema."""
    assert document["openapi"].startswith("3.1.")
    openapi_spec_validator.validate(document)


def test_every_reference_leads_somewhere(document: dict[str, Any]):
    """Generators of clients stop at the first that does not."""

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                name = value["$ref"].removeprefix("#/components/schemas/")
                assert name in document["components"]["schemas"]
            for part in value.values():
                walk(part)
        elif isinstance(value, list):
            for part in value:
                walk(part)

    walk(document)


ROUTES = {"/v1/attention": AttentionRoute.operation, "/v1/text/attention": TextRoute.operation}
QUERIES = (
    "", "?encoding=base64", "?top_k=1&encoding=base64", "?return=scores,weights,key", "?format=bertviz",
    "?dtype=float16&encoding=base64", "?decimals=3&return=scores", "?dtype=float16&format=bertviz",
)  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(("path", "name"), [(path, name) for path in ROUTES for name in ROUTES[path].examples])
def test_every_example_works_as_it_stands(server: Server, document: dict[str, Any], path: str, name: str, query: str):
    """The first thing that a reader of /docs does is to send it; the answer is what the document says."""
    content = document["paths"][path]["post"]["requestBody"]["content"][JSON]
    dropped = ("return", "top_k") if "bertviz" in query else ()
    value = {k: part for k, part in content["examples"][name]["value"].items() if k not in query and k not in dropped}

    reply = call(server.url, "POST", f"{path}{query}", json.dumps(value).encode(), {"Content-Type": JSON})

    conforms(document, content["schema"], content["examples"][name]["value"])
    assert reply.status == 200
    conforms(document, component(ROUTES[path].answer.__name__), reply.json())


@pytest.mark.parametrize("path", ROUTES)
def test_the_examples_are_those_of_the_source(document: dict[str, Any], path: str):
    """None was lost on the way."""
    content = document["paths"][path]["post"]["requestBody"]["content"][JSON]

    assert set(content["examples"]) == set(ROUTES[path].examples)


@pytest.mark.parametrize(
    "path",
    [
        "/healthz/live", "/healthz/ready", "/v1/models", "/v1/models/lesson", "/v1/misconceptions",
        "/v1/misconceptions/scale.none", "/v1/quiz", "/v2", "/v2/health/live", "/v2/health/ready",
        "/v2/models/lesson", "/v2/models/lesson/ready", "/v2/models/lesson/config",
        "/v2/models/lesson/stats", "/v2/models/stats", "/v2/models/lesson/versions/1",
        "/v2/models/lesson/versions/1/ready", "/v2/models/lesson/versions/1/config",
        "/v2/models/lesson/versions/1/stats",
    ],
)  # fmt: skip
def test_every_other_answer_is_as_described(server: Server, document: dict[str, Any], path: str):
    """Status, media type and schema."""
    template = (
        path.replace("lesson", "{name}").replace("scale.none", "{id}").replace("versions/1", "versions/{version}")
    )
    described = document["paths"][template]["get"]["responses"]["200"]["content"]

    reply = call(server.url, "GET", path)

    assert list(described) == [reply.headers["content-type"]]
    conforms(document, described[JSON]["schema"], reply.json())


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_an_explanation_is_as_described(server: Server, document: dict[str, Any], name: str):
    """Each example, in every media type of the document; the one in JSON by its schema."""
    operation = document["paths"]["/v1/explain"]["post"]
    content = operation["requestBody"]["content"][JSON]
    described = operation["responses"]["200"]["content"]
    value = content["examples"][name]["value"]
    conforms(document, content["schema"], value)

    for media_type in described:
        headers = {"Content-Type": JSON, "Accept": media_type}
        reply = call(server.url, "POST", "/v1/explain", json.dumps(value).encode(), headers)
        assert (reply.status, reply.headers["content-type"].partition(";")[0]) == (200, media_type)
        if media_type == JSON:
            conforms(document, described[JSON]["schema"], reply.json())
    assert set(described) == set(RENDERERS)
    assert document["paths"]["/v1/explain"]["get"]["responses"].keys() == operation["responses"].keys()


def test_the_metrics_are_described_as_text(server: Server, document: dict[str, Any]):
    """They are no JSON."""
    described = document["paths"]["/metrics"]["get"]["responses"]["200"].get("content", {})

    assert JSON not in described
    assert call(server.url, "GET", "/metrics").headers["content-type"].startswith("text/plain")


def test_the_media_types_of_the_contract_are_described(document: dict[str, Any]):
    """Both ways."""
    operation = document["paths"]["/v1/attention"]["post"]

    assert set(operation["requestBody"]["content"]) == {JSON, SAFETENSORS, NPY}
    assert set(operation["responses"]["200"]["content"]) == {JSON, SAFETENSORS, NPZ}


def test_every_option_is_described_in_the_body_and_in_the_query(document: dict[str, Any]):
    """Under the names of the contract."""
    named = {
        "model", "return", "is_causal", "scale", "average_heads", "top_k", "backend", "encoding",
        "dtype", "decimals", "format",
    }  # fmt: skip
    parameters = document["paths"]["/v1/attention"]["post"]["parameters"]
    body = document["components"]["schemas"]["AttentionBody"]

    assert {field.alias or name for name, field in Options.model_fields.items()} == named
    assert {parameter["name"] for parameter in parameters if parameter["in"] == "query"} == named
    assert set(body["properties"]) == named | {"inputs", "projections", "attn_mask", "attn_bias"}
    assert body["required"] == ["inputs"]
    assert body["additionalProperties"] is False
    assert all(parameter["description"] for parameter in parameters)
    assert set(TENSOR_NAMES) <= set(document["components"]["schemas"]["AttentionAnswer"]["properties"])


@pytest.mark.parametrize(
    ("query", "good"),
    [
        ({"model": "lesson"}, True), ({"return": "outputs,weights"}, True), ({"return": "outputs weights"}, False),
        ({"scale": 0.5}, True), ({"scale": 0}, False), ({"scale": None}, False), ({"top_k": 1}, True),
        ({"top_k": 0}, False), ({"top_k": None}, False), ({"backend": "eager"}, True), ({"backend": "x"}, False),
        ({"backend": None}, False), ({"encoding": "base64"}, True), ({"encoding": "hex"}, False),
        ({"dtype": "float16"}, True), ({"dtype": "float64"}, False), ({"decimals": 0}, True), ({"decimals": 9}, True),
        ({"decimals": 10}, False), ({"decimals": -1}, False), ({"decimals": None}, False),
        ({"is_causal": True}, True), ({"return": ""}, False), ({"model": None}, False),
    ],
)  # fmt: skip
def test_a_parameter_is_described_as_it_is_taken(
    server: Server, document: dict[str, Any], query: dict[str, Any], good: bool
):
    """What the schema allows is taken, what it forbids is refused."""
    ((name, value),) = query.items()
    (schema,) = (p["schema"] for p in document["paths"]["/v1/attention"]["post"]["parameters"] if p["name"] == name)
    text = json.dumps(value).strip('"').replace(" ", "%20")

    reply = attend(server.url, {"inputs": [[1] * (5 if name == "model" else 64)]}, f"?{name}={text}")

    assert jsonschema.Draft202012Validator(schema).is_valid(value) is good
    assert reply.status in ((200,) if good else (404, 422))


def provoke(server: Server) -> dict[str, Reply]:
    """One refusal of each status that a caller can bring about on a healthy service without keys."""
    body = b'{"inputs": [[1, 0, 0, 0, 0.5]], "model": "lesson"}'
    return {
        "400": attend(server.url, b"{"),
        "404": attend(server.url, body.replace(b"lesson", b"none")),
        "405": call(server.url, "PUT", "/v1/attention"),
        "406": attend(server.url, body, Accept="text/html"),
        "413": call(server.url, "POST", "/v1/attention", npy(np.zeros((20_000, 64), "<f2")), {"Content-Type": NPY}),
        "415": attend(server.url, body, Content_Type="text/plain"),
        "422": attend(server.url, {"inputs": [[1, 2], [3]]}),
        "504": call(server.url, "POST", "/v1/attention?return=outputs", npy(np.zeros((4_000, 64), "<f4")),
                    {"Content-Type": NPY, "X-Request-Timeout-Ms": "1"}),
    }  # fmt: skip


def test_every_refusal_is_as_described(server: Server, document: dict[str, Any]):
    """Status, media type and schema; statuses that cannot be provoked here are documented all the same."""
    responses = document["paths"]["/v1/attention"]["post"]["responses"]

    for status, reply in provoke(server).items():
        assert str(reply.status) == status
        assert list(responses[status]["content"]) == [reply.headers["content-type"]] == [PROBLEM]
        conforms(document, responses[status]["content"][PROBLEM]["schema"], reply.json())
    assert set(responses) == {"200", *REFUSALS, *AttentionRoute.operation.refusals}
    assert {"401", "403", "408", "429", "500", "503"} <= set(responses)


def test_other_operations_describe_their_errors(server: Server, document: dict[str, Any]):
    """By one `default` response; under /v2 in the form of that protocol."""
    for path, item in document["paths"].items():
        if not path.endswith(("/attention", "/infer")):
            for operation in item.values():
                described = operation["responses"]["default"]["content"]
                if path.startswith("/v2"):
                    assert described == {JSON: {"schema": component("InferenceError")}}
                else:
                    assert PROBLEM in described
    conforms(document, component("Problem"), call(server.url, "GET", "/v1/models/none").json())
    conforms(document, component("InferenceError"), call(server.url, "GET", "/v2/models/none").json())


@pytest.mark.parametrize("path", ["/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"])
def test_inference_by_the_open_protocol_is_as_described(server: Server, document: dict[str, Any], path: str):
    """Its example works as it stands, and its refusals have their own form and their own statuses."""
    operation = document["paths"][path]["post"]
    content = operation["requestBody"]["content"][JSON]
    body = content["examples"]["lesson"]["value"]
    real = path.format(name="lesson", version="1")
    conforms(document, content["schema"], body)

    reply = call(server.url, "POST", real, json.dumps(body).encode())

    assert reply.status == 200
    conforms(document, component("InferAnswer"), reply.json())
    assert set(operation["responses"]) == {"200"} | (set(REFUSALS) | {"404"}) - {"406", "422"}
    for status, refused in {
        "400": call(server.url, "POST", real, b"{"),
        "404": call(server.url, "POST", real.replace("lesson", "none"), b"{}"),
        "405": call(server.url, "PUT", real),
        "415": call(server.url, "POST", real, b"{}", {"Content-Encoding": "br"}),
    }.items():
        assert str(refused.status) == status
        assert list(operation["responses"][status]["content"]) == [refused.headers["content-type"]] == [JSON]
        conforms(document, component("InferenceError"), refused.json())


def test_a_generated_client_meets_nothing_that_is_not_described(
    server: Server, document: dict[str, Any], tmp_path: Path
):
    """schemathesis: no 5xx but a passed deadline, no undocumented status or media type, no answer off its schema.

    That a body of the right schema is accepted is not checked: shapes that must fit one another cannot be described.
    """
    config = tmp_path / "schemathesis.toml"
    config.write_text('[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]\n')
    ended = subprocess.run(
        [Path(sys.executable).parent / "schemathesis", "--config-file", config, "run", f"{server.url}/openapi.json",
         "--exclude-checks", "positive_data_acceptance", "--max-examples", "25", "--seed", "1", "--no-color",
         "--continue-on-failure", "--request-timeout", "20", "--generation-database", "none"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stdout + ended.stderr
    count = sum(len(item) for item in document["paths"].values())
    assert f"{count} selected / {count} total" in ended.stdout


def test_api_keys_are_described_where_they_are_asked_for(settings):
    """A generated client must know to send one, and health checks that they need none."""
    from service.app import create_app

    document = create_app(settings.model_copy(update={"api_keys": ("secret",)})).api.openapi()

    assert document["components"]["securitySchemes"].keys() == {"bearer", "basic", "key"}
    assert document["paths"]["/v1/attention"]["post"]["security"] == [{"bearer": []}, {"basic": []}, {"key": []}]
    assert "security" not in document["paths"]["/healthz/ready"]["get"]
    assert "security" not in create_app(settings).api.openapi()["paths"]["/v1/attention"]["post"]
