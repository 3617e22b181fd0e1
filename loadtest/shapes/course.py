"""A shape as Locust runs it: it changes the number of users, or in an open loop the rate."""

import logging
from collections.abc import Callable
from typing import Final

from locust import LoadTestShape
from locust.stats import RequestStats

from loadtest.shapes.base import Seen, Shape

_LOG: Final = logging.getLogger(__name__)


class Course(LoadTestShape):
    """Takes a test through a shape.

    Args:
        shape: that is taken.
        users: of the full load.
        spawn_rate: how many of them come or go a second.
        set_share: told the share of the full rate, in an open loop, whose users are all there all the time; else None.
    """

    use_common_options = True  # --users, --spawn-rate and --run-time mean what they say

    def __init__(self, shape: Shape, users: int, spawn_rate: float, set_share: Callable[[float], None] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shape, self._users, self._spawn_rate, self._set_share = shape, users, spawn_rate, set_share

    def tick(self) -> tuple[int, float] | None:
        """Users wanted, and how fast; Locust asks about once a second."""
        assert self.runner is not None, "Locust gives shapes their runner"
        at_s = self.get_run_time()  # type: ignore[no-untyped-call]
        share = self._shape.share(at_s, seen(self.runner.stats))
        if share is None:
            if finding := self._shape.finding():
                _LOG.info("%s: %s", type(self._shape).__name__.lower(), finding)
            return None
        if self._set_share is None:
            return max(1, round(share * self._users)), self._spawn_rate
        self._set_share(share)
        return self._users, self._spawn_rate


def seen(stats: RequestStats) -> Seen:
    """What Locust has counted; of several workers, as far as they have reported."""
    total = stats.total
    return Seen(total.num_requests, total.num_failures, dict(total.response_times))
