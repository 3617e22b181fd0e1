"""Scores divided by their sum."""

import numpy as np

from models.types import F64
from service.tutor.arithmetic import hidden_as
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck, Values


def _weights(problem: Problem, values: Values) -> F64:
    scores = hidden_as(values["scaled_scores"], problem.keep, 0.0)
    total: F64 = scores.sum(axis=-1, keepdims=True)
    if (np.abs(total) < _NOTHING).any():
        raise Stuck  # nobody who gets zero here divides by it
    return scores / total


_NOTHING = 1e-9


MISCONCEPTION = Misconception(
    id="softmax.linear",
    title="The scores were shared out without the exponential",
    formula=r"A_{ij} = \frac{T_{ij}}{\sum_j T_{ij}}",
    explanation=(
        "You divided by the sum of the row, and that is half of it. Without the exponential a negative"
        " score becomes a negative share; and where the sum itself is negative, all signs of the row turn"
        " around."
    ),
    remedy=("First take the exponential of every score, so that all are positive. Then divide by the sum of those."),
    ways=({"weights": _weights},),
    twins={},
)
