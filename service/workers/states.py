"""Memory that supervisor and workers share: what each connection is being used for, and how much each worker computes.

The supervisor keeps a descriptor of every connection it has handed to a worker. When a worker ends for whatever reason,
the states say what can still be done for its clients.
"""

import mmap
import os
from enum import IntEnum

PLACES = 1 << 16
"""Connections that can be open at one time."""


MOST_WORKERS = 256


class State(IntEnum):
    """What a connection is being used for."""

    HANDED = 0
    """Handed to a worker, which has not looked at it yet: nothing has been read."""
    IDLE = 1
    """Every request that was begun has been answered, and the answer has left."""
    ASKED = 2
    """A request has been begun, and nothing has been answered yet."""
    ANSWERING = 3
    """Some of an answer may have left."""


class States:
    """The shared bytes: a state by the place of a connection, and counts by the number of a worker.

    Attributes:
        descriptor: of the memory.
        computing: threads that compute, by worker.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Those behind a descriptor, or new ones."""
        self.descriptor = os.memfd_create("attention-connections") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, PLACES + MOST_WORKERS)
        self._bytes = mmap.mmap(self.descriptor, PLACES + MOST_WORKERS)
        self.computing = memoryview(self._bytes)[PLACES:]

    def __getitem__(self, place: int) -> State:
        return State(self._bytes[place])

    def __setitem__(self, place: int, state: State) -> None:
        self._bytes[place] = state
