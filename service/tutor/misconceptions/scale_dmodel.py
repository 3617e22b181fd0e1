"""Divided by the embeddings' width."""

from service.tutor.arithmetic import scaled_by
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="scale.dmodel",
    title="Divided by the width of the embeddings",
    formula=r"T = \frac{S}{d_{\text{model}}}",
    explanation=(
        "Two things went astray at once: the sum in a score runs over the columns of a key and not of an"
        " embedding, and it is the root of their number that scores are divided by."
    ),
    remedy="Count the columns of one key, take the square root, and divide every score by it.",
    ways=({"scaled_scores": scaled_by(lambda problem: 1 / problem.embed_dim)},),
    twins={
        "scale.dk": "where keys are as wide as embeddings, both divide by the same number",
        "scale.n": ("where there are as many tokens as embeddings have columns, both divide by the same number"),
    },
)
