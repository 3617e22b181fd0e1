"""Queries made with the keys' matrix and keys with the queries'."""

from service.tutor.arithmetic import right
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="proj.swap_qk",
    title="The matrices of queries and keys changed places",
    formula=r"Q = X W_K, \quad K = X W_Q",
    explanation=(
        "A query says what a token looks for, a key what it has to offer. With the two matrices exchanged"
        " each token asks with what it should have offered, and all scores end up mirrored along the diagonal."
    ),
    remedy=(
        "Look at the index of the matrix before you multiply: queries take the one marked Q, keys the one marked K."
    ),
    ways=(
        {
            "query": lambda problem, values: right("key", problem, values),
            "key": lambda problem, values: right("query", problem, values),
        },
    ),
    twins={
        "score.kqt": (
            "exchanged queries and keys give the same scores as the product in the wrong order; only the"
            " queries and keys themselves tell"
        ),
    },
)
