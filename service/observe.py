"""The outermost layer: request ids, one count and one timing per request, errors shaped once.

What is kept of each, `Records` knows.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from models.errors import AttentionError
from service.errors import BackendFailed, ClientGone, ClientTimeout, DeadlineExceeded, Draining, InternalError
from service.exchange import Application, Exchange, Headers, Message, Receive, Scope, Send
from service.logs import outline
from service.problems import Dialect, dialect_of, problem
from service.records import Records

log = logging.getLogger(__name__)

LINGER_S = 2.0
"""After an answer that left a body unread, how long the rest is read and thrown away before the connection is closed:
a socket closed with bytes unread resets the connection, and the answer is lost to a client that is still sending."""


def ours(error: BaseException, exchange: Exchange) -> AttentionError:
    """The error as one of ours; if it is our fault, the log says which request met it."""
    request = exchange.request_id.decode()
    known = {"request_id": request}
    if isinstance(error, AttentionError):
        found = error
        if isinstance(error, BackendFailed):
            log.error("request %s failed: %s", request, error, extra=known)
    else:
        found = InternalError("something unforeseen went wrong on our side; it is logged under this instance id")
        log.error("request %s failed\n%s", request, outline(error), extra=known)
        log.debug("request %s failed", request, exc_info=error, extra=known)
    if exchange.details is not None:
        exchange.details.problem = found.code
    return found


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

    def __init__(self, application: Application, records: Records) -> None:
        """Observe `application`, and tell `records`."""
        self._application, self._records = with_problems(application), records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        exchange = Exchange(scope)
        scope["exchange"] = exchange
        self._records.begun(exchange, scope["method"], scope["path"])
        details = exchange.details

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = identified(message.get("headers", ()), exchange)
            elif details is not None:
                details.sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._application(scope, receive, observed_send)
        finally:
            if exchange.route == "unmatched" and (matched := scope.get("route")) is not None:
                exchange.route = getattr(matched, "path", exchange.route)
            self._records.answered(exchange, scope["method"])


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
