"""Keys mixed instead of values."""

from models.types import F64
from service.tutor.arithmetic import mixed, per_head
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck, Values


def _weighted_values(problem: Problem, values: Values) -> F64:
    if problem.head_dim != problem.value_dim:
        raise Stuck
    return mixed(values["weights"], per_head(problem, values, "key"))


MISCONCEPTION = Misconception(
    id="out.keys",
    title="The keys were mixed instead of the values",
    formula=r"O = A K",
    explanation=(
        "The keys have done their work once the weights are known. What a token hands over to those who look"
        " at it is its value."
    ),
    remedy="Multiply the weights with the values, row by row of the weights.",
    ways=({"weighted_values": _weighted_values},),
    twins={},
)
