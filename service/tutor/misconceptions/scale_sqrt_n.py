"""Divided by the square root of the number of tokens."""

import numpy as np

from service.tutor.arithmetic import scaled_by
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="scale.sqrt_n",
    title="Divided by the root of the number of tokens",
    formula=r"T = \frac{S}{\sqrt{n}}",
    explanation=(
        "The root is right, but it was taken of the number of tokens. A score compares two tokens only: how"
        " many others there are does not change how large it gets."
    ),
    remedy=(
        "Count the columns of one key and take the square root of that. More tokens mean more scores, not larger ones."
    ),
    ways=({"scaled_scores": scaled_by(lambda problem: float(1 / np.sqrt(problem.n)))},),
    twins={
        "scale.sqrt_dmodel": (
            "where there are as many tokens as embeddings have columns, both divide by the same number"
        ),
    },
)
