"""The outermost layer: ids, one outcome per request, errors made answers."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service import observe
from service.errors import (
    BackendFailed,
    ClientGone,
    ClientTimeout,
    DeadlineExceeded,
    Draining,
    NotFound,
    QueueFull,
    TooLarge,
)
from service.metrics import OUTCOMES, Metrics
from service.observe import Observe
from service.records import Records


class Client:
    """Sends one request and keeps what comes back."""

    def __init__(self, messages: list[dict[str, Any]] | None = None, *, stalls: bool = False) -> None:
        self._messages = messages or [{"type": "http.request", "body": b"", "more_body": False}]
        self._stalls = stalls
        self.taken = 0
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if self.taken == len(self._messages) and self._stalls:
            await asyncio.Event().wait()
        message = self._messages[min(self.taken, len(self._messages) - 1)]
        self.taken += 1
        return message

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    def headers(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.sent[0]["headers"] if key == name]

    def problem(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(b"".join(message.get("body", b"") for message in self.sent[1:]))
        return found


def scope(method: str = "POST", **headers: str) -> dict[str, Any]:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": "/x", "headers": raw}


async def ok(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"fine"})


def raising(error: BaseException, *, begun: bool = False, close: bool = False) -> Callable[..., Any]:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        scope["exchange"].close = close
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    return application


def run(application: Any, client: Client | None = None, metrics: Metrics | None = None, **given: Any) -> Client:
    client = client or Client()
    asyncio.run(Observe(application, Records(metrics or Metrics()))(scope(**given), client.receive, client.send))
    return client


def counted(metrics: Metrics) -> dict[tuple[str, str, str, str], float]:
    return {
        (sample.labels["route"], sample.labels["method"], sample.labels["status"], sample.labels["outcome"]):
            sample.value
        for family in metrics.registry.collect() if family.name == "attention_requests"
        for sample in family.samples if sample.name.endswith("_total")
    }  # fmt: skip


# ---- ids


@pytest.mark.parametrize("given", ["a", "x" * 128, "from 7 <b>&~", "0"])
def test_a_callers_id_is_echoed(given: str):
    """1 to 128 printable characters: it is what joins their log to ours."""
    assert run(ok, x_request_id=given).headers(b"x-request-id") == [given.encode()]


@pytest.mark.parametrize("given", [None, "", "x" * 129, "tab\there", "ü", "\x7f", "line\nbreak"])
def test_any_other_id_is_replaced_by_a_new_one(given: str | None):
    """No header injection, no megabyte in the log; and no two requests have the same."""
    headers = {} if given is None else {"x_request_id": given}

    made = [run(ok, **headers).headers(b"x-request-id")[0] for _ in range(2)]

    assert all(len(one) == 32 and one.isalnum() for one in made)
    assert made[0] != made[1]


def test_a_problem_names_the_same_id():
    """`instance` is the request id."""
    client = run(raising(NotFound("no")), x_request_id="mine")

    assert client.headers(b"x-request-id") == [b"mine"]
    assert client.problem()["instance"] == "mine"


# ---- errors


def test_an_error_of_ours_is_its_problem():
    """Raised anywhere, written here."""
    client = run(raising(QueueFull("full", retry_after_s=3)))

    assert client.status == 503
    assert client.headers(b"content-type") == [b"application/problem+json"]
    assert client.headers(b"retry-after") == [b"3"]
    assert client.headers(b"content-length") == [str(len(client.sent[1]["body"])).encode()]
    assert client.problem()["detail"] == "full"


def test_any_other_exception_is_a_500_that_tells_nothing(caplog: pytest.LogCaptureFixture):
    """Where it was raised goes to the log with the id, not to the caller; what it says goes to neither."""
    client = run(raising(ValueError("secret path /etc/passwd")), x_request_id="mine")

    assert client.status == 500
    problem = client.problem()
    assert problem["type"] == "/problems/internal-error"
    text = json.dumps(problem)
    assert not any(word in text for word in ("secret", "ValueError", "Traceback", "passwd"))
    (record,) = caplog.records
    told = record.getMessage()
    assert "request mine failed" in told
    assert "ValueError" in told
    assert f'{Path(__file__).name}", line' in told
    assert "passwd" not in told
    assert (record.request_id, record.exc_info, record.levelno) == ("mine", None, logging.ERROR)


def test_the_log_says_which_request_a_backend_failed_for(caplog: pytest.LogCaptureFixture):
    """What the backend said is logged by itself, of a batch that may be several callers'."""
    run(raising(BackendFailed("the computation failed")), x_request_id="mine")

    (record,) = caplog.records
    assert record.request_id == "mine"


def test_at_the_level_debug_the_log_has_what_the_error_says(caplog: pytest.LogCaptureFixture):
    """For whoever looks for a fault, where requests are nobody's secret."""
    with caplog.at_level(logging.DEBUG, "service.observe"):
        run(raising(ValueError("secret path")))

    assert [record.exc_info is not None for record in caplog.records] == [False, True]


def test_an_error_after_the_answer_has_begun_breaks_it_off():
    """A second answer cannot be sent; the server closes the connection, and it counts as failed."""
    metrics, client = Metrics(), Client()

    with pytest.raises(NotFound):
        run(raising(NotFound("no"), begun=True), client, metrics)

    assert len(client.sent) == 1
    assert counted(metrics) == {("unmatched", "POST", "500", "failed"): 1}


