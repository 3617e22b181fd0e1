"""All the weight to the largest score."""

import numpy as np

from models.types import F64
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values, last_scores


def _weights(problem: Problem, values: Values) -> F64:
    scores = last_scores(problem, values)
    first = np.arange(scores.shape[-1]) == scores.argmax(axis=-1)[..., None]
    return np.where(first & ~np.isneginf(scores), 1.0, 0.0)


MISCONCEPTION = Misconception(
    id="softmax.hardmax",
    title="The largest score got all the weight",
    formula=r"A_{ij} = \begin{cases} 1 & \text{if } j = \arg\max_j T_{ij} \\ 0 & \text{else} \end{cases}",
    explanation=(
        "The best match won, and all others got nothing. The softmax is softer than that, as its name says:"
        " it gives the best match most, and everybody else something."
    ),
    remedy=(
        "Work out the exponentials of the whole row and divide by their sum. The largest score stays in"
        " front, but not alone."
    ),
    ways=({"weights": _weights},),
    twins={
        "scale.multiplied": "where one score is far above the rest, both give it all the weight",
        "softmax.base10": "where one score is far above the rest, both give it all the weight",
        "out.top1": "all weight on one token and the value of that token are the same output",
    },
)
