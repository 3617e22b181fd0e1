"""The logistic function of each score."""

import numpy as np

from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import last_scores

MISCONCEPTION = Misconception(
    id="softmax.sigmoid",
    title="Each score went through a sigmoid on its own",
    formula=r"A_{ij} = \frac{1}{1 + e^{-T_{ij}}}",
    explanation=(
        "The sigmoid looks at one score and knows nothing of the others. But attention is a share: what one"
        " token gets, the others cannot have."
    ),
    remedy=("Let the scores of a row compete: exponential of each, divided by the sum over the row."),
    ways=({"weights": lambda problem, values: 1 / (1 + np.exp(-last_scores(problem, values)))},),
    twins={},
)
