"""Counters and histograms that one thread counts with: the library's take a lock for each number.

A request is counted in some fifteen places, all of them in the event loop's thread.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping

import prometheus_client
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString


class LoopCounter(prometheus_client.Counter):
    """A counter, of which one thread calls `inc`."""

    def _metric_init(self) -> None:
        self._count = 0.0
        self._created = time.time()

    def inc(self, amount: float = 1, exemplar: object = None) -> None:
        """Count `amount` more, at least 0."""
        self._count += amount

    def _child_samples(self) -> Iterable[Sample]:
        return (Sample("_total", {}, self._count), Sample("_created", {}, self._created))


class LoopHistogram(prometheus_client.Histogram):
    """A histogram, of which one thread calls `observe`."""

    def _metric_init(self) -> None:
        self._counts = [0] * len(self._upper_bounds)
        self._total = 0.0
        self._created = time.time()

    def observe(self, amount: float, exemplar: object = None) -> None:
        """Count `amount` in the first bucket that it does not exceed."""
        self._counts[bisect_left(self._upper_bounds, amount)] += 1
        self._total += amount

    def _child_samples(self) -> Iterable[Sample]:
        samples, so_far = [], 0
        for bound, count in zip(self._upper_bounds, self._counts, strict=True):
            so_far += count
            samples.append(Sample("_bucket", {"le": floatToGoString(bound)}, float(so_far)))  # type: ignore[no-untyped-call]
        samples.append(Sample("_count", {}, float(so_far)))
        samples.append(Sample("_sum", {}, self._total))
        samples.append(Sample("_created", {}, self._created))
        return samples


def observe_each(histograms: Mapping[str, LoopHistogram], amounts: Mapping[str, float]) -> None:
    """`observe` of each amount in the histogram of its name, without a call for each."""
    for name, amount in amounts.items():
        histogram = histograms[name]
        histogram._counts[bisect_left(histogram._upper_bounds, amount)] += 1
        histogram._total += amount
