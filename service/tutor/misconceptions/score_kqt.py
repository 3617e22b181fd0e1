"""Keys times transposed queries."""

from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="score.kqt",
    title="Keys and queries were multiplied in the wrong order",
    formula=r"S = K Q^\top",
    explanation=(
        "Every number is there, but mirrored: a row should hold how one query meets all keys, and here it"
        " holds how one key meets all queries. The softmax works row by row, so this changes everything after."
    ),
    remedy=("Queries come first: row i belongs to the token that asks, column j to the token that is asked."),
    ways=(
        {
            "raw_scores": lambda problem, values: (
                per_head(problem, values, "key") @ per_head(problem, values, "query").swapaxes(-1, -2)
            )
        },
    ),
    twins={
        "proj.swap_qk": (
            "exchanged queries and keys give the same scores as the product in the wrong order; only the"
            " queries and keys themselves tell"
        ),
        "copy.row_col": "scores copied with rows and columns exchanged look the same",
    },
)
