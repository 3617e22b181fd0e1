"""Queries mixed instead of values."""

from models.types import F64
from service.tutor.arithmetic import mixed, per_head
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck, Values


def _weighted_values(problem: Problem, values: Values) -> F64:
    if problem.head_dim != problem.value_dim:
        raise Stuck
    return mixed(values["weights"], per_head(problem, values, "query"))


MISCONCEPTION = Misconception(
    id="out.queries",
    title="The queries were mixed instead of the values",
    formula=r"O = A Q",
    explanation=(
        "That hands over the tokens' questions. They were needed to find out who attends to whom; the answer"
        " is made of values."
    ),
    remedy="Multiply the weights with the values, row by row of the weights.",
    ways=({"weighted_values": _weighted_values},),
    twins={},
)
