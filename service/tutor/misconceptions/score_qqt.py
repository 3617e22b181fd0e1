"""Queries times queries."""

from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="score.qqt",
    title="Queries were compared with queries",
    formula=r"S = Q Q^\top",
    explanation=(
        "Questions were held against questions, and the keys were never used. You can see it: the table"
        " equals its own mirror image, since asking is then the same in both directions."
    ),
    remedy="Take the query of the token that looks, and the key of the token that is looked at.",
    ways=(
        {
            "raw_scores": lambda problem, values: (
                per_head(problem, values, "query") @ per_head(problem, values, "query").swapaxes(-1, -2)
            )
        },
    ),
    twins={},
)
