"""Long work of the event loop's thread, a moment at a time.

Whatever reads or writes JSON holds the interpreter's lock while it does: in a thread it would hold up the event loop
all the same, for as long as one call takes and for the switch between threads besides. Work that says where it may be
interrupted is done here instead, between whatever else there is to do.
"""

import asyncio
import time
from collections.abc import Generator, Iterable
from typing import TypeVar

Found = TypeVar("Found")

Steps = Generator[None, None, Found]
"""Work that yields wherever it may be interrupted, at least every few 0.1 ms, and returns what it found."""

Piece = bytes | memoryview
"""A part of an answer."""

SLICE_S = 250e-6
"""How long the work goes on before others have their turn; they wait a few such slices, one for each callback."""


class Lane:
    """Does one work at a time: who came first has its answer first, and only one is in memory half done."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, steps: Steps[Found]) -> Found:
        """What `steps` returns; raises what it raises."""
        async with self._turn:
            clock = time.perf_counter
            end = clock() + SLICE_S
            while True:
                try:
                    next(steps)
                except StopIteration as done:
                    found: Found = done.value
                    return found
                if clock() >= end:
                    await asyncio.sleep(0)
                    end = clock() + SLICE_S

    async def collect(self, pieces: Iterable[Piece]) -> list[Piece]:
        """All pieces that are not empty; raises what making them raises."""
        return await self.run(_collected(pieces))


def _collected(pieces: Iterable[Piece]) -> Steps[list[Piece]]:
    found = []
    for piece in pieces:
        if piece:
            found.append(piece)
        yield
    return found
