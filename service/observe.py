"""The outermost layer: request ids, one count and one timing per request, one log line, errors shaped once."""

import asyncio
import contextlib
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from random import getrandbits
from typing import Any

from models.errors import AttentionError
from service.errors import ClientGone, ClientTimeout, DeadlineExceeded, Draining, InternalError
from service.metrics import Metrics
from service.problems import Dialect, dialect_of, outcome_of, problem

log = logging.getLogger(__name__)
access_log = logging.getLogger("service.access_log")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

PRINTABLE = re.compile(rb"[\x20-\x7e]{1,128}")
LINGER_S = 2.0
"""After an answer that left a body unread, how long the rest is read and thrown away before the connection is closed:
a socket closed with bytes unread resets the connection, and the answer is lost to a client that is still sending."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Exchange:
    """What is known of a request in flight.

    Attributes:
        request_id: the caller's, or made.
        arrived: when its headers were read, by `time.monotonic`.
        deadline: when the transport says that nobody waits any more, by `time.monotonic`; HTTP never says so.
        headers: lower-case names to values; of repeated ones the last.
        route: template of the route that took it, `unmatched` until one did.
        status: of the answer, once it began.
        close: whether the connection is to be closed after the answer.
        unread: whether some of the body may not have been read.
    """

    __slots__ = ("arrived", "close", "deadline", "headers", "request_id", "route", "status", "unread")

    def __init__(self, scope: Scope) -> None:
        self.arrived = time.monotonic()
        self.deadline = math.inf
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id")
        self.request_id = given if given is not None and PRINTABLE.fullmatch(given) else b"%032x" % getrandbits(128)
        self.route = "unmatched"
        self.status = 0
        self.close = False
        self.unread = True

    def header(self, name: bytes) -> str:
        """A header's value, empty if it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")


def ours(error: BaseException, exchange: Exchange) -> AttentionError:
    """The error as one of ours; one that nobody foresaw is logged."""
    if isinstance(error, AttentionError):
        return error
    log.error("request %s failed", exchange.request_id.decode(), exc_info=error)
    return InternalError("something unforeseen went wrong on our side; it is logged under this instance id")


def failed(error: BaseException, exchange: Exchange) -> AttentionError:
    """The same, of a request that ends with it."""
    known = ours(error, exchange)
    # It may have been routed before the service began to stop.
    exchange.close = exchange.close or isinstance(known, Draining)
    return known


def identified(headers: Iterable[tuple[bytes, bytes]], exchange: Exchange) -> Headers:
    """The headers of an answer, with what is the same for all answers."""
    found = [*headers, (b"x-request-id", exchange.request_id)]
    if exchange.close:
        found.append((b"connection", b"close"))
    return found


def ended(metrics: Metrics, exchange: Exchange, method: str, status: str, outcome: str) -> None:
    """Count a request that has ended, once, and write its log line."""
    elapsed = time.monotonic() - exchange.arrived
    metrics.ended(exchange.route, method, status, outcome, elapsed)
    if access_log.isEnabledFor(logging.DEBUG):
        request = exchange.request_id.decode()
        access_log.debug("%s %s %s %s %.3f ms", request, method, exchange.route, status, elapsed * 1e3)


def count(metrics: Metrics, exchange: Exchange, method: str) -> None:
    """Count a request over HTTP that has ended; see `ended`."""
    status = exchange.status or 499  # no answer was begun: the client left
    ended(metrics, exchange, method if method in METHODS else "other", str(status), outcome_of(status))


def with_problems(application: Application) -> Application:
    """`application`, its errors made answers: for a layer outside of it that has something to add to every answer."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        exchange: Exchange = scope["exchange"]
        try:
            await application(scope, receive, send)
        except ClientGone:
            exchange.status = 499
        except Exception as error:
            known = failed(error, exchange)
            if exchange.status:  # too late to say anything else than that the answer is broken
                exchange.status = 500
                raise
            await send_problem(known, exchange, dialect_of(scope["path"]), receive, send)

    return guarded


class Observe:
    """ASGI middleware around everything else.

    Each received request ends in exactly one outcome counter, whatever happens to it.
    """

    def __init__(self, application: Application, metrics: Metrics) -> None:
        """Observe `application`."""
        self._application, self._metrics = with_problems(application), metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        exchange = Exchange(scope)
        scope["exchange"] = exchange
        self._metrics.begun()

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = identified(message.get("headers", ()), exchange)
            await send(message)

        try:
            await self._application(scope, receive, observed_send)
        finally:
            if exchange.route == "unmatched" and (matched := scope.get("route")) is not None:
                exchange.route = getattr(matched, "path", exchange.route)
            count(self._metrics, exchange, scope["method"])


def problem_answer(error: AttentionError, exchange: Exchange, dialect: Dialect) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an answer that is a problem."""
    status, body, extra = problem(error, exchange.request_id.decode(), dialect)
    headers = [(b"content-type", dialect.media_type.encode()), (b"content-length", str(len(body)).encode()), *extra]
    return status, headers, body


async def send_problem(
    error: AttentionError, exchange: Exchange, dialect: Dialect, receive: Receive, send: Send
) -> None:
    """Answer with a problem."""
    status, headers, body = problem_answer(error, exchange, dialect)
    linger = exchange.close and exchange.unread and not isinstance(error, (ClientTimeout, DeadlineExceeded))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": linger})
    if linger:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body"})
