"""Divided by the number of tokens."""

from service.tutor.arithmetic import scaled_by
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="scale.n",
    title="Divided by the number of tokens",
    formula=r"T = \frac{S}{n}",
    explanation=(
        "Dividing by the number of tokens would be for taking an average over them. Here nothing is averaged"
        " yet: a score compares two tokens, and its size comes from the number of columns that were added up."
    ),
    remedy="Count the columns of one key, take the square root, and divide every score by it.",
    ways=({"scaled_scores": scaled_by(lambda problem: 1 / problem.n)},),
    twins={
        "scale.dk": "where there are as many tokens as a key has columns, both divide by the same number",
        "scale.dmodel": ("where there are as many tokens as embeddings have columns, both divide by the same number"),
    },
)
