"""The short way of requests whose head is one that came before, but for the length of the body.

Clients send the same head again and again. What it says is found out once, by the ordinary way, and remembered. Of a
request with such a head, when its body has come whole, only the body is read: no parser, no ASGI, no task. It is queued
at once, and its answer is written when the queue calls back, with those of its batch. Long text is read and written in
the lane, which calls back too.

The short way only takes what it can queue. Whatever is out of the ordinary, or wrong, is declined before anything has
been counted, and takes the ordinary way, which says what there is to be said. The rules are the same objects on both
ways: `Exchange`, `Access`, `Call`, `Inference`, the queue and `problem_answer`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from models.errors import AttentionError
from service.access import guarded
from service.body import squeezed
from service.engine import LocalEngine, Prepared
from service.errors import ClientGone
from service.exchange import Exchange, Headers, Scope
from service.lane import Piece
from service.observe import failed, identified, problem_answer
from service.problems import dialect_of
from service.routes.base import RawRoutes
from service.routes.tensors import Call, Inference, TensorRoute, Written
from service.runtime import Runtime

MOST_HEAD = 2_048
"""Bytes of a head up to which it is remembered."""

MOST_BODY = 1 << 20
"""Bytes of a body up to which the short way is taken."""

MOST_ANSWER = 1 << 19
"""Bytes of tensors up to which an answer leaves the short way in one go: as text they are three times as many."""

SQUEEZED_HERE = 1 << 16
"""Bytes of a body up to which it is compressed in the event loop, which takes well under 1 ms."""

LENGTHS = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
"""How clients begin the line that says how long a body is."""

MOST_HEADS = 256
"""Heads that are remembered."""

MOST_SEEN = 4_096
"""Heads of which it is remembered that they came once: most that differ from all others never come again."""

TOGETHER = 1 << 14
"""Bytes of an answer up to which it leaves when all of its batch have been written."""

PLAIN = ("", "identity")
"""Content codings that are none."""

UNUSUAL = frozenset({b"connection", b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade"})
"""Headers that say how the connection or the body is to be treated."""


@dataclass(slots=True)
class Known:
    """What is known of every request with one head.

    Attributes:
        scope: as ASGI has it, without the length of a body.
        headers: see `Exchange`.
        route: what takes it.
        guarded: whether a key may be asked for.
        call: how it is read and answered by `engine`, None before that was asked.
        large_from: bytes of the shortest body of which it was found that it has to take the ordinary way: nobody has
            to read the next one twice to see that it is so again.
    """

    scope: Scope
    headers: dict[bytes, bytes]
    route: TensorRoute
    guarded: bool
    engine: LocalEngine | None = None
    call: Call | None = None
    large_from: float = MOST_BODY + 1


class Asker(Protocol):
    """A connection, whose request takes the short way."""

    def answer(self, status: int, headers: Headers, pieces: list[Piece]) -> bool:
        """Write the answer. Whether all of it has been taken; else `Straight.left` is called later."""

    def decline(self, body: bytes) -> None:
        """Let the request take the ordinary way after all."""


def without_length(head: bytes) -> tuple[bytes, int]:
    """A head without the length of the body that it tells, and that; -1 where it tells none that is understood here."""
    for line in LENGTHS:
        before, found, rest = head.partition(line)
        if found:
            length, _, behind = rest.partition(b"\r")
            return (before + behind, int(length)) if length.isdigit() and len(length) < 10 else (head, -1)
    return head, -1


class Shortcut:
    """The heads that came before, and what becomes of requests that have them."""

    def __init__(self, runtime: Runtime, routes: RawRoutes) -> None:
        """Serve the tensor routes among `routes`."""
        self._runtime, self._routes = runtime, routes
        self._known: dict[bytes, Known] = {}
        self._whole: dict[bytes, tuple[Known, int]] = {}
        self._seen: set[int] = set()

    def find(self, head: bytes) -> tuple[Known, int] | None:
        """What is known of a head, and the length of the body that it tells."""
        found = self._whole.get(head)
        if found is None:
            short, length = without_length(head)
            if (known := self._known.get(short)) is None:
                return None
            if len(self._whole) >= MOST_HEADS:
                self._whole.clear()
            found = self._whole[head] = known, length
        return found

    def learn(self, head: bytes, scope: Scope, length: int) -> None:
        """Remember a head that came with its whole body, if requests with it can take the short way.

        Args:
            head: as it came.
            scope: what it was understood as; such as keeps its connection open.
            length: bytes that came behind it.
        """
        if length > MOST_BODY:
            return
        short, _ = without_length(head)
        if hash(short) not in self._seen:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(hash(short))
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
            self._whole.clear()
        del headers[b"content-length"]
        kept = {name: scope[name] for name in ("type", "method", "path", "query_string", "client")}
        kept |= {"path_params": parameters, "headers": list(headers.items())}
        self._known[short] = Known(kept, headers, route, guarded(scope["path"]))

    def takes(self, known: Known, length: int) -> bool:
        """Whether a request may be taken, as far as its head says."""
        runtime = self._runtime
        return (
            length < known.large_from
            and not runtime.draining
            and not runtime.access.limited
            and runtime.intake.has_room(length)
        )

    def hold(self, size: int) -> None:
        """Count so many more bytes of bodies that have come in part."""
        self._runtime.intake.hold(size)

    def take(self, known: Known, body: bytes, client: tuple[str, int] | None, asker: Asker) -> "Straight | None":
        """Read and queue a request, which is answered later, from the event loop, or declined.

        Args:
            known: what is known of its head.
            body: whole.
            client: its address.
            asker: its connection, of which nothing is wanted any more after `Straight.leave`.

        Returns:
            None if it has to take the ordinary way.
        """
        if not self.takes(known, len(body)):
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
            straight = Straight(runtime, known, exchange, inference, asker)
            if not inference.call.is_long(body):
                return straight if straight.queue(inference.prepare(body), len(body)) else None
        except Exception:  # noqa: BLE001 - it is raised again on the ordinary way
            return None
        if len(body) < inference.call.plain_from:
            known.large_from = min(known.large_from, len(body))
            return None
        straight.read(body)
        return straight


class Straight:
    """A request that takes the short way, from when its body has come."""

    __slots__ = ("_asker", "_exchange", "_failed", "_gone", "_inference", "_known", "_runtime")

    def __init__(self, runtime: Runtime, known: Known, exchange: Exchange, inference: Inference, asker: Asker) -> None:
        self._runtime, self._known = runtime, known
        self._exchange, self._inference, self._asker = exchange, inference, asker
        self._gone = self._failed = False

    def read(self, body: bytes) -> None:
        """Read a long body in the lane, and queue the request then; or decline it."""
        size = len(body)

        def understood(request: Any, _: BaseException | None) -> None:
            if self._gone:
                return
            queued = False
            if request is not None:
                with contextlib.suppress(Exception):  # it is raised again on the ordinary way
                    queued = self.queue(self._inference.understood(request, size), size)
            if not queued:
                self._asker.decline(body)

        self._inference.read_plain(body, self._runtime.intake.lane, understood)

    def queue(self, prepared: Prepared, bytes_in: int) -> bool:
        """Queue it; False, and nothing is counted, where it has to take the ordinary way."""
        known = self._known
        if prepared.size - bytes_in > MOST_ANSWER:
            known.large_from = min(known.large_from, bytes_in)
            return False
        exchange = self._exchange
        self._runtime.records.begun(exchange, known.scope["method"], known.scope["path"])
        if exchange.details is not None:
            exchange.details.received = bytes_in
        try:
            ticket = self._inference.queue(prepared)
        except Exception as error:  # noqa: BLE001 - it is answered
            asyncio.get_running_loop().call_soon(self.fail, error)
        else:
            ticket.when_done(self.answer)
        return True

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
            content = written.content
            if not isinstance(content, bytes) or (written.coding and len(content) > SQUEEZED_HERE):
                self._runtime.intake.lane.start(partial(_pieces, written), partial(self._written, written))
                return None
            body = squeezed([content], written.coding) if written.coding else content
            headers = inference.head(written, len(body))
        except Exception as fault:  # noqa: BLE001 - it is answered, and logged if nobody foresaw it
            self.fail(fault)
            return None
        if len(body) < TOGETHER:
            return partial(self._succeed, headers, [body])
        self._succeed(headers, [body])
        return None

    def _written(self, written: Written, pieces: list[Piece], error: BaseException | None) -> None:
        """The lane has written it, or could not."""
        if error is not None:
            self.fail(error)
        else:
            self._succeed(self._inference.head(written, sum(map(len, pieces))), pieces)

    def _succeed(self, headers: Headers, pieces: list[Piece]) -> None:
        """It has been written: send it."""
        self._inference.answering()
        taken = self._send(200, headers, pieces)
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
            status, headers, body = problem_answer(known, exchange, dialect_of(self._known.scope["path"]))
            taken = self._send(status, headers, [body])
        if taken:
            self.left()

    def left(self) -> None:
        """All of its answer has been taken, or nobody will."""
        self._inference.end(failed=self._failed)
        self._runtime.records.answered(self._exchange, self._known.scope["method"])

    def _send(self, status: int, headers: Headers, pieces: list[Piece]) -> bool:
        self._exchange.status = status
        if self._exchange.details is not None:
            self._exchange.details.sent = sum(map(len, pieces))
        return self._gone or self._asker.answer(status, identified(headers, self._exchange), pieces)


def _pieces(written: Written) -> list[Piece]:
    """An answer that takes long to write or to compress."""
    pieces: list[Piece] = [written.content] if isinstance(written.content, bytes) else written.content()
    return [squeezed(pieces, written.coding)] if written.coding else pieces
