"""Embeddings added to the outputs."""

from models.types import F64
from service.tutor.arithmetic import right
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck, Values


def _outputs(problem: Problem, values: Values) -> F64:
    rows = right("outputs", problem, values)
    if rows.shape != problem.inputs.shape:
        raise Stuck
    return rows + problem.inputs


MISCONCEPTION = Misconception(
    id="out.residual_added",
    title="The embeddings were added to the outputs",
    formula=r"O = A V + X",
    explanation=(
        "A whole transformer layer does add its input to what comes out of attention, but that is its"
        " business and comes later. Attention itself ends with the weighted sum."
    ),
    remedy="Stop when the weighted values are added up.",
    ways=({"outputs": _outputs},),
    twins={},
)
