"""HTTP/1.1 on one connection: uvicorn's own, with a deadline for headers and less to do for each request.

Those that are like one before take a short way, past the parser and ASGI: see `Shortcut`.
"""

import asyncio
import math
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.errors import Unparsable
from service.exchange import Headers
from service.lane import Piece
from service.problems import whole_answer
from service.shortcut import MOST_HEAD, Known, Shortcut, Straight

HEADER_TIMEOUT_S = 20.0
"""Longest time a client may take to send the headers of a request it has begun, or its first one."""

JOINED = 1 << 14
"""Bytes of a body up to which it is joined with its head; longer ones are not copied."""

KEEP_ALIVE_S = 75.0
"""Idle connections are kept this long: longer than the pools of usual clients and proxies, which close at 60 s."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    cycle: "Cycle"
    scope: Any
    _due = math.inf
    _timer: asyncio.TimerHandle | None = None
    _messages = 0  # begun by the parser
    _within = False  # whether the parser is within a message
    _straight: Straight | None = None  # the request that takes the short way
    _head = b""  # its head
    _closes = False  # whether the connection is to be closed after it
    _leaving: Straight | None = None  # the one whose answer the client has not taken yet
    _coming: Known | None = None  # what is known of the request whose body is waited for, for the short way
    _length, _missing = 0, 0  # bytes of that body, and of what has not come
    _asked = False  # whether that has been said to have begun
    _new, _heard = b"", 0  # the head of a request that may be remembered, and bytes that came behind it
    _before = 0  # messages before it

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See uvicorn's."""
        super().__init__(*args, **kwargs)
        self._shortcut: Shortcut | None = getattr(self.config.app, "shortcut", None)
        self._later: list[bytes] = []  # what came behind it
        self._pieces: list[bytes] = []  # head and body of the request that is waited for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: its first request must come."""
        super().connection_made(transport)
        self._due = self.loop.time() + HEADER_TIMEOUT_S
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._straight is not None:
            self._straight.leave()
        self._left()
        self._arrived()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """The client has taken what was written."""
        self._left()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Bytes have come: a request for the short way, if nothing else goes on, or some for the parser."""
        if self._straight is not None:  # pipelined
            self._later.append(data)
            self.flow.pause_reading()
            return
        if self._coming is not None:
            self._gather(data)
            return
        shortcut = self._shortcut
        cycle = self.cycle
        if (
            shortcut is None
            or self._within
            or self.flow.write_paused  # the last answer has not been taken
            or not (cycle is None or cycle.response_complete)  # nor written
        ):
            self._heard += len(data)
            super().data_received(data)
            self._learn()
            return
        end = data.find(b"\r\n\r\n", 0, MOST_HEAD) + 4
        head, self._heard = data[:end], len(data) - end
        found = shortcut.find(head)
        if found is not None:
            known, length = found
            if self._heard == length and self._take(known, head, data[end:]):
                return
            if self._heard < length and shortcut.takes(known, length):
                self._wait(known, length, head, data[end:])
                return
        self._new, self._before = head if found is None and end >= 4 else b"", self._messages
        super().data_received(data)
        self._learn()

    def _learn(self) -> None:
        """Remember the head of a request that has come whole, and by itself."""
        if self._new and not self._within:
            new, self._new = self._new, b""
            if self._shortcut is not None and self._messages == self._before + 1 and self.cycle.keep_alive:
                self._shortcut.learn(new, self.scope, self._heard)

    def _take(self, known: Known, head: bytes, body: bytes) -> bool:
        """Try the short way; whether it is taken."""
        assert self._shortcut is not None, "who knows heads has it"
        straight = self._shortcut.take(known, body, self.client, self)
        if straight is None:
            return False
        self._head = head
        self._straight, self._due = straight, math.inf
        if not self._asked:
            self.on_asked()
        self._asked = False
        return True

    def decline(self, body: bytes) -> None:
        """The request that was to take the short way takes the ordinary one, and so does what came behind it."""
        head, self._straight, self._asked = self._head, None, True
        later, self._later = self._later, []
        super().data_received(b"".join((head, body, *later)))
        if self._closes:
            super().shutdown()

    def _wait(self, known: Known, length: int, head: bytes, piece: bytes) -> None:
        """Wait for the rest of a body, of which this is the first piece."""
        assert self._shortcut is not None, "as above"
        self._coming, self._pieces = known, [head, piece]
        self._length, self._missing = length, length - len(piece)
        self._shortcut.hold(length)
        self._due = self.loop.time() + HEADER_TIMEOUT_S
        self.on_asked()
        self._asked = True

    def _gather(self, data: bytes) -> None:
        """Another piece of the body that is waited for."""
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        known, (head, *pieces) = self._arrived()
        body = b"".join(pieces)
        if known is None or self._missing or not self._take(known, head, body):
            super().data_received(head + body)

    def _arrived(self) -> tuple[Known | None, list[bytes]]:
        """Wait for no body any more; what was known of it, and what has come."""
        known, self._coming = self._coming, None
        pieces, self._pieces = self._pieces, []
        if known is not None and self._shortcut is not None:
            self._shortcut.hold(-self._length)
        return known, pieces

    def _left(self) -> None:
        """All of an answer has been taken, or nobody will."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.left()

    def answer(self, status: int, headers: Headers, pieces: list[Piece]) -> bool:
        """Write the answer to the request that takes the short way, and go on to what came behind it; see `Asker`."""
        closes = self._closes or (b"connection", b"close") in headers
        if self._closes:
            headers = [*headers, (b"connection", b"close")]
        self.on_answer()
        head = head_of(status, (*self.server_state.default_headers, *headers))
        if len(pieces) == 1 and len(pieces[0]) < JOINED:
            self.transport.write(head + pieces[0])
        else:
            self.transport.writelines((head, *pieces))
        taken = not self.flow.write_paused
        if not taken:
            self._leaving = self._straight
        if closes:
            self.transport.close()
        self._straight = None
        self.on_response_complete()
        if self._later and not closes:
            later, self._later = b"".join(self._later), []
            self.data_received(later)
        return taken

    def shutdown(self) -> None:
        """The server stops: close the connection, once what was asked is answered."""
        self._give_up()
        if self._straight is None:
            super().shutdown()
        else:
            self._closes = True

    def _give_up(self) -> None:
        """Let the request whose body is waited for, if any, take the ordinary way, which has a deadline for it."""
        known, pieces = self._arrived()
        if known is not None:
            super().data_received(b"".join(pieces))

    def on_asked(self) -> None:
        """A request has begun to come."""

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        if not self._asked:
            self.on_asked()
        self._asked = False
        self._messages += 1
        self._within = True
        if self._due == math.inf or self.cycle is not None:
            self._due = self.loop.time() + HEADER_TIMEOUT_S
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """The last byte of a request has come."""
        self._within = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Headers are complete: the request is handled from now on. Its body has a deadline of its own."""
        self._due = math.inf
        scope, version = self.scope, self.parser.get_http_version()
        scope["method"] = self.parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["raw_path"], scope["query_string"] = url.path, url.query or b""
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        before = self.cycle
        self.cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self.cycle.on_answer = self.on_answer
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:  # pipelined
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless an answer has begun already, and close."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            _, answer = whole_answer(Unparsable("what came is not a request of HTTP/1.1"))
            self.transport.write(answer)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Handle a request: uvicorn's own, without a callback for its end."""
        self.tasks.add(self.loop.create_task(self._handle(cycle, app)))

    async def _handle(self, cycle: RequestResponseCycle, app: Any) -> None:
        try:
            await cycle.run_asgi(app)
        finally:
            self.tasks.discard(asyncio.current_task())

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come; it is not copied before it is wanted whole."""
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.pieces.append(body)
        cycle.held += len(body)
        if cycle.held > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_answer(self) -> None:
        """The first bytes of an answer are about to be written."""

    def on_response_complete(self) -> None:
        """An answer has been written."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self._due = self.loop.time() + KEEP_ALIVE_S

    def _look(self) -> None:
        """Close the connection if what is waited for has not come in time; one timer serves every wait."""
        now = self.loop.time()
        if now >= self._due:
            self._give_up()  # then there is more time
        if now >= self._due:
            if not self.transport.is_closing():
                self.transport.close()
            return
        self._timer = self.loop.call_later(min(self._due - now, HEADER_TIMEOUT_S), self._look)


