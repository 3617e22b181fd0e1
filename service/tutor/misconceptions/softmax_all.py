"""One softmax over the whole matrix."""

from models.types import F64
from service.tutor.arithmetic import shares, softmax
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values, last_scores


def _of_scores(problem: Problem, values: Values) -> F64:
    scores = last_scores(problem, values)
    return softmax(scores.reshape(len(scores), -1)).reshape(scores.shape)


def _of_exponentials(_: Problem, values: Values) -> F64:
    return shares(values["softmax_exp"], axis=(-2, -1))


MISCONCEPTION = Misconception(
    id="softmax.all",
    title="One softmax was taken over the whole table",
    formula=r"A_{ij} = \frac{e^{T_{ij}}}{\sum_{i,j} e^{T_{ij}}}",
    explanation=(
        "Everything together adds up to one, so the tokens have to share a single helping of attention. Each"
        " token has a whole one of its own to give."
    ),
    remedy=(
        "Divide the exponentials of a row by the sum of that row, not of the table. Afterwards every row adds"
        " up to one."
    ),
    ways=({"weights": _of_scores}, {"weights": _of_exponentials}),
    twins={},
)
