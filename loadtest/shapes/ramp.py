"""Up to the knee: the same staircase, but only as far as the service keeps what was promised."""

from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.shapes.base import Seen, level_of


@dataclass
class Ramp:
    """Raises the load until the 99th percentile or the share of failures passes a limit, then stops.

    The second half of each level counts: in the first, new users come and queues settle.

    Attributes:
        duration_s: of the whole staircase.
        levels: how many there are.
        max_p99_ms: limit of the 99th percentile.
        max_failed: limit of the share of requests that fail.
        load: what a share of the full load is called, such as `40 users`.
    """

    duration_s: float
    levels: int
    max_p99_ms: float
    max_failed: float
    load: Callable[[float], str] = "{:.0%} of the load".format
    _level: int = 0
    _settled: bool = False
    _from: Seen = field(default_factory=Seen)
    _from_s: float = 0.0
    _good: str = ""
    _finding: str = ""

    def share(self, at_s: float, seen: Seen) -> float | None:
        """See `Shape`."""
        level = level_of(at_s, self.duration_s, self.levels)
        if level != self._level:
            if self._level and not self._passed(at_s, seen):
                return None
            if level is None:
                self._finding = f"no knee up to {self._good}"
                return None
            self._level, self._settled = level, False
            self._from, self._from_s = seen, at_s
        elif not self._settled and at_s >= (level - 0.5) * self.duration_s / self.levels:
            self._settled = True
            self._from, self._from_s = seen, at_s
        return level / self.levels

    def finding(self) -> str:
        """Where the knee is; empty if the test was ended before it was known."""
        return self._finding

    def _passed(self, at_s: float, seen: Seen) -> bool:
        """Whether the level that is over was within the limits."""
        since = seen.since(self._from)
        rate, p99_ms, failed = since.requests / (at_s - self._from_s), since.percentile_ms(99), since.failed_share
        told = f"{self.load(self._level / self.levels)}: {rate:,.0f} requests/s, p99 {p99_ms:g} ms, {failed:.1%} failed"
        if since.requests and p99_ms <= self.max_p99_ms and failed <= self.max_failed:
            self._good = told
            return True
        limits = f"the limits are {self.max_p99_ms:g} ms and {self.max_failed:.1%}"
        self._finding = f"the knee is at {self._good or 'less than the first level'}; at {told}; {limits}"
        return False
