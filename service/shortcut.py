"""The short way of small requests whose head is, byte for byte, one that came before.

Clients send the same head again and again. What it says is found out once, by the ordinary way, and remembered. Of a
request with such a head, whose body has come whole with it, only the body is read: no parser, no ASGI, no task. It is
queued at once, and its answer is written when the queue calls back, with those of its batch.

The short way only takes what it can queue. Whatever is out of the ordinary, or wrong, is declined before anything has
been counted, and takes the ordinary way, which says what there is to be said. The rules are the same objects on both
ways: `Exchange`, `Access`, `Call`, `Inference`, the queue and `problem_answer`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from models.errors import AttentionError
from service.access import guarded
from service.body import squeezed
from service.engine import LocalEngine
from service.errors import ClientGone
from service.exchange import Exchange, Headers, Scope
from service.observe import failed, identified, problem_answer
from service.problems import dialect_of
from service.routes.base import RawRoutes
from service.routes.tensors import Call, Inference, TensorRoute
from service.runtime import Runtime

MOST_HEAD = 2_048
"""Bytes of a head up to which it is remembered."""

MOST_BODY = 1 << 19
"""Bytes of a body up to which the short way is taken."""

MOST_HEADS = 256
"""Heads that are remembered."""

MOST_SEEN = 4_096
"""Heads of which it is remembered that they came once: most that differ from all others never come again."""

TOGETHER = 1 << 14
"""Bytes of an answer up to which it leaves when all of its batch have been written."""

Reply = Callable[[int, Headers, bytes], bool]
"""Writes an answer: status, headers, body. Whether all of it has been taken; else `Straight.left` is called later."""

PLAIN = ("", "identity")
UNUSUAL = frozenset({b"connection", b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade"})
"""Headers that say how the connection or the body is to be treated."""


@dataclass(slots=True)
class Known:
    """What is known of every request with one head.

    Attributes:
        length: bytes of the body.
        scope: as ASGI has it.
        headers: see `Exchange`.
        route: what takes it.
        guarded: whether a key may be asked for.
        call: how it is read and answered by `engine`, None before that was asked.
        large: whether a body or an answer was too long for the short way: nobody has to read the next such request
            twice to see that it is so again.
    """

    length: int
    scope: Scope
    headers: dict[bytes, bytes]
    route: TensorRoute
    guarded: bool
    engine: LocalEngine | None = None
    call: Call | None = None
    large: bool = False


class Shortcut:
    """The heads that came before, and what becomes of requests that have them."""

    def __init__(self, runtime: Runtime, routes: RawRoutes) -> None:
        """Serve the tensor routes among `routes`."""
        self._runtime, self._routes = runtime, routes
        self._known: dict[bytes, Known] = {}
        self._seen: set[int] = set()

    def find(self, head: bytes) -> Known | None:
        """What is known of a head."""
        return self._known.get(head)

    def learn(self, head: bytes, scope: Scope, length: int) -> None:
        """Remember a head that came with its whole body, if requests with it can take the short way.

        Args:
            head: as it came.
            scope: what it was understood as; such as keeps its connection open.
            length: bytes that came behind it.
        """
        if length > MOST_BODY:
            return
        if hash(head) not in self._seen:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(hash(head))
            return
        headers = dict(scope["headers"])
        route, parameters = self._routes.find(scope["path"])
        if (
            not isinstance(route, TensorRoute)
            or scope["method"] not in route.methods
            or headers.get(b"content-length") != str(length).encode()
            or headers.get(b"content-encoding", b"").decode("latin-1").strip().lower() not in PLAIN
            or not UNUSUAL.isdisjoint(headers)
        ):
            return
        if len(self._known) >= MOST_HEADS:
            self._known.clear()
        kept = {name: scope[name] for name in ("type", "method", "path", "query_string", "headers", "client")}
        kept["path_params"] = parameters
        self._known[head] = Known(length, kept, headers, route, guarded(scope["path"]))

    def takes(self, known: Known) -> bool:
        """Whether a request may be taken, as far as its head says."""
        runtime = self._runtime
        return (
            not known.large
            and not runtime.draining
            and not runtime.access.limited
            and runtime.intake.has_room(known.length)
        )

    def hold(self, size: int) -> None:
        """Count so many more bytes of bodies that have come in part."""
        self._runtime.intake.hold(size)

    def take(self, known: Known, body: bytes, client: tuple[str, int] | None, reply: Reply) -> "Straight | None":
        """Queue a request; it calls `reply` later, from the event loop. None if it has to take the ordinary way.

        Args:
            known: what is known of its head.
            body: whole.
            client: its address.
            reply: writes the answer; not called any more after `Straight.leave`.
        """
        if not self.takes(known):
            return None
        runtime = self._runtime
        exchange = Exchange(known.scope, known.headers)
        exchange.route, exchange.unread = known.route.path, False
        try:
            if known.guarded:
                runtime.access.caller(exchange, client)
            engine = runtime.engine
            if known.call is None or known.engine is not engine:
                known.engine, known.call = engine, known.route.call(exchange, known.scope, engine)
            inference = known.route.begin(exchange, known.call, engine)
            if inference.call.is_long(body):
                known.large = True
                return None
            prepared = inference.prepare(body)
        except Exception:  # noqa: BLE001 - it is raised again on the ordinary way
            return None
        if not inference.writes_at_once(prepared, len(body)):
            known.large = True
            return None
        straight = Straight(runtime, known, exchange, inference, reply)
        runtime.records.begun(exchange, known.scope["method"], known.scope["path"])
        if exchange.details is not None:
            exchange.details.received = len(body)
        try:
            ticket = inference.queue(prepared)
        except Exception as error:  # noqa: BLE001 - as above
            asyncio.get_running_loop().call_soon(straight.fail, error)
        else:
            ticket.when_done(straight.answer)
        return straight


class Straight:
    """A request that takes the short way, from when it is queued."""

    __slots__ = ("_exchange", "_failed", "_gone", "_inference", "_known", "_reply", "_runtime")

    def __init__(self, runtime: Runtime, known: Known, exchange: Exchange, inference: Inference, reply: Reply) -> None:
        self._runtime, self._known = runtime, known
        self._exchange, self._inference, self._reply = exchange, inference, reply
        self._gone = self._failed = False

    def leave(self) -> None:
        """The client has left: what is queued is not computed, and nobody is told of what was."""
        self._gone = True
        self._inference.cancel("the client left before its answer")

    def answer(self) -> Callable[[], None] | None:
        """The queue has its verdicts, or an error; what sends a short answer is given back, see `tickets.tell`."""
        future = self._inference.submission.ticket.future
        if (error := future.exception()) is not None:  # not raised: it would hold this frame, and that the future
            self.fail(error)
            return None
        inference = self._inference
        try:
            inference.computed()
            written = inference.write(inference.submission.output_now(future.result()))
            body = written.content if isinstance(written.content, bytes) else b"".join(written.content())
            if written.coding:
                body = squeezed([body], written.coding)
            headers = inference.head(written, len(body))
        except Exception as fault:  # noqa: BLE001 - it is answered, and logged if nobody foresaw it
            self.fail(fault)
            return None
        if len(body) < TOGETHER:
            return partial(self._succeed, headers, body)
        self._succeed(headers, body)
        return None

    def _succeed(self, headers: Headers, body: bytes) -> None:
        """It has been written: send it."""
        self._inference.answering()
        taken = self._send(200, headers, body)
        self._inference.answered()
        if taken:
            self.left()

    def fail(self, error: BaseException) -> None:
        """It could not be queued, or computed, or written."""
        exchange, self._failed, taken = self._exchange, True, True
        known: AttentionError = failed(error, exchange)
        if isinstance(known, ClientGone):
            exchange.status = 499
        else:
            taken = self._send(*problem_answer(known, exchange, dialect_of(self._known.scope["path"])))
        if taken:
            self.left()

    def left(self) -> None:
        """All of its answer has been taken, or nobody will."""
        self._inference.end(failed=self._failed)
        self._runtime.records.answered(self._exchange, self._known.scope["method"])

    def _send(self, status: int, headers: Headers, body: bytes) -> bool:
        self._exchange.status = status
        if self._exchange.details is not None:
            self._exchange.details.sent = len(body)
        return self._gone or self._reply(status, identified(headers, self._exchange), body)
