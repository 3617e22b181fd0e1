"""Log lines are for whoever runs the service: one form for all, and nothing in them that is a caller's own."""

import asyncio
import io
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException
from wire import JSON, NPY, SAFETENSORS, asgi, call, connect, npy, raw, safetensors_file, send

from service import logs
from service.app import create_app
from service.exchange import Exchange, Work
from service.logs import JsonFormatter, outline
from service.metrics import Metrics
from service.records import Records
from service.routes.tensors import TensorEndpoint
from service.settings import Settings
from tests.serving import Server, start_server

MARK = "zq81secret"
"""In everything that a caller sends, but its request id."""
NUMBER = 0.731509172
"""The same of numbers."""
KEYS = {name: f"{name}-{MARK}" for name in ("api", "admin", "tutor", "signing")}
BODY = json.dumps({"model": "lesson", "inputs": [[1, 0, 0, 0, 0.5], [0, 1, 0, 0, 0.5]]}).encode()


@contextmanager
def json_lines(level: str = "INFO") -> Iterator[list[dict[str, Any]]]:
    """What loggers of the service write meanwhile, as JSON."""
    stream, found = io.StringIO(), []
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("worker 3"))
    logger = logging.getLogger("service")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        found += map(json.loads, stream.getvalue().splitlines())


# ---- one line


def test_a_line_is_an_object_with_what_every_line_has():
    """A log store asks for nothing else; the time is UTC, to the millisecond."""
    with json_lines() as lines:
        logging.getLogger("service.x").warning("so many: %d\nand more", 3)

    (line,) = lines
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "warning", "logger": "service.x", "process": "worker 3", "message": "so many: 3\nand more"}


def test_a_line_has_the_fields_and_the_error_it_was_given():
    """Whatever a field is, it is written."""
    with json_lines() as lines:
        try:
            raise KeyError("x")
        except KeyError:
            logging.getLogger("service.x").exception("%(a)s", {"a": Path("/p")}, extra={"request_id": "mine"})

    (line,) = lines
    assert (line["a"], line["message"], line["request_id"]) == ("/p", "/p", "mine")
    assert line["exception"].endswith("KeyError: 'x'")


