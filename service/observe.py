"""The outermost layer: request ids, one count and one timing per request, one log line, errors shaped once."""

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from models.errors import AttentionError
from service.errors import ClientGone, InternalError
from service.metrics import Metrics
from service.problems import MEDIA_TYPE, outcome_of, problem

log = logging.getLogger(__name__)
access_log = logging.getLogger("service.access_log")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PRINTABLE = re.compile(rb"[\x20-\x7e]{1,128}")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Exchange:
    """What is known of a request in flight.

    Attributes:
        request_id: the caller's, or made.
        arrived: when its headers were read, by `time.monotonic`.
        headers: lower-case names to values; of repeated ones the last.
        route: template of the route that took it, `unmatched` until one did.
        status: of the answer, once it began.
        close: whether the connection is to be closed after the answer.
    """

    __slots__ = ("arrived", "close", "headers", "request_id", "route", "status")

    def __init__(self, scope: Scope) -> None:
        self.arrived = time.monotonic()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id")
        self.request_id = given if given is not None and PRINTABLE.fullmatch(given) else uuid.uuid4().hex.encode()
        self.route = "unmatched"
        self.status = 0
        self.close = False

    def header(self, name: bytes) -> str:
        """A header's value, empty if it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")


class Observe:
    """ASGI middleware around everything else.

    Each received request ends in exactly one outcome counter, whatever happens to it.
    """

    def __init__(self, application: Application, metrics: Metrics) -> None:
        """Observe `application`."""
        self._application, self._metrics = application, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        exchange = Exchange(scope)
        scope["exchange"] = exchange
        self._metrics.received.inc()
        self._metrics.in_progress.inc()

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = message["headers"] = list(message.get("headers", ()))
                headers.append((b"x-request-id", exchange.request_id))
                if exchange.close:
                    headers.append((b"connection", b"close"))
            await send(message)

        try:
            await self._guarded(exchange, scope, receive, observed_send)
        finally:
            self._count(exchange, scope)

    async def _guarded(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._application(scope, receive, send)
        except ClientGone:
            exchange.status = 499
        except Exception as error:
            if not isinstance(error, AttentionError):
                log.exception("request %s failed", exchange.request_id.decode())
                error = InternalError(
                    "something unforeseen went wrong on our side; it is logged under this instance id"
                )
            if exchange.status:  # too late to say anything else than that the answer is broken
                exchange.status = 500
                raise
            await send_problem(error, exchange, send)

    def _count(self, exchange: Exchange, scope: Scope) -> None:
        elapsed = time.monotonic() - exchange.arrived
        route = exchange.route
        if route == "unmatched" and (matched := scope.get("route")) is not None:
            route = getattr(matched, "path", route)
        status = exchange.status or 499  # no answer was begun: the client left
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.in_progress.dec()
        self._metrics.requests.labels(route, method, str(status), outcome_of(status)).inc()
        self._metrics.duration.labels(route).observe(elapsed)
        if access_log.isEnabledFor(logging.DEBUG):
            access_log.debug("%s %s %s %d %.3f ms", exchange.request_id.decode(), method, route, status, elapsed * 1e3)


async def send_problem(error: AttentionError, exchange: Exchange, send: Send) -> None:
    """Answer with a problem."""
    status, body, extra = problem(error, exchange.request_id.decode())
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
