"""Shapes are functions of time and of what was seen; no service is needed to know what they do."""

import itertools

import pytest

from loadtest.shapes import SHAPES
from loadtest.shapes.base import Seen
from loadtest.shapes.ramp import Ramp
from loadtest.shapes.soak import Soak
from loadtest.shapes.spike import Spike
from loadtest.shapes.steps import Steps


def course(shape, *, seen=lambda at_s, share: Seen(), tick_s=1.0):
    """The shares of a test, by second."""
    shares, total = [], Seen()
    for tick in itertools.count():
        share = shape.share(tick * tick_s, total)
        if share is None:
            return shares
        shares.append(share)
        new = seen(tick * tick_s, share)
        times = {
            time: total.times_ms.get(time, 0) + new.times_ms.get(time, 0) for time in {*total.times_ms, *new.times_ms}
        }
        total = Seen(total.requests + new.requests, total.failures + new.failures, times)
    raise AssertionError


def answered(count, time_ms, failures=0):
    return Seen(count, failures, {time_ms: count})


def test_every_shape_ends_and_keeps_to_the_load():
    """A shape that runs on after its time would take a machine with it."""
    made = [Steps(60, 5), Ramp(60, 5, 100, 0.01), Spike(60, 0.2), Soak(60)]
    assert len(made) == len(SHAPES)

    for shape in made:
        shares = course(shape, seen=lambda at_s, share: answered(10, 1))
        assert len(shares) == 60
        assert min(shares) > 0
        assert max(shares) == 1


def test_steps_go_up_in_equal_levels():
    """Each as long and as high as the others."""
    assert course(Steps(12, 3)) == [1 / 3] * 4 + [2 / 3] * 4 + [1] * 4


def test_a_spike_comes_and_goes_at_once():
    """What is looked for is what it leaves behind."""
    assert course(Spike(10, 0.25)) == [0.25] * 4 + [1] * 2 + [0.25] * 4


def test_a_soak_rises_and_stays():
    """The rise is no part of what is compared."""
    shares = course(Soak(100))

    assert shares[:5] == pytest.approx([0.01, 0.2, 0.4, 0.6, 0.8])
    assert set(shares[5:]) == {1.0}


def test_a_soak_compares_its_last_tenth_with_its_first():
    """What grows slowly is what nobody sees in a short test."""
    soak = Soak(100)

    course(soak, seen=lambda at_s, share: answered(10, 5 if at_s < 50 else 9))

    assert soak.finding() == (
        "in the first tenth 100 requests, p50 5 ms, p99 5 ms, 0.0% failed;"
        " in the last 100 requests, p50 9 ms, p99 9 ms, 0.0% failed"
    )


def test_a_ramp_stops_at_the_knee_and_says_where_it_is():
    """The last level that kept the limit is what can be promised."""
    ramp = Ramp(50, 5, max_p99_ms=100, max_failed=0.01, load=lambda share: f"{share * 40:g} users")

    shares = course(ramp, seen=lambda at_s, share: answered(20, 250 if share > 0.7 else 12))

    assert shares == [0.2] * 10 + [0.4] * 10 + [0.6] * 10 + [0.8] * 10
    assert ramp.finding() == (
        "the knee is at 24 users: 20 requests/s, p99 12 ms, 0.0% failed;"
        " at 32 users: 20 requests/s, p99 250 ms, 0.0% failed; the limits are 100 ms and 1.0%"
    )


def test_a_ramp_stops_at_failures_too():
    """A service that refuses quickly has a fine percentile."""
    ramp = Ramp(50, 5, max_p99_ms=100, max_failed=0.01)

    shares = course(ramp, seen=lambda at_s, share: answered(100, 1, failures=2))

    assert set(shares) == {0.2}
    assert ramp.finding().startswith("the knee is at less than the first level; at 20% of the load")


def test_a_ramp_stops_where_nothing_is_answered():
    """A service that hangs has no slow request either."""
    ramp = Ramp(50, 5, max_p99_ms=100, max_failed=0.01)

    assert len(course(ramp)) == 10


def test_the_beginning_of_a_level_does_not_count():
    """New connections and a queue that settles are not what the level is about."""
    ramp = Ramp(40, 4, max_p99_ms=100, max_failed=0.01)

    shares = course(ramp, seen=lambda at_s, share: answered(20, 500 if at_s % 10 < 4 else 12))

    assert len(shares) == 40
    assert ramp.finding() == "no knee up to 100% of the load: 20 requests/s, p99 12 ms, 0.0% failed"


def test_levels_that_are_missed_are_not_judged_by_others():
    """Locust may be busy with spawning users for seconds."""
    ramp = Ramp(40, 4, max_p99_ms=100, max_failed=0.01)

    course(ramp, seen=lambda at_s, share: answered(20, 12), tick_s=7)

    assert ramp.finding().startswith("no knee up to 100% of the load")


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 1), (51, 2), (75, 2), (99, 300), (100, 300)])
def test_percentiles_of_what_was_counted(percent, expected):
    """Of 1, 1, 2 and 300 ms."""
    assert Seen(4, 0, {300: 1, 2: 1, 1: 2}).percentile_ms(percent) == expected


def test_nothing_has_no_percentile_and_no_failures():
    """Before the first answer."""
    assert Seen().percentile_ms(99) == 0
    assert Seen().failed_share == 0
