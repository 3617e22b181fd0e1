"""Time as the queue knows it: a clock that tests can stand in for."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A callback that has been put off."""

    def cancel(self) -> None:
        """Do not call it."""


class Clock(Protocol):
    """Monotonic time, in seconds."""

    def time(self) -> float:
        """Now."""

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> Timer:
        """Call back at `when`, in the thread that owns the batcher."""

    def call_soon(self, callback: Callable[..., object]) -> Timer:
        """Call back when everything that is due has been, in the thread that owns the batcher."""


class LoopClock:
    """The event loop's timers on the system's monotonic clock: uvloop's own clock ticks in whole milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set timers on `loop`."""
        self._loop = loop

    time = staticmethod(time.monotonic)
    """See `Clock.time`."""

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> Timer:
        """See `Clock.call_at`."""
        return self._loop.call_later(max(0.0, when - time.monotonic()), callback, *args)

    def call_soon(self, callback: Callable[..., object]) -> Timer:
        """See `Clock.call_soon`."""
        return self._loop.call_soon(callback)