def head_of(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The head of an answer.

    Raises:
        RuntimeError: if a header holds the end of a line.
    """
    lines = [STATUS_LINE[status]]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    head = b"".join(lines)
    if head.count(b"\n") != len(headers) + 2:
        raise RuntimeError("a header holds the end of a line")
    return head


class Cycle(RequestResponseCycle):
    """A request and its answer; the head of an answer leaves with the first bytes of its body, in one packet."""

    on_answer: Callable[[], None]

    def __init__(self, **kwargs: Any) -> None:
        """See uvicorn's."""
        super().__init__(**kwargs)
        self.pieces: list[bytes] = []
        self.held = 0
        self._head = b""

    async def send(self, message: Any) -> None:
        """See the ASGI specification.

        Raises:
            RuntimeError: if the application breaks it.
        """
        if self.disconnected:
            return
        if not self.response_started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"an answer begins with http.response.start, not {message['type']}")
            self.response_started = True
            self.waiting_for_100_continue = False
            self._head = self._headers(message["status"], message.get("headers", ()))
            return
        if self.response_complete or message["type"] != "http.response.body":
            raise RuntimeError(f"{message['type']} has no place here")
        if self.flow.write_paused:
            await self.flow.drain()
            if self.disconnected:
                return
        body, more = message.get("body", b""), message.get("more_body", False)
        parts = [self._head] if self._head else []
        if parts:
            self._head = b""
            self.on_answer()
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
        elif self.chunked_encoding:
            if body:
                parts += [b"%x\r\n" % len(body), body, b"\r\n"]
            if not more:
                parts.append(b"0\r\n\r\n")
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("the body is longer than its content-length")
            if body:
                parts.append(body)
        if parts:
            self.transport.writelines(parts)
        if not more:
            if self.expected_content_length:
                raise RuntimeError("the body is shorter than its content-length")
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _headers(self, status: int, headers: Any) -> bytes:
        """The head of an answer."""
        all_headers = [*self.default_headers, *headers]
        closes = False
        for name, value in all_headers:
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"connection" and value == b"close":
                self.keep_alive, closes = False, True
        if not self.keep_alive and not closes:
            all_headers.append((b"connection", b"close"))
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            all_headers.append((b"transfer-encoding", b"chunked"))
        return head_of(status, all_headers)

    async def receive(self) -> Any:
        """See the ASGI specification."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        pieces, self.pieces, self.held = self.pieces, [], 0
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return {"type": "http.request", "body": body, "more_body": self.more_body}
