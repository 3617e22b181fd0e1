"""Values times weights."""

from models.types import F64
from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck, Values, joined


def _outputs(problem: Problem, values: Values) -> F64:
    if problem.value_dim != problem.n:
        raise Stuck
    return joined(per_head(problem, values, "value") @ values["weights"])


MISCONCEPTION = Misconception(
    id="out.va",
    title="Values and weights were multiplied in the wrong order",
    formula=r"O = V A",
    explanation=(
        "The shapes happen to fit, but with the values in front it is their columns that are weighed, as if"
        " features were tokens."
    ),
    remedy=("The weights come first: one row of them picks how much of every token's value goes into one output."),
    ways=({"outputs": _outputs},),
    twins={},
)
