"""The softmax of each column."""

from service.tutor.arithmetic import shares, softmax
from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import last_scores

MISCONCEPTION = Misconception(
    id="softmax.columns",
    title="The softmax went down the columns",
    formula=r"A_{ij} = \frac{e^{T_{ij}}}{\sum_i e^{T_{ij}}}",
    explanation=(
        "Your columns add up to one, and your rows do not. That shares each token out among those who look,"
        " where each one who looks should share its attention out among the tokens."
    ),
    remedy="Stay in one row: exponentials of that row, divided by the sum of that row.",
    ways=(
        {"weights": lambda problem, values: softmax(last_scores(problem, values), axis=-2)},
        {"weights": lambda _, values: shares(values["softmax_exp"], axis=-2)},
    ),
    twins={
        "out.transposed_weights": "where the scores equal their mirror image, so do the two ways to the outputs",
    },
)
