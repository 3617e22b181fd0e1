import numpy as np
import pytest
from recorded import samples

from loadtest.report import figures
from loadtest.report.plan import Slo
from loadtest.samples import STAGES


def test_percentiles_are_those_of_all_requests_from_when_they_were_due():
    """Of failures too: who got an error has waited as well."""
    found = figures.latencies(samples(np.arange(1, 101), errors=["503 queue full"] * 3))

    assert found["p50_ms"] == pytest.approx(50.5)
    assert found["p99_ms"] == pytest.approx(99.01)
    assert found["max_ms"] == pytest.approx(100)
    assert found["mean_ms"] == pytest.approx(50.5)


def test_nothing_measured_is_not_0_ms():
    """It would look fast."""
    assert all(np.isnan(value) for value in figures.latencies(samples([])).values())
    assert figures.open_rate(samples([]), 10, Slo(99, 50)) == figures.closed_rate(samples([])) == 0
    assert not figures.holds(samples([]), 10, Slo(99, 50))
    assert figures.curve([]) == {}
    assert figures.stages([samples([])]) == {}


def test_the_curve_ends_where_there_are_no_requests_left():
    """One beyond the point at least."""
    found = figures.curve([samples(np.full(150, 5.0)), samples(np.full(50, 9.0))])

    assert next(iter(found)) == "50"
    assert list(found)[-1] == "99.5"
    assert (found["50"], found["99"]) == pytest.approx((5, 9))
    assert list(figures.curve([samples(np.full(1000, 1.0))]))[-1] == "99.9"


def test_the_rate_of_a_closed_loop_is_that_of_its_right_answers():
    """A request each 10 ms; neither start nor end make it less."""
    assert figures.closed_rate(samples(np.full(500, 25.0))) == pytest.approx(100, rel=0.01)
    assert figures.closed_rate(samples(np.full(500, 25.0), errors=["500 internal"] * 250)) < 60


def test_a_rate_is_held_by_right_answers_in_time():
    """Each of the conditions alone may fail it."""
    slo = Slo(99, 50)
    fine = np.full(1000, 20.0)
    slow = fine.copy()
    slow[:11] = 60.0
    late = np.full(1000, 20.0)
    late[-30:] = 2000.0

    assert figures.holds(samples(fine), 100, slo)
    assert figures.open_rate(samples(fine), 100, slo) == pytest.approx(100)
    assert not figures.holds(samples(slow), 100, slo)
    assert not figures.holds(samples(fine, errors=["503 queue full"]), 100, slo)
    assert not figures.holds(samples(late), 100, Slo(95, 50))
    assert figures.open_rate(samples(late), 100, slo) == pytest.approx(97)


def test_errors_are_counted_by_their_texts_over_all_runs():
    """The most frequent first."""
    runs = [samples([1, 1, 1], errors=["a", "b"]), samples([1, 1], errors=["b"])]

    assert list(figures.errors(runs).items()) == [("b", 2), ("a", 1)]


def test_stages_and_what_is_outside_make_the_latency():
    """In the mean, where sums are allowed."""
    ms = np.random.default_rng(0).lognormal(2, 0.5, 400)

    found = figures.stages([samples(ms[:200]), samples(ms[200:])])

    assert set(found["mean"]) == {"waiting_ms", *STAGES, "outside_ms"}
    assert sum(found["mean"].values()) == pytest.approx(ms.mean(), rel=1e-3)
    assert found["mean"]["waiting_ms"] == pytest.approx(0.1)
    assert found["median"]["decode_ms"] == pytest.approx(np.median(ms) * 0.2, rel=1e-3)
    assert sum(found["slowest"].values()) == pytest.approx(np.sort(ms)[-4:].mean(), rel=1e-3)
    assert figures.stages([samples(ms, staged=False)]) == {}


def test_kinds_of_requests_are_told_apart_over_runs():
    """Whatever their numbers are in each file."""
    runs = [samples([10, 20], names=("a", "b"), errors=["x"]), samples([30, 50], names=("b", "c"))]

    found = figures.by_name(runs)

    assert {name: (kind["requests"], kind["errors"], kind["p50_ms"]) for name, kind in found.items()} == {
        "a": (1, 1, pytest.approx(10)),
        "b": (2, 0, pytest.approx(25)),
        "c": (1, 0, pytest.approx(50)),
    }


def test_the_generator_is_as_busy_as_its_processor_time_says():
    """Of one core: it has one thread."""
    assert figures.generator_share(samples(np.full(100, 1.0), cpu=0.85)) == pytest.approx(0.85)
