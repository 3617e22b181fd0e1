"""Long bodies, read and written in a thread: the code that does it lets go of the interpreter's lock."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

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


class Lane:
    """A thread that does one work at a time: who came first has its answer first, and only one is half done."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "bodies")

    async def run(self, work: Callable[[], Found]) -> Found:
        """What `work` returns; raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
