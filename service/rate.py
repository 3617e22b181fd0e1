"""How often each caller has called."""

import time

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter


class Rate:
    """Counts the requests of each caller in a moving window."""

    def __init__(self, limit: str) -> None:
        """Allow `limit`, such as `100/second`; empty for no limit."""
        self._limit: RateLimitItem | None = parse(limit) if limit else None
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def hit(self, caller: str) -> float:
        """Count a request of a caller's, if it may make one more.

        Returns:
            0 if it may; else how long until it may again, at least 1 s.
        """
        if self._limit is None or self._limiter.hit(self._limit, caller):
            return 0.0
        reset, _ = self._limiter.get_window_stats(self._limit, caller)  # on the wall clock, as the library counts
        return max(1.0, reset - time.time())
