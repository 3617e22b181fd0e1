"""When requests are due in an open loop: at times that do not depend on the service.

Users that have nothing to do stand in line (`Pace.turn`); the first of them waits until the next request is due and
sends it. If all are waiting for answers, requests that are due wait for a user, and their latency counts from when they
were due: a service that stalls delays them all, as it would delay a crowd that knows nothing of it.
"""

import ctypes
import itertools
import math
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final, Literal, get_args

import numpy as np

Arrivals = Literal["constant", "poisson"]
ARRIVALS: Final[tuple[Arrivals, ...]] = get_args(Arrivals)

_CLOCK_MONOTONIC: Final = 1
_TFD_TIMER_ABSTIME: Final = 1


def gaps(arrivals: Arrivals, *, seed: int) -> Iterator[float]:
    """Time between one request and the next, in units of the mean: always 1, or exponential as in a Poisson process."""
    if arrivals == "constant":
        yield from itertools.repeat(1.0)
    random = np.random.default_rng(seed)
    while True:
        yield from random.exponential(size=1024).tolist()


class Pace:
    """The times at which requests are due.

    Args:
        rate: requests a second.
        share: of the rate that is sent; may be set again while the test runs.
        gaps: as the function of that name makes them.
        first: time from the start until the first request, in units of the mean gap.

    Attributes:
        turn: held by the user who waits for the next request to be due.
    """

    def __init__(self, rate: float, share: float, gaps: Iterator[float], first: float = 0.0) -> None:
        self.rate = rate
        self.share = share
        self.turn = threading.Lock()
        self._gaps = gaps
        self._first = first
        self._due = math.inf  # until it begins
        self._awaited = math.inf  # the time that somebody waits for
        self._end = math.inf
        self._begun = threading.Event()
        self._alarm = _Alarm()

    def begin(self, now: float) -> None:
        """From now on requests are due."""
        self._due = now + self._first / (self.rate * self.share)
        self._begun.set()

    def end(self, now: float) -> None:
        """Nothing is due any more that is not by now."""
        self._end = now
        self._begun.set()  # who waits for the beginning need not

    def next(self) -> float | None:
        """Wait until the next request is due, which may be long ago; to be called by who has the turn.

        Returns:
            When it was due, by `time.perf_counter`; None if there is none any more.
        """
        self._begun.wait()
        if self._due > self._end:
            return None
        due = self._advance()
        if due > time.perf_counter():
            self._awaited = due
            try:
                self._alarm.wait(due)
            finally:
                self._awaited = math.inf
        return due if due <= self._end else None

    def late(self) -> bool:
        """Whether there is a request due that nobody has been handed."""
        return min(self._due, self._awaited) <= min(self._end, time.perf_counter())

    def rest(self) -> Iterator[float]:
        """When those were due that nobody has taken, up to the end."""
        while self._due <= self._end:
            yield self._advance()

    def _advance(self) -> float:
        due = self._due
        self._due += next(self._gaps) / (self.rate * self.share)
        return due


class _Alarm:
    """Waits until a time of `time.perf_counter`, to some 0.05 ms.

    The sleep of gevent ends up to 1 ms late on Linux, where its loop counts in whole milliseconds, and a millisecond
    is about what a small request takes. A timer of the kernel is a file that becomes readable at its time.
    """

    def __init__(self) -> None:
        self._file = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def wait(self, until: float) -> None:
        while (left := until - time.perf_counter()) > 0:
            if self._file < 0:
                time.sleep(left)
                continue
            # struct itimerspec: interval, which is none, and time; each in seconds and nanoseconds
            seconds = int(until)
            spec = (ctypes.c_long * 4)(0, 0, seconds, int((until - seconds) * 1e9) + 1)
            self._libc.timerfd_settime(self._file, _TFD_TIMER_ABSTIME, spec, None)
            select.select([self._file], [], [])
            os.read(self._file, 8)
