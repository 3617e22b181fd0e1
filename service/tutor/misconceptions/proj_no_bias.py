"""The bias left out."""

from models.types import F64
from service.tutor.misconceptions.base import Misconception, in_projections, projection_of
from service.tutor.problem import Problem
from service.tutor.steps import StepId, Stuck


def _rows(problem: Problem, step: StepId) -> F64:
    matrix, bias = projection_of(problem, step)
    if bias is None:
        raise Stuck
    rows: F64 = problem.inputs @ matrix
    return rows


MISCONCEPTION = Misconception(
    id="proj.no_bias",
    title="The bias was left out",
    formula=r"Q = X W_Q \quad \text{without } b_Q",
    explanation=(
        "This projection has a bias: a row of numbers that every token gets on top of its product with the"
        " matrix. Without it whole columns are shifted."
    ),
    remedy=("After multiplying, add the bias to every row, its first number to the first column, and so on."),
    ways=in_projections(_rows),
    twins={},
)
