"""Long bodies, read and written in a thread: the code that does it lets go of the interpreter's lock."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Found = TypeVar("Found")

Piece = bytes | memoryview
"""A part of an answer."""

Spread = Callable[[Sequence[Callable[[], None]]], object]
"""Calls each of several functions once, in any order, perhaps in several threads, and returns when all have ended."""


def in_turn(parts: Sequence[Callable[[], None]]) -> None:
    """One after the other: the `Spread` of who has one thread."""
    for part in parts:
        part()


@dataclass(frozen=True, slots=True)
class Team:
    """Who shares some work.

    Attributes:
        spread: computes its parts.
        size: into how many it is worth to take it apart.
    """

    spread: Spread
    size: int


ALONE = Team(in_turn, 1)


Work = Callable[[], Any]
"""What is to be done."""

Done = Callable[[Any, BaseException | None], None]
"""Takes what came of a work: what it returned, or what it raised."""


class Lane:
    """A thread that does one work at a time: who came first has its answer first, and only one is half done."""

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[tuple[Work, Done, asyncio.AbstractEventLoop] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Work, done: Done) -> None:
        """Do some work, then call `done` from the event loop that runs now."""
        if self._thread is None:  # not before there is work: processes may be forked meanwhile
            self._thread = threading.Thread(target=self._serve, name="bodies", daemon=True)
            self._thread.start()
        self._works.put((work, done, asyncio.get_running_loop()))

    async def run(self, work: Callable[[], Found]) -> Found:
        """What `work` returns; raises what it raises. It is not begun if nobody waits for it any more."""
        future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()

        def done(found: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(found)
            else:
                future.set_exception(error)

        self.start(lambda: None if future.cancelled() else work(), done)
        return await future

    def close(self) -> None:
        """End the thread, after what it has been given."""
        self._works.put(None)

    def _serve(self) -> None:
        while (item := self._works.get()) is not None:
            work, done, loop = item
            found, error = None, None
            try:
                found = work()
            except BaseException as raised:  # noqa: BLE001 - it is for whoever asked for the work
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done, found, error)
            del item, work, done, loop, found, error  # do not hold a body while waiting for the next
