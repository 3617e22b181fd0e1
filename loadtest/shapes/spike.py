"""A crowd that comes at once and leaves at once."""

from dataclasses import dataclass
from typing import Final

from loadtest.shapes.base import Seen

BEGINS: Final = 0.4
ENDS: Final = 0.6
"""The part of the time that the crowd is there."""


@dataclass
class Spike:
    """A share of the load, then for a fifth of the time all of it, then the share again, to see what stays behind."""

    duration_s: float
    base: float

    def share(self, at_s: float, seen: Seen) -> float | None:
        """See `Shape`."""
        if at_s >= self.duration_s:
            return None
        return 1.0 if BEGINS <= at_s / self.duration_s < ENDS else self.base

    def finding(self) -> str:
        """Nothing is looked for."""
        return ""
