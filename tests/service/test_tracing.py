"""Spans say what happened to a request, when, and on whose behalf; and never get in its way."""

import asyncio
import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from wire import JSON, Reply, asgi, connect, send, until

from service import tracing
from service.app import create_app
from service.errors import ConfigurationError
from service.metrics import STAGES
from service.routes.tensors import TensorEndpoint
from service.settings import Settings
from service.tracing import Tracing
from tests.serving import Server, empty_repository, start_server

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CALLER[:-2] + "00"
TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
BODY = json.dumps({"model": "lesson", "inputs": [[[1, 0, 0, 0, 0.5]], [[1, 0, 0, 0, 0.5], [0, 1, 0, 0, 0.5]]]}).encode()
SECRET = "hidden-7f3a"


async def played(settings: Settings, exporter: InMemorySpanExporter) -> dict[str, tuple[Reply, list[ReadableSpan]]]:
    """Requests of every kind to a service in this process, each with the spans that it made."""
    app = create_app(settings)
    found: dict[str, tuple[Reply, list[ReadableSpan]]] = {}

    async def ask(name: str, method: str, path: str, body: bytes = b"", query: str = "", **headers: str) -> None:
        reply = await asgi(app, method, path, body, {"Content-Type": JSON} | headers, query)
        found[name] = reply, list(exporter.get_finished_spans())
        exporter.clear()

    app.runtime.start()
    await app.runtime.loaded()
    await ask("root", "POST", "/v1/attention", BODY)
    await ask("child", "POST", "/v1/attention", BODY, traceparent=CALLER)
    await ask("unsampled", "POST", "/v1/attention", BODY, traceparent=UNSAMPLED)
    await ask("torn", "POST", "/v1/attention", BODY, traceparent=CALLER[:20])
    await ask("v2", "POST", "/v2/models/lesson/infer", json.dumps({"inputs": [
        {"name": "inputs", "shape": [1, 5], "datatype": "FP32", "data": [1, 0, 0, 0, 0]}]}).encode())  # fmt: skip
    await ask("models", "GET", "/v1/models", query=f"x={SECRET}", authorization=f"Bearer {SECRET}")
    await ask("invalid", "POST", "/v1/attention", json.dumps({"model": SECRET, "inputs": [[1]]}).encode())
    await ask("nowhere", "GET", "/nowhere", query=f"x={SECRET}")
    await ask("brew", "BREW", "/v1/attention")
    for path in ("/metrics", "/healthz/live", "/v2/health/live"):
        await ask(path, "GET", path)

    def broken(_: Any) -> Any:
        raise ValueError(SECRET)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorEndpoint, "engine", broken)
        await ask("broken", "POST", "/v1/attention", BODY)
    app.runtime.begin_drain()
    await ask("refused", "POST", "/v1/attention", BODY)
    await app.runtime.stop()
    return found