def test_a_client_that_left_gets_no_answer():
    """Nobody is there; it counts as cancelled."""
    metrics = Metrics()

    client = run(raising(ClientGone("gone")), metrics=metrics)

    assert client.sent == []
    assert counted(metrics) == {("unmatched", "POST", "499", "cancelled"): 1}


# ---- closing


def test_an_answer_that_closes_says_so():
    """So that a client does not send its next request into a closed connection."""
    assert run(ok).headers(b"connection") == []
    assert run(raising(NotFound("no"), close=True)).headers(b"connection") == [b"close"]


def test_whoever_is_refused_because_the_service_stops_is_told_that_the_connection_closes():
    """Also one whose request came before it began to stop, and was refused after."""
    assert run(raising(Draining("stopping", retry_after_s=1))).headers(b"connection") == [b"close"]


def test_the_unread_rest_of_a_body_is_read_away_after_the_answer():
    """Closing at once would reset the connection, and a client that is still sending would lose the answer."""
    client = Client([{"type": "http.request", "body": b"x" * 999, "more_body": i < 9} for i in range(10)])

    run(raising(TooLarge("too large"), close=True), client)

    assert client.taken == 10
    assert client.problem()["detail"] == "too large"
    assert [message.get("more_body", False) for message in client.sent[1:]] == [True, False]


@pytest.mark.parametrize("ends", [{"type": "http.disconnect"}, {"type": "http.request", "more_body": False}])
def test_reading_away_ends_when_the_client_has_done(ends: dict[str, Any]):
    """It sent all, or it left."""
    client = Client([{"type": "http.request", "body": b"x", "more_body": True}, ends])

    run(raising(TooLarge("too large"), close=True), client)

    assert client.taken == 2


def test_reading_away_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    """A client that neither sends nor leaves is left alone."""
    monkeypatch.setattr(observe, "LINGER_S", 0.01)
    client = Client([{"type": "http.request", "body": b"x", "more_body": True}], stalls=True)

    run(raising(TooLarge("too large"), close=True), client)

    assert client.sent[-1].get("more_body", False) is False


@pytest.mark.parametrize("error", [ClientTimeout("slow"), DeadlineExceeded("late")])
def test_nothing_is_read_away_of_a_body_that_does_not_come(error: Exception):
    """That client has been waited for long enough."""
    client = Client()

    run(raising(error, close=True), client)

    assert client.taken == 0
    assert len(client.sent) == 2


def test_nothing_is_read_away_of_a_body_that_was_read():
    """There is nothing to wait for."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scope["exchange"].close, scope["exchange"].unread = True, False
        raise TooLarge("the answer")

    client = Client()
    run(application, client)

    assert client.taken == 0
    assert client.headers(b"connection") == [b"close"]


# ---- counting


def test_every_request_ends_in_exactly_one_outcome():
    """Received = the sum of outcomes + in progress, whatever happens, also while requests are running."""

    async def scenario() -> None:
        metrics = Metrics()
        gate = asyncio.Event()

        async def waiting(scope: Any, receive: Any, send: Any) -> None:
            await gate.wait()
            await ok(scope, receive, send)

        async def silent(scope: Any, receive: Any, send: Any) -> None:
            return None

        def start(application: Any, **given: Any) -> "asyncio.Task[None]":
            client = Client()
            observed = Observe(application, Records(metrics))(scope(**given), client.receive, client.send)
            return asyncio.get_running_loop().create_task(observed)

        def sample(name: str) -> float:
            value = metrics.registry.get_sample_value(name)
            assert value is not None
            return value

        def balance() -> tuple[float, float, float]:
            ended = sum(counted(metrics).values())
            return sample("attention_requests_received_total"), ended, sample("attention_requests_in_progress")

        running = [start(waiting) for _ in range(3)]
        doomed = start(waiting)
        bag = [ok, raising(NotFound("no")), raising(QueueFull("full")), raising(ClientGone("gone")),
               raising(KeyError("bug")), raising(DeadlineExceeded("late")), raising(NotFound("no"), begun=True),
               silent]  # fmt: skip
        tasks = [start(application) for application in bag] + [start(ok, method="BREW")]
        await asyncio.gather(*tasks, return_exceptions=True)
        assert balance() == (13, 9, 4)

        doomed.cancel()
        await asyncio.gather(doomed, return_exceptions=True)
        assert balance() == (13, 10, 3)
        gate.set()
        await asyncio.gather(*running)
        assert balance() == (13, 13, 0)

        by_outcome = dict.fromkeys(OUTCOMES, 0.0)
        for (_, _, _, outcome), value in counted(metrics).items():
            by_outcome[outcome] += value
        assert by_outcome == {"ok": 5, "invalid": 1, "rejected": 1, "expired": 1, "cancelled": 3, "failed": 2}
        assert (
            metrics.registry.get_sample_value("attention_request_duration_seconds_count", {"route": "unmatched"}) == 13
        )

    asyncio.run(scenario())


def test_methods_and_routes_are_labels_of_few_values():
    """Whoever makes up methods or paths must not make up time series."""
    metrics = Metrics()

    run(ok, metrics=metrics, method="BREW")
    run(ok, metrics=metrics, method="GET")

    assert set(counted(metrics)) == {("unmatched", "other", "200", "ok"), ("unmatched", "GET", "200", "ok")}


def test_other_protocols_pass_untouched():
    """The lifespan is not a request."""
    metrics, seen = Metrics(), []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(Observe(application, Records(metrics))({"type": "lifespan"}, Client().receive, Client().send))

    assert seen == ["lifespan"]
    assert metrics.registry.get_sample_value("attention_requests_received_total") == 0
