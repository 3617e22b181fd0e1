"""Divided by the square root of the embeddings' width."""

import numpy as np

from service.tutor.arithmetic import scaled_by
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="scale.sqrt_dmodel",
    title="Divided by the root of the embeddings' width",
    formula=r"T = \frac{S}{\sqrt{d_{\text{model}}}}",
    explanation=(
        "The root is right, the width is not. The sum in a score runs over the columns of a query and a key;"
        " how wide the embeddings were before projecting no longer matters."
    ),
    remedy="Count the columns of one key and take the square root of that.",
    ways=({"scaled_scores": scaled_by(lambda problem: float(1 / np.sqrt(problem.embed_dim)))},),
    twins={
        "scale.dk": ("where embeddings are as wide as a key's width squared, both divide by the same number"),
        "scale.sqrt_n": ("where there are as many tokens as embeddings have columns, both divide by the same number"),
        "scale.total_width": ("where the heads together are as wide as the embeddings, both divide by the same number"),
    },
)
