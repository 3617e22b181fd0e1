"""Queries times keys, not transposed."""

from models.types import F64
from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck, Values


def _raw_scores(problem: Problem, values: Values) -> F64:
    if problem.head_dim != problem.n:
        raise Stuck
    scores: F64 = per_head(problem, values, "query") @ per_head(problem, values, "key")
    return scores


MISCONCEPTION = Misconception(
    id="score.no_transpose",
    title="The keys were not transposed",
    formula=r"S = Q K",
    explanation=(
        "The shapes happen to fit, but going down a column of the keys you pass through all tokens and stay"
        " with one feature. An entry then mixes everybody's keys instead of comparing with one token."
    ),
    remedy=(
        "Turn the keys over first, so that each column is one token's key. Or do it by rows: query of row i"
        " times key of row j."
    ),
    ways=({"raw_scores": _raw_scores},),
    twins={},
)
