"""No mask."""

from models.types import F64
from service.tutor.arithmetic import mask_of
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values


def _masked_scores(problem: Problem, values: Values) -> F64:
    mask_of(problem)
    return values["scaled_scores"]


MISCONCEPTION = Misconception(
    id="mask.ignored",
    title="The mask was left out",
    formula=r"M = T",
    explanation=(
        "Some tokens may not be seen from here, and yet they got a share of the attention. With a causal mask"
        " that means a token has looked into its own future."
    ),
    remedy=(
        "Before the softmax, put minus infinity in every place that may not be seen, so that its share"
        " becomes exactly zero."
    ),
    ways=({"masked_scores": _masked_scores},),
    twins={
        "mask.zero_score": (
            "where the hidden scores happen to be zero, leaving them and setting them to zero are the same"
        ),
    },
)
