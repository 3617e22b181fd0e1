"""Requests as bytes, made before a test begins; answers as they came; and where both go."""

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        status: the HTTP status.
        head: status line and headers, as they came.
        body: as it came.
    """

    status: int
    head: bytes
    body: bytes | bytearray

    def header(self, name: str) -> str:
        """The value of a header, empty where there is none."""
        found = re.search(rb"\r\n%b: *([^\r]*)" % re.escape(name.encode()), self.head, re.IGNORECASE)
        return found[1].decode("latin-1") if found else ""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, ready to send.

    Attributes:
        method: of HTTP.
        name: what it is counted as.
        wire: head and body.
        size: bytes of the body.
        check: raises `WrongAnswer` for an answer with status 200 that cannot be right.
    """

    method: str
    name: str
    wire: bytes
    size: int
    check: Callable[[Answer], None]


class Service:
    """Where requests go: knows how their heads begin.

    Args:
        url: of the service, such as `http://127.0.0.1:8000`, or with a path under which all of its own begin.

    Raises:
        ValueError: if `url` is not one of HTTP.
    """

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ValueError(f"{url!r} is no address such as http://127.0.0.1:8000")
        self.address = (place.hostname, place.port or (443 if place.scheme == "https" else 80))
        self.tls = ssl.create_default_context() if place.scheme == "https" else None
        self._host = place.netloc.rpartition("@")[2]
        self._prefix = place.path.rstrip("/")

    def request(
        self,
        method: str,
        path: str,
        name: str,
        check: Callable[[Answer], None],
        headers: Mapping[str, str],
        body: bytes = b"",
    ) -> Request:
        """Write a request in one buffer, so that head and body leave together."""
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{key}: {value}" for key, value in headers.items()]
        lines += [f"Content-Length: {len(body)}"] if body or method != "GET" else []
        return Request(method, name, "\r\n".join((*lines, "\r\n")).encode("latin-1") + body, len(body), check)