def provider(exporter: InMemorySpanExporter, share: float = 1.0) -> TracerProvider:
    made = TracerProvider(ParentBased(TraceIdRatioBased(share)), shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


@pytest.fixture(scope="module")
def found(artifacts: Path) -> dict[str, tuple[Reply, list[ReadableSpan]]]:
    exporter = InMemorySpanExporter()
    settings = Settings(artifacts=artifacts, device="cpu", model_repository=empty_repository(artifacts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "opened", lambda _: Tracing(provider(exporter)))
        return asyncio.run(played(settings, exporter))


def whole(spans: list[ReadableSpan]) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """The span of a request, and those of its stages."""
    (server,) = (span for span in spans if span.kind is SpanKind.SERVER)
    return server, [span for span in spans if span is not server]


def test_a_request_is_one_span_with_one_below_it_for_each_stage(found: Any):
    """The stages are those of Server-Timing, one after the other, within the request."""
    reply, spans = found["root"]
    server, stages = whole(spans)

    assert server.name == "POST /v1/attention"
    assert server.parent is None
    assert sorted(stage.name for stage in stages) == sorted(STAGES)
    timings = {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", reply.headers["server-timing"])}
    last = server.start_time
    for stage in sorted(stages, key=lambda stage: STAGES.index(stage.name)):
        assert stage.parent.span_id == server.context.span_id
        assert stage.context.trace_id == server.context.trace_id
        assert last <= stage.start_time <= stage.end_time <= server.end_time
        assert (stage.end_time - stage.start_time) / 1e6 == pytest.approx(timings[stage.name], abs=2e-3)
        last = stage.end_time


def test_a_request_is_described_by_the_semantic_conventions_and_what_is_ours(found: Any):
    """Backends for traces draw tables of services by these names."""
    reply, spans = found["root"]
    server, _ = whole(spans)
    attributes = dict(server.attributes)

    assert attributes.pop("attention.request_id") == reply.headers["x-request-id"]
    assert attributes == {
        "http.request.method": "POST", "url.path": "/v1/attention", "url.scheme": "http",
        "http.route": "/v1/attention", "http.response.status_code": 200,
        "http.request.body.size": len(BODY), "http.response.body.size": len(reply.body),
        "attention.outcome": "ok", "attention.model": "lesson@1", "attention.backend": "onnx",
        "attention.sequences": 2, "attention.tokens": 3, "attention.batch.sequences": 1,
    }  # fmt: skip
    assert server.status.status_code is StatusCode.UNSET


def test_the_callers_trace_goes_on(found: Any):
    """By W3C's traceparent; one that cannot be read begins a new trace, as if it had not come."""
    server, stages = whole(found["child"][1])

    assert server.context.trace_id == TRACE
    assert (server.parent.span_id, server.parent.is_remote) == (PARENT, True)
    assert {stage.context.trace_id for stage in stages} == {TRACE}
    torn, _ = whole(found["torn"][1])
    assert torn.parent is None
    assert torn.context.trace_id != TRACE


def test_what_the_caller_does_not_sample_makes_no_span(found: Any):
    """Whoever begins a trace decides."""
    reply, spans = found["unsampled"]

    assert reply.status == 200
    assert spans == []


@pytest.mark.parametrize("path", ["/metrics", "/healthz/live", "/v2/health/live"])
def test_probes_and_scrapes_make_no_span(found: Any, path: str):
    """They would be most of all traces, and tell nothing."""
    reply, spans = found[path]

    assert reply.status == 200
    assert spans == []


@pytest.mark.parametrize(
    ("request_", "name", "route"),
    [
        ("v2", "POST /v2/models/{name}/infer", "/v2/models/{name}/infer"),
        ("models", "GET /v1/models", "/v1/models"),
        ("nowhere", "GET", None),
        ("brew", "HTTP /v1/attention", "/v1/attention"),
    ],
)
def test_a_span_is_named_by_the_template_of_its_route(found: Any, request_: str, name: str, route: str | None):
    """A name for each path, or each method that somebody makes up, would be as many as there are requests."""
    server, _ = whole(found[request_][1])

    assert server.name == name
    assert server.attributes.get("http.route") == route


@pytest.mark.parametrize(
    ("request_", "status", "outcome", "problem", "failed"),
    [
        ("invalid", 404, "invalid", "not-found", False),
        ("nowhere", 404, "invalid", "not-found", False),
        ("brew", 405, "invalid", "method-not-allowed", False),
        ("broken", 500, "failed", "internal-error", True),
        ("refused", 503, "rejected", "draining", True),
    ],
)
def test_an_error_is_recorded_as_what_it_is(
    found: Any, request_: str, status: int, outcome: str, problem: str, *, failed: bool
):
    """A caller's mistake is no error of the span, by the conventions; ours is."""
    server, stages = whole(found[request_][1])

    assert server.attributes["http.response.status_code"] == status
    assert server.attributes["attention.outcome"] == outcome
    assert server.attributes["attention.problem"] == problem
    assert server.attributes.get("error.type") == (problem if failed else None)
    assert server.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    assert [stage.name for stage in stages] == []


def test_nothing_of_queries_headers_and_errors_is_in_a_span(found: Any):
    """Traces are read by more people than requests are meant for."""
    assert SECRET not in "".join(span.to_json() for _, spans in found.values() for span in spans)


def test_a_share_of_the_traces_can_be_sampled(artifacts: Path, monkeypatch: pytest.MonkeyPatch):
    """Of none there is no span, and the request knows of its trace all the same."""
    exporter = InMemorySpanExporter()
    spans = Tracing(provider(exporter, share=0.0))

    span = spans.begin({}, {}, 1)
    spans.end(span, "x", {}, [("decode", 1, 2)], 3, failed=False)

    assert span.get_span_context().is_valid
    assert exporter.get_finished_spans() == ()


# ---- off, and asked for in vain


def test_without_the_setting_nothing_is_made(settings: Settings):
    """Not even where everything else is ready for it."""
    assert tracing.opened(settings) is None


def test_a_way_of_sending_that_is_not_known_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch):
    """By its name, with those that are."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")

    with pytest.raises(ConfigurationError, match="'zipkin': spans are sent by otlp or console"):
        tracing.check(Settings(tracing=True))


def test_whoever_lacks_opentelemetry_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """It is an extra."""
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'self-attention-service\[tracing\]'"):
        tracing.check(Settings(tracing=True))


def test_the_standard_variables_name_the_service(monkeypatch: pytest.MonkeyPatch):
    """They win over what it calls itself."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    opened = tracing.opened(Settings(tracing=True))
    assert opened is not None

    attributes = opened._provider.resource.attributes
    opened.close()

    assert attributes["service.name"] == "theirs"
    assert attributes["deployment.environment.name"] == "test"
    assert str(os.getpid()) in str(attributes["service.instance.id"])


# ---- for real


class Collector(ThreadingHTTPServer):
    """Takes what OTLP sends over HTTP."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.spans: list[tuple[str, Any]] = []  # instance, span
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Taker(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        for resource in sent.resource_spans:
            known = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            assert known["service.name"] == "self-attention-service"
            for scope in resource.scope_spans:
                self.server.spans += [(known["service.instance.id"], span) for span in scope.spans]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.shutdown()
    running.server_close()


def served(server: Server, requests: int) -> None:
    """Requests with one head on one connection: the third takes the short way."""
    connection = connect(server.url)
    for _ in range(requests):
        assert send(connection, "POST", "/v1/attention", BODY, {"Content-Type": JSON}).status == 200
    connection.close()


@pytest.mark.server
@pytest.mark.timeout(300)
def test_workers_send_theirs_and_a_collector_that_is_gone_hurts_nobody(artifacts: Path, collector: Collector):
    """Over OTLP, from two processes, by the ordinary way, the short one and gRPC; then with nobody to take it."""
    server = start_server(
        artifacts,
        ATTENTION_TRACING="true",
        ATTENTION_WORKERS="2",
        ATTENTION_GRPC_PORT="0",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="50",
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
    )
    try:
        for _ in range(4):
            served(server, 5)
        given = triton.InferInput("inputs", [1, 5], "FP32")
        given.set_data_from_numpy(np.ones((1, 5), np.float32))
        with triton.InferenceServerClient(server.grpc) as client:
            client.infer("lesson", [given], headers={"traceparent": CALLER})

        until(lambda: len(collector.spans) >= 21 * 5)
        requests = [span for _, span in collector.spans if span.kind == 2]
        assert len({instance for instance, _ in collector.spans}) == 2
        assert sorted(span.name for span in requests) == sorted(
            ["POST /v1/attention"] * 20 + ["inference.GRPCInferenceService/ModelInfer"]
        )
        (remote,) = (span for span in requests if span.name.endswith("ModelInfer"))
        assert remote.trace_id == TRACE.to_bytes(16)
        assert remote.parent_span_id == PARENT.to_bytes(8)
        for span in requests:
            below = [stage for _, stage in collector.spans if stage.parent_span_id == span.span_id]
            assert sorted(stage.name for stage in below) == sorted(STAGES)

        collector.shutdown()
        collector.server_close()
        served(server, 50)
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()
