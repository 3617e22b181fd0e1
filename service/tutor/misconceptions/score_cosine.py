"""Dot products divided by both lengths."""

import numpy as np

from models.types import F64
from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values


def _raw_scores(problem: Problem, values: Values) -> F64:
    query, key = _unit(per_head(problem, values, "query")), _unit(per_head(problem, values, "key"))
    scores: F64 = query @ key.swapaxes(-1, -2)
    return scores


def _unit(rows: F64) -> F64:
    length: F64 = np.sqrt((rows * rows).sum(axis=-1, keepdims=True))
    return rows / np.where(length == 0, 1.0, length)


MISCONCEPTION = Misconception(
    id="score.cosine",
    title="The dot products were divided by the lengths of query and key",
    formula=r"S_{ij} = \frac{q_i \cdot k_j}{\lVert q_i \rVert\, \lVert k_j \rVert}",
    explanation=(
        "That is the cosine of the angle between them. It is a fine measure of likeness, but this recipe"
        " takes the plain dot product, so that a long query or key can speak louder."
    ),
    remedy=(
        "Multiply and add, and leave it at that: the only thing to divide by comes in the next step, and it"
        " is the same for all entries."
    ),
    ways=({"raw_scores": _raw_scores},),
    twins={},
)
