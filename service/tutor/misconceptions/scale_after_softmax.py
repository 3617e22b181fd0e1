"""Softmax of the raw scores, scaled afterwards."""

import numpy as np

from models.types import F64
from service.tutor.arithmetic import hidden_as, scaled_by, softmax
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values


def _weights(problem: Problem, values: Values) -> F64:
    unscaled = scaled_by(lambda _: 1.0)(problem, values)
    return softmax(hidden_as(unscaled, problem.keep, -np.inf)) * problem.factor


MISCONCEPTION = Misconception(
    id="scale.after_softmax",
    title="Scaled after the softmax instead of before",
    formula=r"A = \frac{\operatorname{softmax}(S)}{\sqrt{d_k}}",
    explanation=(
        "The softmax saw scores that were too far apart, and shrinking its result does not undo that. It also"
        " breaks a promise: the weights of a row no longer add up to one."
    ),
    remedy=(
        "First divide the scores by √d_k, then take the softmax, and leave its result alone. Add up a row as a check."
    ),
    ways=({"weights": _weights},),
    twins={},
)
