"""Scaled scores rounded to one decimal before going on."""

import numpy as np

from service.tutor.arithmetic import right, softmax
from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import last_scores

MISCONCEPTION = Misconception(
    id="round.early",
    title="Rounded too early",
    formula=r"T \to \operatorname{round}(T, 1)",
    explanation=(
        "The scores were rounded to a single decimal before the softmax, and the exponential makes more of"
        " what got lost. The way was right, and this costs nothing, but the last places drift."
    ),
    remedy=("Carry one or two more decimals than you are asked for, and round only what you hand in."),
    ways=(
        {"scaled_scores": lambda problem, values: np.round(right("scaled_scores", problem, values), 1)},
        {"weights": lambda problem, values: softmax(np.round(last_scores(problem, values), 1))},
    ),
    twins={},
    warns=True,
)
