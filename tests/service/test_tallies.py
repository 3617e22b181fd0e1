"""What one thread counts reads as what the library counts."""

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from service import tallies


def scraped(counter, histogram):
    """A page with one metric of each kind."""
    registry = CollectorRegistry()
    counted = counter("a", "Counted.", ["kind"], registry=registry)
    plain = counter("b", "Counted.", registry=registry)
    observed = histogram("c_seconds", "Observed.", ["kind"], buckets=(0.1, 1.0, 10.0), registry=registry)
    counted.labels("x").inc()
    counted.labels("x").inc(2.5)
    plain.inc()
    for amount in (0.0, 0.1, 0.1000001, 1.0, 9.0, 10.0, 11.0):  # on the bounds too, and beyond the last
        observed.labels("x").observe(amount)
    observed.labels("y")
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_a_page_is_the_same_as_the_librarys():
    theirs = scraped(prometheus_client.Counter, prometheus_client.Histogram)

    assert scraped(tallies.LoopCounter, tallies.LoopHistogram) == theirs


@pytest.mark.parametrize("made", [tallies.LoopCounter, tallies.LoopHistogram])
def test_a_series_says_when_it_was_made(made):
    registry = CollectorRegistry()
    made("a", "Counted.", registry=registry)

    assert registry.get_sample_value("a_created") > 0
