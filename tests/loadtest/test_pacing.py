import itertools
import threading
import time

import numpy as np
import pytest

from loadtest.pacing import Pace, gaps


def first(pace, count):
    return [pace.next() for _ in range(count)]


def long_ago():
    """A beginning so long ago that all is due, and nothing has to be waited for."""
    return time.perf_counter() - 1e6


def test_constant_arrivals_are_evenly_spaced():
    """Due times are a matter of arithmetic, not of when somebody came to send."""
    begun = long_ago()
    pace = Pace(4, 1, gaps("constant", seed=0))
    pace.begin(begun)

    np.testing.assert_allclose(np.array(first(pace, 5)) - begun, [0, 0.25, 0.5, 0.75, 1], atol=1e-6)


def test_generators_take_turns():
    """Two of them, each with half of the rate, send what one would."""
    begun = long_ago()
    paces = [Pace(10 / 2, 1, gaps("constant", seed=0), first=part / 2) for part in range(2)]
    for pace in paces:
        pace.begin(begun)

    due = sorted(itertools.chain(*(first(pace, 3) for pace in paces)))

    np.testing.assert_allclose(np.array(due) - begun, np.arange(6) / 10, atol=1e-6)


def test_arrivals_by_chance_are_a_seeded_poisson_process():
    """Gaps have the mean 1 and the standard deviation 1; the same seed has the same gaps."""
    drawn, again, other = (np.array(list(itertools.islice(gaps("poisson", seed=seed), 20_000))) for seed in (1, 1, 2))

    assert drawn.mean() == pytest.approx(1, abs=0.03)
    assert drawn.std() == pytest.approx(1, abs=0.03)
    np.testing.assert_array_equal(drawn, again)
    assert not np.array_equal(drawn, other)


def test_the_share_of_the_rate_can_be_changed_while_it_runs():
    """A spike has to begin when it should."""
    begun = long_ago()
    pace = Pace(10, 0.1, gaps("constant", seed=0))
    pace.begin(begun)

    slow = first(pace, 2)
    pace.share = 1
    fast = first(pace, 3)

    np.testing.assert_allclose(np.array(slow + fast) - begun, [0, 1, 2, 2.1, 2.2], atol=1e-6)


def test_nothing_is_due_before_its_time():
    """An open loop that hurries measures another rate."""
    pace = Pace(100, 1, gaps("constant", seed=0))
    pace.begin(time.perf_counter())

    for due in first(pace, 5):
        assert time.perf_counter() >= due


def test_nothing_is_due_before_the_beginning_nor_after_the_end():
    """Users that stand in line are let go; what was due and nobody took is told."""
    pace = Pace(10, 1, gaps("constant", seed=0))
    found = []
    waiting = threading.Thread(target=lambda: found.append(pace.next()))
    waiting.start()
    assert not pace.late()

    now = time.perf_counter()
    pace.begin(now - 0.55)
    waiting.join(10)
    pace.end(now)

    assert found == [pytest.approx(now - 0.55)]
    assert pace.late()
    np.testing.assert_allclose(list(pace.rest()), now - 0.55 + np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    assert pace.next() is None
    assert not pace.late()


def test_who_waits_at_the_end_waits_for_nothing():
    """What would have been due later is not sent any more."""
    pace = Pace(1, 10, gaps("constant", seed=0), first=2)
    pace.begin(time.perf_counter())
    found = []
    waiting = threading.Thread(target=lambda: found.append(pace.next()))
    waiting.start()

    pace.end(time.perf_counter())
    waiting.join(10)

    assert found == [None]
    assert list(pace.rest()) == []


def test_a_test_that_never_began_ends_too():
    """The service was not there, or somebody pressed Ctrl-C."""
    pace = Pace(10, 1, gaps("constant", seed=0))

    pace.end(time.perf_counter())

    assert pace.next() is None
    assert list(pace.rest()) == []
