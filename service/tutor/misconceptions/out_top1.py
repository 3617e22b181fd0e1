"""The value of the token with the largest weight."""

import numpy as np

from models.types import F64
from service.tutor.arithmetic import per_head
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values, joined


def _outputs(problem: Problem, values: Values) -> F64:
    weights = values["weights"]
    best = weights.argmax(axis=-1)[..., None]
    rows = np.take_along_axis(per_head(problem, values, "value"), best, axis=-2)  # (h, n, value_dim)
    return joined(np.where(weights.any(axis=-1, keepdims=True), rows, 0.0))  # a row that sees nothing has no best


MISCONCEPTION = Misconception(
    id="out.top1",
    title="Only the value of the largest weight was taken",
    formula=r"O_i = V_{\arg\max_j A_{ij}}",
    explanation=(
        "The token that is looked at most was taken for the whole answer. It counts most, but all others go"
        " into the output as well, each by its weight."
    ),
    remedy="Multiply every value with its weight, the small ones too, and add them all up.",
    ways=({"outputs": _outputs},),
    twins={
        "softmax.hardmax": "all weight on one token and the value of that token are the same output",
    },
)
