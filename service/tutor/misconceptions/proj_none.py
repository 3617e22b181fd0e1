"""Embeddings used as they are."""

from models.types import F64
from service.tutor.misconceptions.base import Misconception, in_projections, projection_of
from service.tutor.problem import Problem
from service.tutor.steps import StepId, Stuck


def _rows(problem: Problem, step: StepId) -> F64:
    matrix, _ = projection_of(problem, step)
    if matrix.shape[1] != problem.embed_dim:
        raise Stuck
    return problem.inputs


MISCONCEPTION = Misconception(
    id="proj.none",
    title="The embeddings were not projected",
    formula=r"Q = K = V = X",
    explanation=(
        "The embeddings themselves went on as queries, keys and values. All that this layer has learned"
        " is in its projections; without them, tokens are compared and mixed just as they came."
    ),
    remedy=(
        "First multiply the embeddings with each of the three matrices. Queries, keys and values are three"
        " different views of the same token."
    ),
    ways=in_projections(_rows),
    twins={},
)
