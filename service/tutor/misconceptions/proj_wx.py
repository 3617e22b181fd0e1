"""Matrix times embeddings."""

from models.types import F64
from service.tutor.misconceptions.base import Misconception, in_projections, projection_of
from service.tutor.problem import Problem
from service.tutor.steps import StepId, Stuck


def _rows(problem: Problem, step: StepId) -> F64:
    matrix, bias = projection_of(problem, step)
    if not matrix.shape[0] == matrix.shape[1] == problem.n:
        raise Stuck
    rows: F64 = matrix @ problem.inputs
    return rows if bias is None else rows + bias


MISCONCEPTION = Misconception(
    id="proj.wx",
    title="The matrix was put before the embeddings",
    formula=r"Q = W_Q X",
    explanation=(
        "The order of a matrix product matters. With the matrix in front, its rows are combined with columns"
        " of the embeddings, and one token's numbers are mixed with another's before attention has even begun."
    ),
    remedy=(
        "Tokens are rows here, so the embeddings stand on the left: each row of the embeddings, times the"
        " matrix, gives that token's own row."
    ),
    ways=in_projections(_rows),
    twins={},
)
