"""The diagonal hidden too."""

import numpy as np

from service.tutor.arithmetic import hidden_as, mask_of
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="mask.strict",
    title="Tokens were hidden from themselves",
    formula=r"M_{ij} = -\infty \quad \text{for } j \ge i",
    explanation=(
        "The diagonal was hidden as well. Tokens look at themselves too; with a causal mask, the first"
        " one would otherwise have nobody to look at."
    ),
    remedy="Keep the diagonal, and hide only what comes after the token of the row.",
    ways=(
        {
            "masked_scores": lambda problem, values: hidden_as(
                values["scaled_scores"], mask_of(problem) & ~np.eye(problem.n, dtype=bool), -np.inf
            )
        },
    ),
    twins={},
)
