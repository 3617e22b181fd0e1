"""No scale at all."""

from service.tutor.arithmetic import scaled_by
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="scale.none",
    title="The scores were not scaled",
    formula=r"T = S",
    explanation=(
        "The dot products went on as they are. A dot product adds up one product per column, so the longer"
        " queries and keys are, the further apart scores lie, and the softmax would give nearly everything to"
        " one token."
    ),
    remedy=("Divide every score by the square root of the number of columns of a key, √d_k, before the softmax."),
    ways=({"scaled_scores": scaled_by(lambda _: 1.0)},),
    twins={},
)
