"""Heads averaged instead of put side by side."""

from models.types import F64
from service.tutor.arithmetic import several
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values


def _outputs(problem: Problem, values: Values) -> F64:
    several(problem)
    mean: F64 = values["weighted_values"].sum(axis=-2).mean(axis=0)
    return mean


MISCONCEPTION = Misconception(
    id="heads.averaged",
    title="The heads were averaged instead of put side by side",
    formula=r"O = \frac{1}{h} \sum_a O^{(a)}",
    explanation=(
        "Every head has found something of its own, and an average would blur it. Their outputs are kept, all of them."
    ),
    remedy=(
        "Write the outputs of the heads next to each other, the first head's columns first: the rows get"
        " longer, and there are as many as before."
    ),
    ways=({"outputs": _outputs},),
    twins={},
)
