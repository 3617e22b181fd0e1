"""Digits cut off instead of rounded."""

import numpy as np

from models.types import F64
from service.tutor.arithmetic import right
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Compute, StepId, Values

_STEPS: tuple[StepId, ...] = (
    "weights", "outputs", "scaled_scores", "softmax_exp", "softmax_sum", "weighted_values", "query", "key", "value",
    "raw_scores",
)  # fmt: skip


def _cut(step: StepId, decimals: int) -> Compute:
    def compute(problem: Problem, values: Values) -> F64:
        # What is whole but for an error of arithmetic is not to lose a unit.
        units = np.round(right(step, problem, values) * 10.0**decimals, 9)
        return np.trunc(units) / 10.0**decimals

    return compute


MISCONCEPTION = Misconception(
    id="round.truncated",
    title="Digits were cut off instead of rounded",
    formula=r"x \to \frac{\lfloor 10^p\, |x| \rfloor}{10^p} \operatorname{sgn}(x)",
    explanation=(
        "The digits beyond the last place were dropped, so every number came out a little too close to"
        " zero. In a sum, such losses add up."
    ),
    remedy=("Look at the first digit that you leave out: from five on, the last one that you keep goes up by one."),
    ways=tuple({step: _cut(step, decimals)} for step in _STEPS for decimals in range(7)),
    twins={},
    slip=True,
)
