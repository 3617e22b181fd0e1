"""Hidden what should be seen: the causal triangle mirrored, or a mask's true and false exchanged."""

import numpy as np

from models.types import F64
from service.tutor.arithmetic import hidden_as, mask_of
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values


def _masked_scores(problem: Problem, values: Values) -> F64:
    keep, own = mask_of(problem), problem.attn_mask
    if problem.is_causal:
        reverse = np.tri(problem.n, dtype=bool).T
        keep = reverse if own is None else reverse & own
    else:
        keep = ~keep
    return hidden_as(values["scaled_scores"], keep, -np.inf)


MISCONCEPTION = Misconception(
    id="mask.reversed",
    title="The mask was the wrong way round",
    formula=r"M_{ij} = -\infty \quad \text{for } j < i",
    explanation=(
        "What should be hidden was seen, and what should be seen was hidden. With a causal mask this lets"
        " each token look at the future and forget the past: the last one sees nobody but itself."
    ),
    remedy=(
        "Read the mask row by row: in the row of a token, those places stay that it may look at. Causal means"
        " itself and all before it."
    ),
    ways=({"masked_scores": _masked_scores},),
    twins={},
)
