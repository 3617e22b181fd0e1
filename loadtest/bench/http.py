"""HTTP/1.1 as the load generator speaks it: kept-alive connections, and nothing but Content-Length."""

import re
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loadtest.bench.formats import Message

TIMEOUT_S: Final = 60.0
"""Longest wait for an answer."""

LENGTH_TOLERANCE: Final = 0.05
"""Share by which the lengths of two right answers to one request may differ: digits of JSON."""

CHUNK: Final = 1 << 18
"""Bytes read at a time."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Failed(Exception):
    """There is nothing to measure; the message says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, ready to send.

    Attributes:
        wire: head and body, in one buffer.
        check: raises for an answer that is not right.
        length: about how long the body of its answer is; None if not known.
    """

    wire: bytes
    check: Callable[[Message], None] = lambda answer: None
    length: int | None = None


def wire(host: str, message: Message, method: str = "POST") -> bytes:
    """The bytes of a request: one buffer, so that head and body leave together."""
    lines = [f"{method} {message.path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(message.body)}"]
    lines += [f"{name}: {value}" for name, value in message.headers.items()]
    return "\r\n".join((*lines, "\r\n")).encode("ascii") + message.body


def read_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, with lower-case names, of an answer.

    Raises:
        Failed: if it does not start as an HTTP answer does.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/") or not rest[:3].isdecimal():
        raise Failed(f"{first!r} is not an HTTP answer")
    pairs = (line.partition(":") for line in lines)
    return int(rest[:3]), {name.lower(): value.strip() for name, _, value in pairs}


class Connection:
    """One connection, with at most one request on its way."""

    __slots__ = ("body", "expected", "head", "keeps", "received", "request", "since", "socket", "unsent")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unsent = memoryview(b"")

    def start(self, request: Request, since: float, *, keeps: bool) -> bool:
        """Send a request; `since` is when its latency begins, `keeps` whether its answer's body is wanted."""
        self.request, self.since, self.keeps = request, since, keeps
        self.head, self.received, self.expected = b"", 0, -1
        self.body: list[bytes] = []
        self.unsent = memoryview(request.wire)
        return self.send()

    def send(self) -> bool:
        """Send what the socket takes; whether that was all."""
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            return False
        return not self.unsent

    def receive(self, buffer: memoryview) -> bool:
        """Read what has come, by way of a buffer; whether that was all of an answer."""
        try:
            count = self.socket.recv_into(buffer)
        except BlockingIOError:
            return False
        if not count:
            raise Failed("the server closed a connection")
        start = 0
        if self.expected < 0:
            before = len(self.head)
            self.head += buffer[:count]
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return False
            self.head, start = self.head[:end], end + 4 - before
            if (found := _LENGTH.search(self.head)) is None:
                raise Failed(f"an answer has no Content-Length: {self.head[:200]!r}")
            self.expected = int(found[1])
        self.received += count - start
        if self.keeps:
            self.body.append(bytes(buffer[start:count]))
        return self.received >= self.expected

    def fault(self) -> str | None:
        """What is wrong with the answer, as far as its status and length tell."""
        if self.head[9:12] != b"200":
            return f"status {self.head[9:12].decode('latin-1')}"
        length = self.request.length
        if length is not None and abs(self.expected - length) > LENGTH_TOLERANCE * length:
            return f"{self.expected} bytes, expected about {length}"
        return None


def ask(port: int, request: Request) -> Message:
    """Send one request and check its answer.

    Raises:
        Failed: if its status is not 200, or the connection breaks.
    """
    connection, buffer = Connection(port), memoryview(bytearray(CHUNK))
    with connection.socket:
        connection.start(request, 0.0, keeps=True)
        done = False
        while not done:
            writing = [connection.socket] if connection.unsent else []
            readable, writable, _ = select.select([connection.socket], writing, [], TIMEOUT_S)
            if not readable and not writable:
                raise Failed(f"no answer in {TIMEOUT_S:g} s")
            if writable:
                connection.send()
            done = bool(readable) and connection.receive(buffer)
    status, headers = read_head(connection.head)
    body = b"".join(connection.body)
    if status != 200:
        raise Failed(f"status {status}: {body[:300].decode('utf-8', 'replace')}")
    answer = Message("", headers, body)
    request.check(answer)
    return answer
