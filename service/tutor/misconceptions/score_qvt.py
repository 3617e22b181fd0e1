"""Queries times values."""

from models.types import F64
from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck, Values


def _raw_scores(problem: Problem, values: Values) -> F64:
    if problem.head_dim != problem.value_dim:
        raise Stuck
    scores: F64 = per_head(problem, values, "query") @ per_head(problem, values, "value").swapaxes(-1, -2)
    return scores


MISCONCEPTION = Misconception(
    id="score.qvt",
    title="Queries were compared with values",
    formula=r"S = Q V^\top",
    explanation=(
        "Values are what gets mixed once the attention is known. To find out who attends to whom, queries are"
        " held against keys; that is what keys are for."
    ),
    remedy="Put the keys beside the queries for this step, and keep the values for the last one.",
    ways=({"raw_scores": _raw_scores},),
    twins={
        "proj.swap_kv": ("with values in the place of keys the scores are the same; the keys and the outputs tell"),
    },
)
