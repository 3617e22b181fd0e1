"""What a shape is: a share of the full load, by the time since the test began and by what has been seen so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Seen:
    """What there was since the test began, as Locust counts it.

    Attributes:
        requests: answered or failed.
        failures: of these.
        times_ms: how many there were by response time, rounded to ms.
    """

    requests: int = 0
    failures: int = 0
    times_ms: Mapping[int, int] = field(default_factory=dict)

    def since(self, earlier: "Seen") -> "Seen":
        """What there was in addition to what had been seen earlier."""
        times = {time: count - earlier.times_ms.get(time, 0) for time, count in self.times_ms.items()}
        return Seen(self.requests - earlier.requests, self.failures - earlier.failures, times)

    @property
    def failed_share(self) -> float:
        """Failures by requests; 0 without any."""
        return self.failures / self.requests if self.requests else 0.0

    def percentile_ms(self, percent: float) -> float:
        """The response time that so many percent of the requests did not exceed; 0 without any."""
        left = sum(self.times_ms.values()) * percent / 100
        for time, count in sorted(self.times_ms.items()):
            left -= count
            if left <= 0:
                return float(time)
        return 0.0


class Shape(Protocol):
    """A course that a test takes."""

    def share(self, at_s: float, seen: Seen) -> float | None:
        """The load now, as a share of the full one, 0 < share ≤ 1; None when the test is over.

        Called about once a second, with times that only grow.
        """

    def finding(self) -> str:
        """What has come out, in a sentence; empty where a shape looks for nothing."""


def level_of(at_s: float, duration_s: float, levels: int) -> int | None:
    """Which of some levels of equal duration it is, from 1; None when all are over."""
    level = int(at_s / duration_s * levels) + 1
    return level if level <= levels else None
