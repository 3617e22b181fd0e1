"""`application/json`: everything, for programs."""

from typing import Any

import numpy as np
import orjson

from models.types import F64
from service.tutor.exact import Cells, Surd
from service.tutor.explain import ExplainedStep, Explanation
from service.tutor.mathml import mathml
from service.tutor.problem import MOST_WIDTH
from service.tutor.render.base import Look


class JsonRenderer:
    """All digits unless fewer are asked for; a masked score is null."""

    media_type = "application/json"
    charset = ""

    def render(self, explanation: Explanation, look: Look) -> bytes:
        """See `Renderer.render`."""
        problem, tale, decimals = explanation.problem, explanation.tale, look.decimals
        name, version = explanation.model or ("projections", "")
        answer: dict[str, Any] = {
            "model": {"name": name, "version": version},
            "place": explanation.place,
            "labels": problem.tokens,
            "num_heads": problem.num_heads,
            "is_causal": problem.is_causal,
            "scale": problem.factor,
            "decimals": decimals,
            "summary": f"{explanation.summary}.",
            "alt": explanation.alt,
            "focus": {"head": tale.head, "row": tale.row, "token": problem.tokens[tale.row]},
            **_given(explanation, decimals),
            "steps": [step_json(step, decimals) for step in explanation.steps],
            "checks": {"row_sums": _numbers(explanation.row_sums, 12)},
            "notes": explanation.notes,
        }
        if rows := explanation.fully_masked_rows:
            answer["fully_masked_rows"] = rows
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _given(explanation: Explanation, decimals: int | None) -> dict[str, Any]:
    """What the steps start from, where it is no longer than they are."""
    problem = explanation.problem
    if problem.embed_dim > MOST_WIDTH:
        return {}
    matrices = {part: _numbers(getattr(problem, part), decimals) for part in ("query", "key", "value")}
    return {"inputs": _numbers(problem.inputs, decimals), "projections": matrices}


def step_json(step: ExplainedStep, decimals: int | None = None) -> dict[str, Any]:
    """A step as it stands in answers; its arrays are for orjson, which writes -inf as null.

    Args:
        step: the step.
        decimals: that numbers are rounded to; None for all that count.
    """
    found: dict[str, Any] = {
        "id": step.id,
        "title": step.title,
        "symbol": step.symbol,
        "formula": step.formula,
        "mathml": mathml(step.formula, block=True),
        "operands": [{"name": each.name, "symbol": each.symbol, "shape": each.shape} for each in step.operands],
        "shape": step.values.shape,
        "row_labels": step.row_labels,
        "column_labels": step.column_labels,
        "values": _numbers(step.values, decimals),
    }
    if step.exact is not None:
        found["exact"] = _forms(step.exact)
    if step.terms is not None:
        found["terms"] = _numbers(step.terms, decimals)
    return found | {"text": step.text}


def _numbers(array: F64, decimals: int | None) -> F64:
    rounded = array if decimals is None else np.round(array, decimals)
    return np.ascontiguousarray(rounded + 0.0)  # no minus before nought


def _forms(cells: Cells) -> list[Any]:
    return [_forms(cell) if isinstance(cell, list) else cell.text if isinstance(cell, Surd) else None for cell in cells]
