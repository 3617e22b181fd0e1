"""A load generator: many kept-alive HTTP/1.1 connections, driven by one thread that does little else than wait.

In a closed loop every connection sends its next request as soon as it has its answer. In an open loop requests are due
at fixed times whatever the server does, and latency counts from the time a request was *due*: a server that stalls
delays all that were due meanwhile, which a closed loop never notices.

Neither asyncio nor an HTTP library: what they cost for each answer would be measured with the server, on the cores that
it shares with us.
"""

import gc
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from loadtest.bench.formats import Message
from loadtest.bench.http import CHUNK, TIMEOUT_S, Connection, Request, read_head

SAMPLES: Final = 6
"""Answers of a run whose numbers are checked, spread over its time."""


@dataclass(slots=True)
class Result:
    """What became of a run.

    Attributes:
        seconds: how long it was measured.
        in_time: right answers in that time; what a closed loop gets after it counts among the latencies only.
        latencies: of every answer, s; in an open loop from the time it was due, with those that never came.
        errors: what was wrong with an answer, one line each.
        heads: of every right answer, if they were to be kept.
        client_cpu_s: processor time of this generator.
    """

    seconds: float = 0.0
    in_time: int = 0
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    client_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        """Right answers a second."""
        return self.in_time / self.seconds

    def latency_ms(self, percent: float) -> float:
        """A percentile of the latency."""
        return float(np.percentile(self.latencies, percent)) * 1e3 if self.latencies else float("nan")

    def latencies_ms(self) -> npt.NDArray[np.float64]:
        """All latencies, in the order of the answers."""
        return np.array(self.latencies) * 1e3


def drive(
    port: int,
    requests: Sequence[Request],
    *,
    connections: int,
    seconds: float,
    rate: float | None = None,
    keep_heads: bool = False,
) -> Result:
    """Send requests in turn for some time.

    Args:
        port: of a server on this machine.
        requests: at least one.
        connections: how many at the most are answered at a time.
        seconds: how long requests are sent.
        rate: requests a second that are due, for an open loop; None for a closed one.
        keep_heads: whether to keep the heads of the answers.

    Raises:
        Failed: if a connection closes, or there is no answer at all in TIMEOUT_S.
        OSError: if a connection cannot be made, or breaks.
    """
    run = _Run(port, requests, connections, seconds, rate, keep_heads)
    gc.collect()
    gc.disable()  # a collection here would look like a slow server
    try:
        return run.go()
    finally:
        gc.enable()
        for connection in run.connections.values():
            connection.socket.close()


class _Run:
    """The loop of one run, and what it has to remember."""

    def __init__(
        self,
        port: int,
        requests: Sequence[Request],
        most_connections: int,
        seconds: float,
        rate: float | None,
        keep_heads: bool,
    ) -> None:
        self.port, self.requests, self.most_connections = port, requests, most_connections
        self.seconds, self.keep_heads = seconds, keep_heads
        self.gap = None if rate is None else 1 / rate
        self.due = 0 if rate is None else max(1, round(rate * seconds))
        self.sent = 0
        self.connections: dict[int, Connection] = {}  # by file descriptor
        self.idle: list[int] = []  # the one last used is the next to be used: servers close those that rest for long
        self.writing: set[int] = set()
        self.buffer = memoryview(bytearray(CHUNK))
        self.result = Result(seconds)
        self.samples: list[tuple[Request, Message]] = []
        for _ in range(most_connections):
            self._connect()

    def go(self) -> Result:
        cpu = time.process_time()
        self.start = now = self.next_sample = time.perf_counter()
        self.end = now + self.seconds
        while (wait := self._send(now)) is not None:
            readable, writable, _ = select.select(self.connections, self.writing, [], wait)
            now = time.perf_counter()
            if now > self.end + TIMEOUT_S:
                self._give_up(now)
                break
            for descriptor in writable:
                if self.connections[descriptor].send():
                    self.writing.discard(descriptor)
            for descriptor in readable:
                self._receive(descriptor)
        if self.gap is not None or not self.result.in_time:
            right = len(self.result.latencies) - len(self.result.errors)
            self.result.seconds, self.result.in_time = now - self.start, right
        self.result.client_cpu_s = time.process_time() - cpu
        for request, answer in self.samples:
            try:
                request.check(answer)
            except Exception as error:  # noqa: BLE001 - whatever reading an answer raises, it is a wrong answer
                self.result.errors.append(f"{type(error).__name__}: {error}")
        return self.result

    def _connect(self) -> None:
        connection = Connection(self.port)
        self.connections[connection.socket.fileno()] = connection
        self.idle.append(connection.socket.fileno())

    def _send(self, now: float) -> float | None:
        """Send what is due; how long there will be nothing else to send, s, or None once all is done."""
        while self.sent < self.due if self.gap is not None else now < self.end:
            since = now if self.gap is None else self.start + self.sent * self.gap
            if since > now:
                return since - now
            if not self.idle:
                if len(self.connections) == self.most_connections:
                    return TIMEOUT_S
                self._connect()
            keeps = now >= self.next_sample
            if keeps:
                self.next_sample += self.seconds / SAMPLES
            descriptor = self.idle.pop()
            request = self.requests[self.sent % len(self.requests)]
            if not self.connections[descriptor].start(request, since, keeps=keeps):
                self.writing.add(descriptor)
            self.sent += 1
        return TIMEOUT_S if len(self.idle) < len(self.connections) else None

    def _receive(self, descriptor: int) -> None:
        connection = self.connections[descriptor]
        if descriptor in self.idle:  # a server that closes a connection which has rested for long
            connection.socket.close()
            del self.connections[descriptor]
            self.idle.remove(descriptor)
            return
        if not connection.receive(self.buffer):
            return
        now = time.perf_counter()
        self.idle.append(descriptor)
        self.result.latencies.append(now - connection.since)
        if (fault := connection.fault()) is not None:
            self.result.errors.append(fault)
            return
        self.result.in_time += now <= self.end
        if self.keep_heads:
            self.result.heads.append(connection.head)
        if connection.keeps:
            _, headers = read_head(connection.head)
            self.samples.append((connection.request, Message("", headers, b"".join(connection.body))))

    def _give_up(self, now: float) -> None:
        """Count what never came, with the time it was waited for."""
        waiting = [c.since for descriptor, c in self.connections.items() if descriptor not in self.idle]
        if self.gap is not None:
            waiting += [self.start + i * self.gap for i in range(self.sent, self.due)]
        for since in waiting:
            self.result.latencies.append(now - since)
            self.result.errors.append("no answer")
