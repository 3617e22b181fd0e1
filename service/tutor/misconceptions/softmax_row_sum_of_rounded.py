"""The sum of exponentials that were rounded before."""

import numpy as np

from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import Compute


def _rounded(decimals: int) -> Compute:
    return lambda _, values: np.round(values["softmax_exp"], decimals).sum(axis=-1, keepdims=True)


MISCONCEPTION = Misconception(
    id="softmax.row_sum_of_rounded",
    title="Rounded exponentials were added up",
    formula=r"z_i = \sum_j \operatorname{round}(E_{ij})",
    explanation=(
        "You added up exponentials that had been rounded already, so the last place of the sum may be off."
        " That is no mistake in thinking, and costs nothing."
    ),
    remedy=("Carry one more place than you are asked for, and round when you write the result down."),
    ways=tuple({"softmax_sum": _rounded(decimals)} for decimals in (1, 2, 3)),
    twins={},
    warns=True,
)
