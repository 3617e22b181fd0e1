"""No scale at all."""

from models.types import F64
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values


def _scaled_scores(_: Problem, values: Values) -> F64:
    return values["raw_scores"]


MISCONCEPTION = Misconception(
    id="scale.none",
    title="The scores were not scaled",
    formula=r"T = S",
    explanation=(
        "The dot products went into the softmax as they are. A dot product adds up one product per column, so the"
        " longer queries and keys are, the further apart scores lie, and the softmax would give nearly everything to"
        " one token."
    ),
    remedy="Divide every score by the square root of the number of columns of a key, √d_k, before the softmax.",
    replaces={"scaled_scores": _scaled_scores},
    twins={"softmax.skipped": "where all scores of a row are equal, no scale shows"},
)
