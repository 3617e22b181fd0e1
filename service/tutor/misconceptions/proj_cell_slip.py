"""One entry of a projection wrong; in simulations, the sign of the largest one of the first row."""

import numpy as np

from models.types import F64
from service.tutor.arithmetic import right
from service.tutor.misconceptions.base import PROJECTIONS, Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Compute, StepId, Stuck, Values


def _slip(step: StepId) -> Compute:
    def compute(problem: Problem, values: Values) -> F64:
        rows = right(step, problem, values).copy()
        column = int(np.abs(rows[0]).argmax())
        if not rows[0, column]:
            raise Stuck  # all zeros: no sign to get wrong
        rows[0, column] *= -1
        return rows

    return compute


MISCONCEPTION = Misconception(
    id="proj.cell_slip",
    title="A slip in a single entry",
    formula=r"Q_{ij} \to -Q_{ij} \quad \text{for one } i, j",
    explanation=(
        "All but one entry of this matrix are right, so you know how it is done: a sign or an index slipped"
        " in this one sum."
    ),
    remedy=(
        "Work that one entry again: its row of the embeddings, its column of the matrix, one product after"
        " another, with an eye on the signs."
    ),
    ways=tuple({step: _slip(step)} for step in PROJECTIONS),
    twins={},
    slip=True,
)
