"""Exponentials taken for weights."""

import numpy as np

from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import last_scores

MISCONCEPTION = Misconception(
    id="softmax.no_denominator",
    title="The exponentials were not divided by their sum",
    formula=r"A_{ij} = e^{T_{ij}}",
    explanation=(
        "The exponentials are right, but they are not shares yet: some may be larger than one, and a row"
        " of them adds up to whatever it likes."
    ),
    remedy="Add up the exponentials of a row, and divide each of them by that sum.",
    ways=({"weights": lambda problem, values: np.exp(last_scores(problem, values))},),
    twins={
        "softmax.max_subtracted_shown_as_exp": "where a row's largest score is zero, taking it off changes nothing",
    },
)
