"""Requests counted by caller."""

from service.rate import Rate


def test_without_a_limit_nobody_waits():
    rate = Rate("")

    assert [rate.hit("a") for _ in range(1_000)] == [0.0] * 1_000


def test_a_caller_over_the_limit_is_told_how_long_to_wait():
    rate = Rate("2/minute")

    assert [rate.hit("a"), rate.hit("a"), rate.hit("b")] == [0, 0, 0]
    assert 50 < rate.hit("a") <= 60
