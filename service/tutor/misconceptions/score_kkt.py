"""Keys times keys."""

from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="score.kkt",
    title="Keys were compared with keys",
    formula=r"S = K K^\top",
    explanation=(
        "Offers were held against offers, and nobody asked: the queries were never used. You can see it: the"
        " table equals its own mirror image."
    ),
    remedy="Take the query of the token that looks, and the key of the token that is looked at.",
    ways=(
        {
            "raw_scores": lambda problem, values: (
                per_head(problem, values, "key") @ per_head(problem, values, "key").swapaxes(-1, -2)
            )
        },
    ),
    twins={},
)
