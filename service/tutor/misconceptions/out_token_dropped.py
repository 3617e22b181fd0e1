"""One token left out of every sum: the last, or the row's own."""

import numpy as np

from models.types import F64
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values, joined


def _without_last(_: Problem, values: Values) -> F64:
    return joined(values["weighted_values"][:, :, :-1].sum(axis=-2))


def _without_own(problem: Problem, values: Values) -> F64:
    others = ~np.eye(problem.n, dtype=bool)[:, :, None]
    return joined(np.where(others, values["weighted_values"], 0.0).sum(axis=-2))


MISCONCEPTION = Misconception(
    id="out.token_dropped",
    title="A token was left out of the sum",
    formula=r"O_i = \sum_{j \ne l} A_{ij} V_j",
    explanation=(
        "One token is missing from the sum: the last one, or the token itself. A row of weights adds up to"
        " one only with all of them, and each weight wants to meet its value."
    ),
    remedy=(
        "Go through the row of weights to its end, the token's own place included, and add up as many"
        " products as there are tokens."
    ),
    ways=({"outputs": _without_last}, {"outputs": _without_own}),
    twins={},
)
