"""Queries times keys entry by entry."""

from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="score.elementwise",
    title="Queries and keys were multiplied entry by entry",
    formula=r"S = Q \odot K",
    explanation=(
        "Each token's query was multiplied with its own key, column by column, and the products were left"
        " standing. So no token is compared with any other, and no sum was taken."
    ),
    remedy=(
        "For each pair of tokens, multiply the query of the one with the key of the other column by column,"
        " and add the products up: one number per pair."
    ),
    ways=(
        {"raw_scores": lambda problem, values: per_head(problem, values, "query") * per_head(problem, values, "key")},
    ),
    twins={},
)
