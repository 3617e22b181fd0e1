"""Up a staircase: some levels of equal height and duration."""

from dataclasses import dataclass

from loadtest.shapes.base import Seen, level_of


@dataclass
class Steps:
    """From a share of 1/levels to all, level by level."""

    duration_s: float
    levels: int

    def share(self, at_s: float, seen: Seen) -> float | None:
        """See `Shape`."""
        level = level_of(at_s, self.duration_s, self.levels)
        return None if level is None else level / self.levels

    def finding(self) -> str:
        """Nothing is looked for."""
        return ""
