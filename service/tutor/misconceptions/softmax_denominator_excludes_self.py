"""Divided by the sum of the others."""

import numpy as np

from models.types import F64
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values


def _weights(_: Problem, values: Values) -> F64:
    exp = values["softmax_exp"]
    others = exp.sum(axis=-1, keepdims=True) - exp
    return exp / np.where(others == 0, 1.0, others)  # one that is alone in its row has nothing to be divided by


MISCONCEPTION = Misconception(
    id="softmax.denominator_excludes_self",
    title="Each exponential was divided by the sum of the others",
    formula=r"A_{ij} = \frac{e^{T_{ij}}}{\sum_{l \ne j} e^{T_{il}}}",
    explanation=(
        "That compares a token with the rest, as odds do in a bet. A share compares a part with the whole,"
        " and the part belongs to the whole."
    ),
    remedy="Add up all exponentials of the row, including the one that you are about to divide.",
    ways=({"weights": _weights},),
    twins={},
)
