"""The mask laid over rows instead of columns."""

import numpy as np

from models.masks import visible
from models.types import F64
from service.tutor.arithmetic import hidden_as
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck, Values


def _masked_scores(problem: Problem, values: Values) -> F64:
    if problem.attn_mask is None:
        raise Stuck
    keep = visible(problem.n, problem.attn_mask.T, is_causal=problem.is_causal, window=None)
    return hidden_as(values["scaled_scores"], keep, -np.inf)


MISCONCEPTION = Misconception(
    id="mask.padding_rows",
    title="The mask was laid over rows instead of columns",
    formula=r"M_{ij} = -\infty \quad \text{where } j \text{ may not see } i",
    explanation=(
        "A token that is only padding must not be looked at, and that is a matter of its column. Hiding its"
        " row takes away its own sight, while all others go on looking at it."
    ),
    remedy=("Find the column of the token that is to be hidden, and put minus infinity into it in every row."),
    ways=({"masked_scores": _masked_scores},),
    twins={},
)
