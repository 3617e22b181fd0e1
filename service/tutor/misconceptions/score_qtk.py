"""Transposed queries times keys."""

from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="score.qtk",
    title="The queries were transposed instead of the keys",
    formula=r"S = Q^\top K",
    explanation=(
        "This compares columns with columns: the result has a row and a column for each feature, where it"
        " should have them for each token. Which token looks at which cannot be read from it."
    ),
    remedy=(
        "Leave the queries as they are and turn the keys over. Then every entry is one token's query times"
        " one token's key, and the table is as long and as wide as there are tokens."
    ),
    ways=(
        {
            "raw_scores": lambda problem, values: (
                per_head(problem, values, "query").swapaxes(-1, -2) @ per_head(problem, values, "key")
            )
        },
    ),
    twins={},
)
