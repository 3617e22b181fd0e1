"""The plain mean of the values."""

import numpy as np

from models.types import F64
from service.tutor.arithmetic import mask_of, per_head
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values, joined


def _of_all(problem: Problem, values: Values) -> F64:
    return _mean(problem, values, np.ones((problem.n, problem.n)))


def _of_visible(problem: Problem, values: Values) -> F64:
    return _mean(problem, values, mask_of(problem).astype(np.float64))


def _mean(problem: Problem, values: Values, counts: F64) -> F64:
    shares = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1.0)
    return joined(shares @ per_head(problem, values, "value"))


MISCONCEPTION = Misconception(
    id="out.mean",
    title="The values were averaged without the weights",
    formula=r"O_i = \frac{1}{n} \sum_j V_j",
    explanation=(
        "Every token counted the same, so all the work on the scores was for nothing. Attention is an average"
        " in which some count more than others."
    ),
    remedy=(
        "Multiply each value with its weight from the row before you add them up. Nothing is divided"
        " afterwards: the weights add up to one already."
    ),
    ways=({"outputs": _of_all}, {"outputs": _of_visible}),
    twins={},
)
