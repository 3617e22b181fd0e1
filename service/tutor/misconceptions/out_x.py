"""Embeddings mixed instead of values."""

from models.types import F64
from service.tutor.arithmetic import mixed
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck, Values


def _weighted_values(problem: Problem, values: Values) -> F64:
    if problem.value_dim != problem.embed_dim:
        raise Stuck
    return mixed(values["weights"], problem.inputs[None])


MISCONCEPTION = Misconception(
    id="out.x",
    title="The embeddings were mixed instead of the values",
    formula=r"O = A X",
    explanation=(
        "The weights were put to work on the embeddings themselves. What tokens pass on are their values:"
        " what the projection made of the embeddings."
    ),
    remedy="Project the embeddings with the matrix marked V first, and mix the rows of that.",
    ways=({"weighted_values": _weighted_values},),
    twins={},
)
