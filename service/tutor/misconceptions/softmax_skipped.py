"""Scores taken for weights."""

from service.tutor.arithmetic import hidden_as
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="softmax.skipped",
    title="The softmax was left out",
    formula=r"A = T",
    explanation=(
        "The scores themselves were taken for weights. Scores may be negative and add up to anything; weights"
        " are shares, never negative, and a row of them adds up to one."
    ),
    remedy="Take the exponential of every score, and divide each row by its sum.",
    ways=({"weights": lambda problem, values: hidden_as(values["scaled_scores"], problem.keep, 0.0)},),
    twins={},
)
