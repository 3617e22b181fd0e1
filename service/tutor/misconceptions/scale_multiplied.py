"""Multiplied by the square root of d_k."""

import numpy as np

from service.tutor.arithmetic import scaled_by
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="scale.multiplied",
    title="Multiplied by the root instead of divided",
    formula=r"T = S \sqrt{d_k}",
    explanation=(
        "The number is right, the direction is not: scores were drawn further apart when they were to be"
        " brought closer. The softmax then gives nearly everything to the largest."
    ),
    remedy="Divide by √d_k. As a check: scaled scores lie closer to zero than raw ones.",
    ways=({"scaled_scores": scaled_by(lambda problem: float(np.sqrt(problem.head_dim)))},),
    twins={
        "softmax.hardmax": "where one score is far above the rest, both give it all the weight",
        "softmax.base10": "where one score is far above the rest, both give it all the weight",
    },
)
