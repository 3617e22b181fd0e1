"""Callers who never stop asking, and what became of their requests."""

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from wire import Reply, connect, send, until

URL = "http://127.0.0.1:8000"
DEADLINE_MS = 30_000
"""Of every request that is sent."""


@dataclass(frozen=True)
class Request:
    """A request, and the bytes of its right answer."""

    path: str
    body: bytes
    headers: dict[str, str]
    right: bytes


@dataclass
class Seen:
    """What became of one request."""

    reply: Reply
    request: Request
    seconds: float

    @property
    def kind(self) -> str:
        """`right`, `wrong`, or the status and the code of the problem; `plain` where it is none."""
        if self.reply.status == 200:
            return "right" if self.reply.body == self.request.right else "wrong"
        if self.reply.headers["content-type"].startswith("text/plain"):
            return f"{self.reply.status} plain"
        return f"{self.reply.status} {json.loads(self.reply.body)['type'].rpartition('/')[2]}"


@dataclass
class Load:
    """Callers, each of whom asks again as soon as there is an answer, until the block ends.

    Attributes:
        failures: of requests that got no answer at all.
    """

    requests: list[Request]
    callers: int
    seen: list[Seen] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __enter__(self) -> "Load":
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(self.callers)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self, at: int) -> None:
        connection = connect(URL, DEADLINE_MS / 1e3 + 10)
        while not self._stop.is_set():
            request = self.requests[at % len(self.requests)]
            at += 1
            headers = request.headers | {"X-Request-Timeout-Ms": str(DEADLINE_MS)}
            began = time.monotonic()
            try:
                reply = send(connection, "POST", request.path, request.body, headers)
            except OSError as error:
                self.failures.append(repr(error))
                connection.close()
                continue
            self.seen.append(Seen(reply, request, time.monotonic() - began))
            if reply.status != 200:
                time.sleep(0.1)
        connection.close()

    @property
    def kinds(self) -> Counter[str]:
        """How many there were of each kind."""
        return Counter(seen.kind for seen in self.seen)

    def all_right_again(self) -> None:
        """Wait until many in a row have been answered rightly."""
        start = len(self.seen)

        def well() -> bool:
            nonlocal start
            if any(seen.kind != "right" for seen in self.seen[start:]):
                start = len(self.seen)
            return len(self.seen) - start >= 20 * self.callers

        until(well, 90)

    def nothing_lost(self) -> None:
        """Every request was answered in its time: rightly, or with a problem that says when to try again."""
        assert not self.failures
        assert "wrong" not in self.kinds
        for seen in self.seen:
            assert seen.seconds < DEADLINE_MS / 1e3 + 5
            if seen.reply.status != 200:
                assert seen.reply.status == 503, seen.reply.body
                assert int(seen.reply.headers["retry-after"]) >= 1
