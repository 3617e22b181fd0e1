"""Several heads: divided by the square root of all their columns."""

import numpy as np

from service.tutor.arithmetic import scaled_by, several
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="scale.total_width",
    title="Divided by the root of all heads' width together",
    formula=r"T = \frac{S}{\sqrt{h\, d_k}}",
    explanation=(
        "Each head compares with its own few columns only, so its sums are short. Dividing by the root of all"
        " columns together shrinks them more than they need."
    ),
    remedy="Count the columns that one head has, and take the square root of that number.",
    ways=({"scaled_scores": scaled_by(lambda problem: float(1 / np.sqrt(several(problem) * problem.head_dim)))},),
    twins={
        "scale.sqrt_dmodel": ("where the heads together are as wide as the embeddings, both divide by the same number"),
    },
)
