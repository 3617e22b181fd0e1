"""Rows of other tokens: all moved round, two neighbours exchanged, or upside down."""

import numpy as np

from models.types import F64
from service.tutor.arithmetic import right
from service.tutor.misconceptions.base import Misconception, Way
from service.tutor.problem import MOST_TOKENS, Problem
from service.tutor.steps import Compute, Stuck, Values


def _moved(by: int) -> Compute:
    def outputs(problem: Problem, values: Values) -> F64:
        if by >= problem.n:
            raise Stuck
        return np.roll(right("outputs", problem, values), by, axis=0)

    return outputs


def _exchanged(first: int) -> Compute:
    def outputs(problem: Problem, values: Values) -> F64:
        if first + 1 >= problem.n:
            raise Stuck
        order = np.arange(problem.n)
        order[[first, first + 1]] = first + 1, first
        return right("outputs", problem, values)[order]

    return outputs


_MOVED: tuple[Way, ...] = tuple({"outputs": _moved(by)} for by in range(1, MOST_TOKENS))
_EXCHANGED: tuple[Way, ...] = tuple({"outputs": _exchanged(first)} for first in range(MOST_TOKENS - 1))


MISCONCEPTION = Misconception(
    id="out.wrong_row",
    title="Rows belong to other tokens",
    formula=r"O_i \to O_j",
    explanation=(
        "The numbers are right, and they are the outputs of other tokens than the ones whose rows they stand in."
    ),
    remedy=(
        "The output of a token comes from its own row of weights and stands in the same row. A label beside"
        " every row helps."
    ),
    ways=_MOVED + _EXCHANGED + ({"outputs": lambda problem, values: right("outputs", problem, values)[::-1]},),
    twins={},
    slip=True,
)
