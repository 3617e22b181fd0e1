"""Embeddings times the transposed matrix."""

from models.types import F64
from service.tutor.misconceptions.base import Misconception, in_projections, projection_of
from service.tutor.problem import Problem
from service.tutor.steps import StepId, Stuck


def _rows(problem: Problem, step: StepId) -> F64:
    matrix, bias = projection_of(problem, step)
    if matrix.shape[0] != matrix.shape[1]:
        raise Stuck
    rows: F64 = problem.inputs @ matrix.T
    return rows if bias is None else rows + bias


MISCONCEPTION = Misconception(
    id="proj.transposed",
    title="The projection matrix was turned over",
    formula=r"Q = X W_Q^\top",
    explanation=(
        "Rows and columns of the projection matrix changed places. The shapes still fit because the matrix is"
        " square, so nothing warns you, yet each column of the result now mixes the embedding with the wrong"
        " numbers."
    ),
    remedy=(
        "Go along a row of the embeddings and down a column of the matrix: entry by entry, multiply and add."
        " The matrix stays as it is printed."
    ),
    ways=in_projections(_rows),
    twins={},
)
