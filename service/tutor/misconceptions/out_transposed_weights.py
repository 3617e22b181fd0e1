"""Transposed weights times values."""

from service.tutor.arithmetic import mixed, per_head
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="out.transposed_weights",
    title="The weights were read by columns",
    formula=r"O = A^\top V",
    explanation=(
        "Each output took the weights of a column: how much all others look at this token. It should take"
        " those of a row: how much this token looks at the others."
    ),
    remedy=("For the output of a token, take the row of weights of that same token; its shares add up to one."),
    ways=(
        {
            "weighted_values": lambda problem, values: mixed(
                values["weights"].swapaxes(-1, -2), per_head(problem, values, "value")
            )
        },
    ),
    twins={
        "softmax.columns": "where the scores equal their mirror image, so do the two ways to the outputs",
        "copy.row_col": "weights copied with rows and columns exchanged lead to the same outputs",
    },
)
