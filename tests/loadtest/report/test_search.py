import numpy as np
import pytest

from loadtest.report.search import MOST_PROBES, highest


class Simulated:
    """A server that takes a fixed time for each request, one after the other; requests come at fixed times.

    With a random part of the service time, its p99 rises smoothly up to the knee, as that of real ones does.
    """

    def __init__(self, slo_ms=20.0, disturbed=()):
        self.slo_ms, self.disturbed, self.tried = slo_ms, set(disturbed), []

    def p99_ms(self, rate, seconds):
        count = int(rate * seconds)
        took = np.random.default_rng(0).gamma(4, 0.5, count)  # mean 2 ms: at most 500 requests a second
        free, waits = 0.0, np.empty(count)
        for i in range(count):
            due = i * 1e3 / rate
            free = max(free, due) + took[i]
            waits[i] = free - due
        return np.percentile(waits, 99)

    def holds(self, rate, seconds=4):
        self.tried.append(rate)
        return len(self.tried) not in self.disturbed and self.p99_ms(rate, seconds) <= self.slo_ms

    def confirm(self, rate):
        return self.holds(rate, 8)


@pytest.mark.parametrize("start", [20.0, 350.0, 480.0, 900.0, 5000.0])
def test_the_knee_of_a_simulated_server_is_found_from_anywhere(start):
    """Below and above it, near and far."""
    server = Simulated()
    knee = max(rate for rate in range(300, 500, 2) if server.p99_ms(rate, 8) <= 20)

    found = highest(server.holds, server.confirm, start)

    assert 0.93 * knee <= found <= 1.01 * knee
    assert server.holds(found, 8)


def test_it_ends_within_the_precision_asked():
    """What is above it by more has failed twice."""
    failed = []

    def holds(rate):
        if rate > 400:
            failed.append(rate)
        return rate <= 400

    found = highest(holds, holds, 100.0, precision=0.01)

    assert 400 / 1.01 <= found <= 400
    assert failed.count(min(failed)) == 2


@pytest.mark.parametrize("disturbed", [1, 2, 3, 5])
def test_one_disturbed_measurement_does_not_lose_the_knee(disturbed):
    """A failure is believed when it has come twice."""
    tried = []

    def holds(rate):
        tried.append(rate)
        return rate <= 400 and len(tried) != disturbed

    assert 0.95 * 400 <= highest(holds, holds, 150.0) <= 400


def test_a_bad_while_does_not_lose_the_knee():
    """Whatever fails in it, short or long, is tried again after it."""
    tried = []

    def holds(rate):
        tried.append(rate)
        return rate <= 400 and not 1 <= len(tried) <= 4

    assert 0.95 * 400 <= highest(holds, holds, 380.0) <= 400


def test_a_rate_that_does_not_hold_longer_is_given_up():
    """A short measurement may be lucky."""
    found = highest(lambda rate: rate <= 400, lambda rate: rate <= 350, 100.0)

    assert 300 < found <= 350


def test_where_nothing_holds_the_answer_is_0():
    """And it does not try for ever."""
    tried = []

    assert highest(lambda rate: bool(tried.append(rate)), lambda rate: True, 100.0, least=2.0) == 0
    assert min(tried) >= 2.0


def test_a_server_without_a_knee_ends_the_search_too():
    """With the most that was tried."""
    tried = []

    def holds(rate):
        tried.append(rate)
        return True

    assert highest(holds, holds, 1.0) == max(tried)
    assert len(tried) <= MOST_PROBES + 1
