"""What a renderer is: an explanation becomes bytes, the same ones whenever and wherever it does."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from models.types import F64
from service.tutor.exact import Cells, Surd
from service.tutor.explain import ExplainedStep, Explanation
from service.tutor.pictures import PictureName
from service.tutor.pictures.palette import Theme
from service.tutor.prose import number, places


@dataclass(frozen=True, slots=True)
class Look:
    """How an answer is to look, as far as its media type leaves that open.

    Attributes:
        picture: which one.
        theme: of a picture.
        decimals: that the numbers of JSON are rounded to; None for all that count.
    """

    picture: PictureName = "heatmap"
    theme: Theme = "auto"
    decimals: int | None = None


class Renderer(Protocol):
    """Writes explanations of one media type."""

    media_type: str
    charset: str
    """Empty where the media type has none."""

    def render(self, explanation: Explanation, look: Look) -> bytes:
        """The explanation, whole."""


MASKED = "masked"
"""What stands in the place of a masked score."""


@dataclass(frozen=True, slots=True)
class Table:
    """A matrix as it is printed.

    Attributes:
        caption: which part of the step it is; empty where the step is one matrix.
        rows, columns: labels.
        cells: text by row; `MASKED` where a score is masked.
        exact: the same as fractions and roots, None where that says no more; empty where there is nothing of the kind.
        values: the numbers themselves.
    """

    caption: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: list[list[str]]
    exact: list[list[Surd | None]]
    values: F64


def tables(explanation: Explanation, step: ExplainedStep) -> list[Table]:
    """The matrices of a step: one, or one per head, or one per row that weighs values."""
    found = []
    for place in np.ndindex(step.values.shape[:-2]):
        values = step.values[place]
        forms = step.exact
        for index in place:
            forms = None if forms is None else forms[index]
        found.append(
            Table(
                _caption(explanation, step, place),
                step.row_labels,
                step.column_labels,
                printed(values, step.values, explanation.tale.decimals),
                _exact(forms),
                values,
            )
        )
    return found


def _caption(explanation: Explanation, step: ExplainedStep, place: tuple[int, ...]) -> str:
    heads = explanation.problem.num_heads
    parts = [f"head {place[0] + 1} of {heads}"] if heads > 1 and place else []
    if step.id == "weighted_values":
        parts.append(f"row of {explanation.tale.name(place[-1])}")
    return ", ".join(parts)


def printed(values: F64, of: F64, decimals: int) -> list[list[str]]:
    """Numbers as text; without decimals where all of `of` is whole."""
    decimals = places(of[np.isfinite(of)], decimals)
    return [[number(float(x), decimals) if np.isfinite(x) else MASKED for x in row] for row in values]


def _exact(forms: Cells | None) -> list[list[Surd | None]]:
    """The forms that say more than the decimals do."""
    if forms is None:
        return []
    rows = [[form if isinstance(form, Surd) and form.asked[1] > 1 else None for form in row] for row in forms]
    return rows if any(map(any, rows)) else []