def test_text_is_what_it_was(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """People read it in a terminal."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.set_up(Settings(), "worker 1")

    logging.getLogger("service.x").info("hello")

    assert capfd.readouterr().err.endswith(" INFO service.x: worker 1: hello\n")


def test_causes_are_outlined_first():
    """The last line is what was raised, as in a traceback."""
    try:
        try:
            raise KeyError("secret")
        except KeyError as error:
            raise ValueError("secret") from error
    except ValueError as error:
        lines = outline(error).splitlines()

    assert [line for line in lines if not line.startswith("  ")] == ["KeyError", "ValueError"]
    assert '("secret")' in "".join(lines), "lines of code are shown, values are not"


def test_errors_in_other_peoples_lines_are_outlined_too(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """uvicorn logs what a request failed by after its answer had begun, and the error may quote it."""
    for name, level, shown in (("uvicorn.error", "info", 0), ("uvicorn.error", "debug", 1), ("service.x", "info", 1)):
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        logs.set_up(Settings(log_level=level))
        logging.getLogger(name).error("failed\n", exc_info=ValueError(MARK))
        written = capfd.readouterr().err
        assert "ValueError" in written
        assert written.count(MARK) == shown, (name, level)


# ---- a request's line


def record(*, access_log: bool = True, status: int = 200, problem: str = "", work: Work | None = None) -> None:
    """Tell of a request from its beginning to its end."""
    records = Records(Metrics(), access_log=access_log)
    exchange = Exchange({"headers": [(b"x-request-id", b"mine")]})
    records.begun(exchange, "POST", "/v1/attention")
    exchange.route, exchange.status = "/v1/attention", status
    if exchange.details is not None:
        exchange.details.received, exchange.details.sent = 7, 9
        exchange.details.problem, exchange.details.work = problem, work
    records.answered(exchange, "POST")


def test_a_request_writes_one_line_with_all_that_is_known_of_it():
    """In the units that its name says."""
    now = time.monotonic()
    stages = [("decode", now, now + 0.001), ("compute", now + 0.002, now + 0.0045)]

    with json_lines() as lines:
        record(work=Work("lesson@1", "onnx", 2, 5, 4, stages))

    (line,) = lines
    del line["time"], line["message"]
    assert line.pop("duration_ms") >= 0
    assert line == {
        "level": "info", "logger": "service.access_log", "process": "worker 3", "request_id": "mine",
        "method": "POST", "route": "/v1/attention", "status": "200", "outcome": "ok", "bytes_in": 7, "bytes_out": 9,
        "model": "lesson@1", "backend": "onnx", "sequences": 2, "tokens": 5, "batch": 4,
        "decode_ms": 1.0, "compute_ms": 2.5,
    }  # fmt: skip


def test_a_failed_request_says_by_what():
    """By the code that its answer has too."""
    with json_lines() as lines:
        record(status=503, problem="queue-full")

    assert [(line["status"], line["outcome"], line["problem"]) for line in lines] == [("503", "rejected", "queue-full")]


def test_without_the_setting_a_request_writes_nothing_and_gathers_nothing(monkeypatch: pytest.MonkeyPatch):
    """It would be most of the log, and costs something."""
    with json_lines("DEBUG") as lines:
        record(access_log=False)

    assert lines == []


# ---- nothing of a caller's own


async def fail(settings: Settings) -> int:
    """A request that meets an error which nobody foresaw, and which quotes it."""

    def broken(_: Any) -> Any:
        raise ValueError(f"cannot read {MARK}") from KeyError(MARK)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorEndpoint, "engine", broken)
        return (await asgi(create_app(settings), "POST", "/v1/attention", BODY, {"X-Request-Id": "mine"})).status


def test_an_unforeseen_error_is_logged_without_what_it_says(settings: Settings):
    """Where it was raised tells more, and is nobody's secret."""
    with json_lines() as lines:
        assert asyncio.run(fail(settings.model_copy(update={"access_log": True}))) == 500

    error, access = lines
    assert (error["level"], error["request_id"], access["request_id"]) == ("error", "mine", "mine")
    assert (access["status"], access["problem"]) == ("500", "internal-error")
    assert "in broken" in error["message"]
    assert "KeyError" in error["message"]
    assert MARK not in json.dumps(lines)


@pytest.fixture(scope="module")
def told(artifacts: Path) -> tuple[list[str], list[str]]:
    """What a real service wrote about requests full of secrets, and the ids of those requests."""
    server = start_server(
        artifacts,
        ATTENTION_WORKERS="2",
        ATTENTION_GRPC_PORT="0",
        ATTENTION_LOG_FORMAT="json",
        ATTENTION_ACCESS_LOG="true",
        ATTENTION_TRACING="true",
        OTEL_TRACES_SAMPLER="always_off",
        ATTENTION_API_KEYS=KEYS["api"],
        ATTENTION_ADMIN_KEYS=KEYS["admin"],
        ATTENTION_TUTOR_KEYS=KEYS["tutor"],
        ATTENTION_SIGNING_KEY=KEYS["signing"],
        ATTENTION_DRAIN_GRACE_S="0",
    )
    try:
        asked = tell_all(server)
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()
    return server.log, asked


def tell_all(server: Server) -> list[str]:
    """Secrets in every place that a request has; the ids of the requests, in their order."""
    asked: list[str] = []
    statuses = set()

    def ask(path: str, body: bytes | None, method: str = "POST", kind: str = JSON, **headers: str) -> None:
        asked.append(f"request-{len(asked)}")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        known = {"Authorization": f"Bearer {KEYS['api']}"} | named
        marked = {"Content-Type": kind, "X-Request-Id": asked[-1], "User-Agent": MARK, "Cookie": f"a={MARK}"}
        statuses.add(call(server.url, method, path, body, known | marked).status)

    def document(**fields: Any) -> bytes:
        return json.dumps(fields).encode()

    row = [NUMBER] * 5
    ask("/v1/attention", document(model="lesson", inputs=[row]))
    ask("/v1/attention?model=lesson", npy(np.full((1, 5), NUMBER, np.float32)), kind=NPY)
    ask("/v1/attention?model=lesson", npy(np.full((1, 5), NUMBER, np.float32))[:-3], kind=NPY)
    ask("/v1/attention", safetensors_file({MARK: np.full((1, 5), NUMBER, np.float32)}), kind=SAFETENSORS)
    ask("/v1/attention", document(model="lesson", inputs=[row]), kind=f"text/{MARK}")
    ask(f"/v1/attention?return={MARK}&model={MARK}", document(inputs=[row]))
    ask("/v1/attention", document(model=MARK, inputs=[row]))
    ask("/v1/attention", document(model="lesson", inputs=[[NUMBER, MARK]]))
    ask("/v1/attention", document(model="lesson", inputs=[[NUMBER, NUMBER]]))
    ask("/v1/attention", document(**{MARK: NUMBER}))
    ask("/v1/attention", f'{{"inputs": [[{NUMBER}, "{MARK}'.encode())
    ask("/v1/attention", document(inputs=[row]), X_Request_Timeout_Ms=MARK)
    ask("/v1/attention", document(inputs=[row]), Content_Encoding=MARK)
    ask("/v1/attention", MARK.encode(), Content_Encoding="gzip")
    ask("/v1/attention", document(inputs=[row]), Authorization=f"Bearer {MARK}")
    ask("/v1/attention", document(inputs=[row]), Authorization=f"Basic {MARK}")
    ask("/v1/attention", document(inputs=[row]), traceparent=f"00-{MARK}-01")
    ask("/v1/text/attention", document(text=MARK))
    ask("/v1/explain", document(inputs=[[NUMBER, MARK]]))
    ask("/v1/exercises", document(level=MARK))
    ask("/v1/exercises/grade", document(token=MARK, answers={MARK: NUMBER}))
    ask("/v2/models/lesson/infer", document(inputs=[{"name": MARK, "shape": [1], "datatype": MARK, "data": [NUMBER]}]))
    ask(f"/v2/models/{MARK}/infer", document(inputs=[]))
    ask(f"/v1/models/{MARK}/load", b"", X_API_Key=KEYS["admin"])
    ask(f"/v1/models/{MARK}/load", b"")
    ask(f"/{MARK}?{MARK}={MARK}", None, "GET")
    ask(f"/v1/attention?{MARK}", None, "PATCH")
    for torn in (f"{MARK} {MARK}\r\n\r\n", f"{MARK.upper()} / HTTP/1.1\r\n\r\n"):  # not HTTP, and no request
        with raw(server) as connection:
            connection.sendall(torn.encode())
            assert b"400" in connection.recv(100)
    inputs = triton.InferInput(MARK, [1, 1], "FP32")
    inputs.set_data_from_numpy(np.full((1, 1), NUMBER, np.float32))
    asked.append("request-grpc")
    metadata = {"authorization": f"Bearer {KEYS['api']}", "x-request-id": asked[-1], "x-mine": MARK}
    with triton.InferenceServerClient(server.grpc) as client, pytest.raises(InferenceServerException):
        client.infer("lesson", [inputs], headers=metadata)
    connection = connect(server.url)
    for _ in range(4):  # the last of them take the short way
        asked.append("same")
        headers = {"Content-Type": JSON, "X-API-Key": KEYS["api"], "X-Request-Id": asked[-1]}
        statuses.add(send(connection, "POST", "/v1/attention", document(model="lesson", inputs=[row]), headers).status)
    connection.close()
    assert statuses >= {200, 400, 401, 403, 404, 405, 415, 422}
    return asked


@pytest.mark.server
@pytest.mark.timeout(300)
def test_no_secret_and_no_number_of_a_request_is_in_the_log(told: tuple[list[str], list[str]]):
    """Keys, headers, bodies, queries and paths: right, wrong and torn."""
    written, _ = told

    found = [line for line in written if MARK in line.lower() or str(NUMBER)[:6] in line]

    assert found == []


@pytest.mark.server
def test_every_request_has_one_line_with_its_id(told: tuple[list[str], list[str]]):
    """Of whichever worker, by whichever way."""
    written, asked = told
    lines = [json.loads(line) for line in written if line.startswith("{")]
    access = [line for line in lines if line["logger"] == "service.access_log" and line["route"] != "/metrics"]

    assert sorted(line["request_id"] for line in access) == sorted(asked)
    assert {line["process"] for line in access} <= {"worker 0", "worker 1"}
    for line in access:
        assert len(line["trace_id"]) == 32
        assert {"method", "route", "status", "outcome", "duration_ms", "bytes_in", "bytes_out"} <= line.keys()
    computed = [line for line in access if line["request_id"].startswith("same")]
    assert [line["outcome"] for line in computed] == ["ok"] * 4
    assert all(line["bytes_in"] and line["bytes_out"] and line["compute_ms"] > 0 for line in computed)
    refused = [line for line in access if line["outcome"] == "invalid"]
    assert all(line["problem"] for line in refused)


@pytest.mark.server
def test_every_line_of_the_log_is_json(told: tuple[list[str], list[str]]):
    """Those of the supervisor, the workers and uvicorn alike; what is said to people at the start is no log."""
    written, _ = told
    lines = [json.loads(line) for line in written if line.startswith("{")]
    others = "".join(line for line in written if not line.startswith("{"))

    assert {"service.workers.supervisor", "service.runtime", "service.access_log"} <= {line["logger"] for line in lines}
    assert "uvicorn.error" in {line["logger"] for line in lines}
    assert "Traceback" not in others
    assert not any(f" {level} " in others for level in ("INFO", "WARNING", "ERROR"))


def test_a_key_that_cannot_be_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    """What is wrong with it is."""
    from service.errors import ConfigurationError
    from service.settings import load_settings

    monkeypatch.setenv("ATTENTION_SIGNING_KEY", MARK * 200)
    with pytest.raises(ConfigurationError, match="ATTENTION_SIGNING_KEY: ") as refused:
        load_settings()

    assert MARK not in str(refused.value)
