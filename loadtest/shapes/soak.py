"""The full load for long, to see whether anything grows that should not."""

from dataclasses import dataclass, field
from typing import Final

from loadtest.shapes.base import Seen

RISE: Final = 0.05
"""The part of the time in which the load rises evenly."""
FIRST_ENDS: Final = 0.15
LAST_BEGINS: Final = 0.9
"""What is compared: a tenth of the time each."""


@dataclass
class Soak:
    """Rises to the full load and stays there; response times of the first tenth of that are compared with the last."""

    duration_s: float
    _marks: dict[float, Seen] = field(default_factory=dict)
    _last: Seen = field(default_factory=Seen)

    def share(self, at_s: float, seen: Seen) -> float | None:
        """See `Shape`."""
        done = at_s / self.duration_s
        for mark in (RISE, FIRST_ENDS, LAST_BEGINS):
            if done >= mark and mark not in self._marks:
                self._marks[mark] = seen
        self._last = seen
        if done >= 1:
            return None
        return max(0.01, min(1.0, done / RISE))

    def finding(self) -> str:
        """How response times began and ended; empty if the test was ended before."""
        if len(self._marks) < 3:
            return ""
        first = self._marks[FIRST_ENDS].since(self._marks[RISE])
        last = self._last.since(self._marks[LAST_BEGINS])
        return f"in the first tenth {_told(first)}; in the last {_told(last)}"


def _told(seen: Seen) -> str:
    times = f"p50 {seen.percentile_ms(50):g} ms, p99 {seen.percentile_ms(99):g} ms"
    return f"{seen.requests} requests, {times}, {seen.failed_share:.1%} failed"
