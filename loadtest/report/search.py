"""The highest rate that holds a target: double or halve until it lies between two rates, then halve what is between.

Pure: whoever calls says whether a rate holds, by measuring.
"""

from collections.abc import Callable
from typing import Final

UP: Final = 1.3
"""How much more is tried when a rate holds and none is known that does not."""
DOWN: Final = 2.0
MOST_PROBES: Final = 30


def highest(
    holds: Callable[[float], bool],
    confirm: Callable[[float], bool],
    start: float,
    *,
    precision: float = 0.05,
    least: float = 1.0,
) -> float:
    """Search the highest rate that holds, supposing that whatever is below one that holds does as well.

    A measurement may be disturbed. So the rate found has to hold a longer time, and the rate above it, which has
    failed, gets a second chance before it is believed.

    Args:
        holds: whether a rate holds, by a short measurement.
        confirm: the same, by a longer one.
        start: the rate that is tried first, more than 0.
        precision: the answer is at most so much, as a share, below a rate that failed twice.
        least: a rate below which nothing is looked for.

    Returns:
        A confirmed rate, or 0 if none from `least` on holds. After MOST_PROBES short measurements, the highest rate
        that was confirmed or could then be.
    """
    low, high, rate, confirmed = 0.0, 0.0, start, 0.0
    for _ in range(MOST_PROBES):
        if holds(rate):
            low = rate
        else:
            high = rate
        if not high:
            rate = low * UP
        elif not low:
            rate = high / DOWN
            if rate < least:
                return confirmed
        elif high > low * (1 + precision):
            rate = (low * high) ** 0.5
        else:
            confirmed = max(confirmed, _confirmed(confirm, low, precision, least))
            if not holds(high):
                return confirmed
            low, high, rate = high, 0.0, high * UP  # what failed before holds now: it had been disturbed
    return max(confirmed, _confirmed(confirm, low, precision, least))


def _confirmed(confirm: Callable[[float], bool], rate: float, precision: float, least: float) -> float:
    """The first rate that holds a longer time, from `rate` downwards in steps that grow; 0 if none does."""
    step = precision
    while rate >= least:
        if confirm(rate):
            return rate
        rate *= 1 - step
        step = min(0.5, step * 1.5)
    return 0.0
