"""One request in flight, as all layers see it."""

import math
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from random import getrandbits
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

PRINTABLE = re.compile(rb"[\x20-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class Work:
    """What was computed for a request.

    Attributes:
        model: what computed it, `name@version`; `projections` for the caller's own matrices.
        backend: its name.
        sequences, tokens: of the request.
        batch: sequences of the largest batch that one of its own was in; 0 if none was computed.
        stages: name, begin and end of those that were completed, by `time.monotonic`.
    """

    model: str
    backend: str
    sequences: int
    tokens: int
    batch: int
    stages: Sequence[tuple[str, float, float]]


@dataclass(slots=True)
class Details:
    """What else is known of a request that is to be logged or traced.

    Attributes:
        epoch_ns: when `time.monotonic` was 0, ns since the epoch.
        span: of the request; None where there are no spans.
        trace_id: of the trace that it is part of; empty where there is none.
        problem: the code of what it failed by; empty if it did not.
        received, sent: bytes of the bodies, as they came and went.
        work: if something was computed.
    """

    epoch_ns: int
    span: "Span | None" = None
    trace_id: str = ""
    problem: str = ""
    received: int = 0
    sent: int = 0
    work: Work | None = None

    def ns(self, moment: float) -> int:
        """A time by `time.monotonic` as ns since the epoch."""
        return self.epoch_ns + int(moment * 1e9)


class Exchange:
    """What is known of a request in flight.

    Attributes:
        request_id: the caller's, or made.
        arrived: when its headers were read, by `time.monotonic`.
        deadline: when the transport says that nobody waits any more, by `time.monotonic`; HTTP never says so.
        details: see there; None where nobody wants to know.
        headers: lower-case names to values; of repeated ones the last.
        route: template of the route that took it, `unmatched` until one did.
        status: of the answer, once it began.
        close: whether the connection is to be closed after the answer.
        unread: whether some of the body may not have been read.
    """

    __slots__ = ("arrived", "close", "deadline", "details", "headers", "request_id", "route", "status", "unread")

    def __init__(self, scope: Scope, headers: dict[bytes, bytes] | None = None) -> None:
        """Begin; `headers` as below, where those of `scope` have been put so already: nobody writes into them."""
        self.arrived = time.monotonic()
        self.deadline = math.inf
        self.details: Details | None = None
        self.headers: dict[bytes, bytes] = dict(scope["headers"]) if headers is None else headers
        given = self.headers.get(b"x-request-id")
        self.request_id = given if given is not None and PRINTABLE.fullmatch(given) else b"%032x" % getrandbits(128)
        self.route = "unmatched"
        self.status = 0
        self.close = False
        self.unread = True

    def header(self, name: bytes) -> str:
        """A header's value, empty if it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")
