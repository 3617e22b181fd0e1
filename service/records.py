"""What is kept of every request: one count and one timing; where it is asked for, one log line, and spans."""

import logging
import time
from typing import Any

from service.exchange import Details, Exchange
from service.metrics import Metrics
from service.problems import outcome_of
from service.tracing import Tracing

access_log = logging.getLogger("service.access_log")

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

RPC = "GRPC"
"""What metrics and log lines have in the place of an HTTP method."""

UNTRACED = ("/metrics", "/healthz/", "/v2/health/", "/grpc.health.")
"""Where paths begin that are asked for every few seconds, by machines."""

LINE = "%(method)s %(route)s %(status)s %(outcome)s %(duration_ms).3f ms, request %(request_id)s"
TRACED_LINE = f"{LINE}, trace %(trace_id)s"


class Records:
    """Told when a request begins and when it has ended, whichever way it took.

    Attributes:
        metrics: where all of them are counted.
    """

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None, *, access_log: bool = False) -> None:
        """Count in `metrics`, and beside that make spans, or log lines."""
        self.metrics = metrics
        self._tracing, self._logs = tracing, access_log
        self._detailed = tracing is not None or access_log

    def begun(self, exchange: Exchange, method: str, path: str) -> None:
        """The headers of a request have been read.

        Args:
            exchange: the request.
            method: of HTTP, or `RPC`.
            path: without a query, which may hold anything.
        """
        self.metrics.begun()
        if self._detailed:
            exchange.details = details = Details(time.time_ns() - time.monotonic_ns())
            if self._tracing is not None and not path.startswith(UNTRACED):
                began_ns = details.ns(exchange.arrived)
                details.span = span = self._tracing.begin(exchange.headers, _asked(method, path), began_ns)
                known = span.get_span_context()
                details.trace_id = f"{known.trace_id:032x}" if known.is_valid else ""

    def answered(self, exchange: Exchange, method: str) -> None:
        """A request over HTTP has ended, with `exchange.status`."""
        status = exchange.status or 499  # no answer was begun: the client left
        self.ended(exchange, method if method in METHODS else "other", str(status), outcome_of(status))

    def ended(self, exchange: Exchange, method: str, status: str, outcome: str) -> None:
        """A request has ended."""
        now = time.monotonic()
        self.metrics.ended(exchange.route, method, status, outcome, now - exchange.arrived)
        details = exchange.details
        if details is None:
            return
        if self._tracing is not None and details.span is not None:
            self._trace(self._tracing, exchange, details, method, status, outcome, now)
        if self._logs:
            fields = _fields(exchange, details, method, status, outcome, now)
            access_log.info(TRACED_LINE if details.trace_id else LINE, fields)

    def _trace(
        self, tracing: Tracing, exchange: Exchange, details: Details, method: str, status: str, outcome: str, now: float
    ) -> None:
        assert details.span is not None
        failed = outcome == "failed" or status.startswith("5") or status in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        found: dict[str, Any] = {
            "attention.request_id": exchange.request_id.decode(),
            "attention.outcome": outcome,
            "attention.problem": details.problem or None,
            "error.type": details.problem or status if failed else None,
        }
        if method == RPC:
            name = exchange.route.removeprefix("/")
            found["rpc.response.status_code"] = status
        else:
            matched = exchange.route != "unmatched"
            verb = "HTTP" if method == "other" else method
            name = f"{verb} {exchange.route}" if matched else verb
            found |= {
                "http.route": exchange.route if matched else None,
                "http.response.status_code": int(status),
                "http.request.body.size": details.received,
                "http.response.body.size": details.sent,
            }
        stages: list[tuple[str, int, int]] = []
        if (work := details.work) is not None:
            found |= {
                "attention.model": work.model,
                "attention.backend": work.backend,
                "attention.sequences": work.sequences,
                "attention.tokens": work.tokens,
                "attention.batch.sequences": work.batch or None,
            }
            stages = [(stage, details.ns(begin), details.ns(end)) for stage, begin, end in work.stages]
        known = {key: value for key, value in found.items() if value is not None}
        tracing.end(details.span, name, known, stages, details.ns(now), failed=failed)


def _asked(method: str, path: str) -> dict[str, str]:
    """What is known of a request from the start, by OpenTelemetry's semantic conventions."""
    if method == RPC:
        return {"rpc.system.name": "grpc", "rpc.method": path.removeprefix("/")}
    known = method if method in METHODS else "_OTHER"
    return {"http.request.method": known, "url.path": path, "url.scheme": "http"}


def _fields(exchange: Exchange, details: Details, method: str, status: str, outcome: str, now: float) -> dict[str, Any]:
    """A log line's. Nothing of a body, a query or a header but the request id is in it."""
    fields: dict[str, Any] = {
        "request_id": exchange.request_id.decode(),
        "method": method,
        "route": exchange.route,
        "status": status,
        "outcome": outcome,
        "duration_ms": round((now - exchange.arrived) * 1e3, 3),
        "bytes_in": details.received,
        "bytes_out": details.sent,
    }
    if details.trace_id:
        fields["trace_id"] = details.trace_id
    if details.problem:
        fields["problem"] = details.problem
    if (work := details.work) is not None:
        fields |= {
            "model": work.model,
            "backend": work.backend,
            "sequences": work.sequences,
            "tokens": work.tokens,
            "batch": work.batch,
        }
        fields |= {f"{stage}_ms": round((end - begin) * 1e3, 3) for stage, begin, end in work.stages}
    return fields
