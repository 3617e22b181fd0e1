"""One call: who may make it, its id, one count and one log line for each, errors as gRPC has them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn
from urllib.parse import quote, unquote

import grpc

from models.errors import AttentionError
from service.errors import DeadlineExceeded, Draining, TooLarge
from service.exchange import Exchange
from service.observe import ours
from service.problems import OPEN_INFERENCE, outcome_of, problem, rpc_code_of, status_of, text_of, type_of
from service.records import RPC
from service.runtime import Runtime

Read = Callable[[], Awaitable[bytes]]
Handle = Callable[["RpcExchange", Read], Awaitable[Any]]
"""Answers a message with another, or with the bytes of one; may raise an `AttentionError`."""

LAG_S = 0.05
"""A client that gives up at its deadline is heard a moment before that passes here: it was sent as so long from now."""

MOST_DETAILS = 6_000
"""Bytes of a status message, percent-encoded as gRPC sends it: clients take 8 KiB of metadata."""


class RpcExchange(Exchange):
    """What is known of a request in flight.

    Attributes:
        trailing: metadata to be sent behind the answer.
    """

    __slots__ = ("client", "trailing")

    def __init__(self, context: Any, route: str) -> None:
        """A request that has just arrived, by gRPC's context of the call."""
        pairs = context.invocation_metadata() or ()
        super().__init__({"headers": [(k.encode(), v.encode() if isinstance(v, str) else v) for k, v in pairs]})
        self.route = route
        if (left := context.time_remaining()) is not None:
            self.deadline = self.arrived + left
        self.client = address(context.peer())
        self.trailing = [("x-request-id", self.request_id.decode())]


def address(peer: str) -> tuple[str, int] | None:
    """Host and port in gRPC's name of a peer, such as `ipv4:10.0.0.7:50512` or `ipv6:%5B::1%5D:50512`."""
    kind, _, where = unquote(peer).partition(":")
    host, _, port = where.rpartition(":")
    return (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdecimal() else None


def coding_of(message: bytes) -> str:
    """What a message is compressed with, empty for nothing: no message here can begin as these formats do."""
    if message[:2] == b"\x1f\x8b":
        return "gzip"
    return "deflate" if message[:1] == b"\x78" and int.from_bytes(message[:2], "big") % 31 == 0 else ""


class Calls:
    """What every method needs.

    Attributes:
        runtime: the parts that are served with.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Serve with the parts of `runtime`, until `stop`."""
        self.runtime = runtime
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End what would otherwise go on for as long as its client likes."""
        self._stopping.set()

    async def stopped(self, within_s: float) -> bool:
        """Whether it is time to end; waits for that a while."""
        try:
            await asyncio.wait_for(self._stopping.wait(), within_s)
        except TimeoutError:
            return False
        return True

    def unary(self, service: str, method: str, handle: Handle, *, guarded: bool = True) -> Any:
        """The handler of a method with one message each way.

        For gRPC it is one with a stream of messages, which looks the same from outside: so keys and rates are looked at
        before the message has come.
        """
        route = f"/{service}/{method}"

        async def call(_: Any, context: Any) -> bytes:
            exchange = RpcExchange(context, route)
            answer = await self.attempt(exchange, context, handle, lambda: self.read(context), guarded=guarded)
            if isinstance(answer, AttentionError):
                await abort(context, exchange, answer)
            context.set_trailing_metadata(exchange.trailing)
            return answer

        return grpc.stream_unary_rpc_method_handler(call)

    async def attempt(
        self, exchange: RpcExchange, context: Any, handle: Handle, read: Read, *, guarded: bool
    ) -> bytes | AttentionError:
        """The answer to a request, or what it failed by; counted once, however it ends."""
        self.runtime.records.begun(exchange, RPC, exchange.route)
        details = exchange.details

        async def received() -> bytes:
            message = await read()
            if details is not None:
                details.received = len(message)
            return message

        code, outcome = "CANCELLED", "cancelled"
        try:
            if guarded:
                await self.runtime.access.check(exchange, exchange.client)
            answer = await handle(exchange, received)
            content: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
            code, outcome = "OK", "ok"
            if details is not None:
                details.sent = len(content)
            return content
        except asyncio.CancelledError:  # gRPC does that when the client leaves and when its deadline passes
            if (left := context.time_remaining()) is not None and left <= LAG_S:
                code, outcome = "DEADLINE_EXCEEDED", "expired"
            raise
        except Exception as error:  # noqa: BLE001 - it is answered, and logged if nobody foresaw it
            known = ours(error, exchange)
            code, outcome = rpc_code_of(type(known)), outcome_of(status_of(type(known), OPEN_INFERENCE))
            return known
        finally:
            self.runtime.records.ended(exchange, RPC, code, outcome)

    async def read(self, context: Any) -> bytes:
        """The one message of a call, decompressed here, where that has a limit."""
        message = await context.read()
        if message is grpc.aio.EOF:
            if context.time_remaining() == 0:
                raise DeadlineExceeded("the deadline passed before the message had come")
            # gRPC answers by itself what is larger than allowed, and hides it; that none was sent looks the same.
            self.runtime.metrics.rejected.labels("body").inc()
            raise TooLarge(f"no message came that has at most {self.runtime.settings.max_body_mib} MiB")
        return await self._expanded(message)

    async def next(self, context: Any) -> Read | None:
        """What gives the next message of a stream, or None when its client has sent all.

        Raises:
            Draining: if the service stops before it comes.
        """
        reading = asyncio.ensure_future(context.read())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Draining("the service is shutting down; try another replica")
            message = reading.result()
        finally:
            reading.cancel()
            stopping.cancel()
        return None if message is grpc.aio.EOF else lambda: self._expanded(message)

    async def _expanded(self, message: bytes) -> bytes:
        coding = coding_of(message)
        return await self.runtime.intake.expanded(message, coding) if coding else message


def details_of(error: AttentionError) -> str:
    """The text of an error, as much of it as fits."""
    text = text_of(error)
    return text if len(quote(text)) <= MOST_DETAILS else f"{text[: MOST_DETAILS // 12 - 1]}…"


async def abort(context: Any, exchange: RpcExchange, error: AttentionError) -> NoReturn:
    """End a call with an error; the trailing metadata have what HTTP has in a body and in headers."""
    _, _, headers = problem(error, exchange.request_id.decode(), OPEN_INFERENCE)
    exchange.trailing.append(("problem", type_of(type(error))))
    exchange.trailing += [(name.decode(), value.decode()) for name, value in headers]
    code = getattr(grpc.StatusCode, rpc_code_of(type(error)))
    await context.abort(code, details_of(error), tuple(exchange.trailing))
    raise AssertionError  # `abort` has raised
