"""Divided by d_k."""

from service.tutor.arithmetic import scaled_by
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="scale.dk",
    title="Divided by the width of a key, not by its square root",
    formula=r"T = \frac{S}{d_k}",
    explanation=(
        "You divided by the right width, but forgot the root. Sums of products spread like the square root of"
        " their number, and that is what is to be taken out again; dividing by all of it flattens the scores"
        " too much."
    ),
    remedy="Take the square root of d_k, the number of columns of a key, and divide by that.",
    ways=({"scaled_scores": scaled_by(lambda problem: 1 / problem.head_dim)},),
    twins={
        "scale.sqrt_dmodel": ("where embeddings are as wide as a key's width squared, both divide by the same number"),
        "scale.dmodel": "where keys are as wide as embeddings, both divide by the same number",
        "scale.n": "where there are as many tokens as a key has columns, both divide by the same number",
        "softmax.base2": "where keys have two columns, the two change the weights by nearly the same",
    },
)
