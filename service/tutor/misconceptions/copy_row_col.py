"""A whole matrix with rows and columns exchanged."""

from service.tutor.arithmetic import right
from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import Compute, StepId

_STEPS: tuple[StepId, ...] = ("raw_scores", "scaled_scores", "weights", "outputs", "query", "key", "value")


def _turned(step: StepId) -> Compute:
    return lambda problem, values: right(step, problem, values).swapaxes(-1, -2)


MISCONCEPTION = Misconception(
    id="copy.row_col",
    title="Rows and columns were exchanged in copying",
    formula=r"Y \to Y^\top",
    explanation=("Every number is right, but the table lies on its side: what belongs in a row stands in a column."),
    remedy="Rows are tokens, in every table of this recipe. Copy row by row, from left to right.",
    ways=tuple({step: _turned(step)} for step in _STEPS),
    twins={
        "score.kqt": "scores copied with rows and columns exchanged look the same",
        "out.transposed_weights": "weights copied with rows and columns exchanged lead to the same outputs",
    },
    slip=True,
)
