"""How many cores compute, over all worker processes of a service: who would help with a long sequence looks first."""

import threading
from typing import Self


class Cores:
    """A count per process of the threads that compute, in memory that the processes may share.

    Each writes its own count only, so no lock spans processes; two that look at the same moment may both find the last
    idle core, and then share it for one part of a sequence.
    """

    def __init__(self, total: int, counts: memoryview | None = None, mine: int = 0) -> None:
        """Count for one of the processes.

        Args:
            total: cores of all.
            counts: a byte per process; None for a process that is the only one.
            mine: the place of this process's.
        """
        self.total = total
        self._counts = memoryview(bytearray(1)) if counts is None else counts
        self._mine = mine
        self._lock = threading.Lock()
        self._counts[mine] = 0

    @property
    def idle(self) -> int:
        """On how many cores nothing computes."""
        return max(0, self.total - sum(self._counts))

    def computing(self) -> Self:
        """A context in which a core is taken, whether or not one is idle."""
        return self

    def __enter__(self) -> None:
        self._add(1)

    def __exit__(self, *_: object) -> None:
        self._add(-1)

    def _add(self, change: int) -> None:
        with self._lock:
            self._counts[self._mine] += change
