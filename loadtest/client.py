"""HTTP/1.1 for load tests: one connection, bytes out, and of an answer its head and its body.

Locust's own clients do for each request what can be done once for all of them; `docs/loadtest.md` has the cost of this.
Nothing here knows Locust: in its process the sockets are gevent's, elsewhere they are Python's.
"""

import re
import socket
import ssl
from typing import Final

from loadtest.wire import Answer, Service

TIMEOUT_S: Final = 60.0
"""Longest silence of the service while it is waited for."""

CHUNK: Final = 1 << 17
"""Bytes read at a time, until it is known how long an answer is."""

LONGEST_HEAD: Final = 1 << 16

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class NoAnswer(Exception):
    """There is no answer that can be read; the message says why, in the same words for the same reason."""


class Client:
    """One connection to a service, made when it is needed, and again after it broke."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._socket: socket.socket | None = None

    def ask(self, wire: bytes) -> Answer:
        """Send a request and wait for its answer.

        A server may close a connection that has rested, at the very moment when it is used again. Then, and only if
        nothing of an answer has come, the request is sent once more, on a new connection.

        Raises:
            NoAnswer: if there is none, or none that can be read.
        """
        try:
            if self._socket is not None:
                try:
                    self._socket.sendall(wire)
                    first = self._socket.recv(CHUNK)
                except (ConnectionError, ssl.SSLError):
                    first = b""
                if first:
                    return self._read(self._socket, first)
                self.close()
            self._socket = self._connect()
            self._socket.sendall(wire)
            return self._read(self._socket, self._socket.recv(CHUNK))
        except TimeoutError as error:
            raise self._broken(f"nothing came for {TIMEOUT_S:g} s") from error
        except OSError as error:
            raise self._broken(error.strerror or str(error)) from error
        except BaseException:  # a user that is stopped while it waits: its answer must not become another's
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        made = socket.create_connection(self._service.address, TIMEOUT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._service.tls is not None:
            return self._service.tls.wrap_socket(made, server_hostname=self._service.address[0])
        return made

    def _read(self, connection: socket.socket, received: bytes) -> Answer:
        more = received
        while (end := received.find(b"\r\n\r\n")) < 0:
            if not more:
                raise self._broken("the connection was closed before there was an answer")
            if len(received) > LONGEST_HEAD:
                raise self._broken("what came is no answer of HTTP")
            more = connection.recv(CHUNK)
            received += more
        head, start = received[:end], end + 4
        found = _LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 ") or not head[9:12].isdigit() or found is None:
            raise self._broken("the answer is not one of HTTP/1.1 with a Content-Length")
        length, there = int(found[1]), len(received) - start
        if there >= length:
            return Answer(int(head[9:12]), head, received[start : start + length])
        body = bytearray(length)
        body[:there] = received[start:]
        view = memoryview(body)
        while there < length:
            count = connection.recv_into(view[there:])
            if not count:
                raise self._broken("the connection was closed in the middle of an answer")
            there += count
        return Answer(int(head[9:12]), head, body)

    def _broken(self, why: str) -> NoAnswer:
        self.close()
        return NoAnswer(why)
