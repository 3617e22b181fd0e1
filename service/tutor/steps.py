"""The recipe as a list of steps, each computed from those before it: right, or as somebody would who errs in one.

Ids of steps are public and fixed for good.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.types import F64
from service.tutor.problem import Problem

StepId = Literal[
    "query",
    "key",
    "value",
    "raw_scores",
    "scaled_scores",
    "masked_scores",
    "softmax_max",
    "softmax_exp",
    "softmax_sum",
    "weights",
    "weighted_values",
    "outputs",
]

Values = Mapping[str, F64]
"""Arrays by step, as far as they have been worked; see `Step` for their shapes."""

Compute = Callable[[Problem, Values], F64]
"""One step's array, from the problem and the steps before it."""


class Stuck(Exception):
    """Somebody who works this way has nothing to go on with: the arrays do not fit."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the recipe; n tokens, h heads.

    Attributes:
        id: its public name.
        title: a few words.
        symbol: what its array is called, LaTeX.
        formula: how it is computed, LaTeX.
        needs: the steps it is computed from, besides the problem itself.
        compute: its array: (n, h * columns) for `query`, `key`, `value` and `outputs`; (h, n, n) for scores,
            exponentials and weights; (h, n, 1) for a row's maximum and sum; (h, n, n, value_dim) for `weighted_values`.
    """

    id: StepId
    title: str
    symbol: str
    formula: str
    needs: tuple[StepId, ...]
    compute: Compute


def split(x: F64, heads: int) -> F64:
    """The columns of each head: (n, h * columns) to (h, n, columns)."""
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def joined(x: F64) -> F64:
    """The heads side by side: (h, n, columns) to (n, h * columns)."""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def _query(problem: Problem, _: Values) -> F64:
    return _projected(problem.inputs, problem.query, problem.query_bias)


def _key(problem: Problem, _: Values) -> F64:
    return _projected(problem.inputs, problem.key, problem.key_bias)


def _value(problem: Problem, _: Values) -> F64:
    return _projected(problem.inputs, problem.value, problem.value_bias)


def _projected(inputs: F64, matrix: F64, bias: F64 | None) -> F64:
    rows: F64 = inputs @ matrix
    return rows if bias is None else rows + bias


def _raw_scores(problem: Problem, values: Values) -> F64:
    query, key = split(values["query"], problem.num_heads), split(values["key"], problem.num_heads)
    scores: F64 = query @ key.swapaxes(-1, -2)
    return scores


def _scaled_scores(problem: Problem, values: Values) -> F64:
    scaled: F64 = values["raw_scores"] * problem.factor
    return scaled if problem.attn_bias is None else scaled + problem.attn_bias


def _masked_scores(problem: Problem, values: Values) -> F64:
    return np.where(True if problem.keep is None else problem.keep, values["scaled_scores"], -np.inf)


def last_scores(problem: Problem, values: Values) -> F64:
    """What the softmax is taken of: masked scores where there is a mask, else scaled ones."""
    return values["masked_scores" if problem.masked else "scaled_scores"]


def _softmax_max(problem: Problem, values: Values) -> F64:
    largest = last_scores(problem, values).max(axis=-1, keepdims=True)
    return np.where(np.isneginf(largest), 0.0, largest)


def _softmax_exp(problem: Problem, values: Values) -> F64:
    return np.exp(last_scores(problem, values) - values["softmax_max"])


def _softmax_sum(_: Problem, values: Values) -> F64:
    total: F64 = values["softmax_exp"].sum(axis=-1, keepdims=True)
    return total


def _weights(_: Problem, values: Values) -> F64:
    total = values["softmax_sum"]
    weights: F64 = values["softmax_exp"] / np.where(total == 0, 1.0, total)
    return weights


def _weighted_values(problem: Problem, values: Values) -> F64:
    each: F64 = values["weights"][..., None] * split(values["value"], problem.num_heads)[:, None]
    return each


def _outputs(_: Problem, values: Values) -> F64:
    return joined(values["weighted_values"].sum(axis=-2))


STEPS: dict[str, Step] = {
    step.id: step
    for step in (
        Step("query", "Project to queries", "Q", r"Q = X W_Q", (), _query),
        Step("key", "Project to keys", "K", r"K = X W_K", (), _key),
        Step("value", "Project to values", "V", r"V = X W_V", (), _value),
        Step("raw_scores", "Compare by dot product", "S", r"S = Q K^\top", ("query", "key"), _raw_scores),
        Step("scaled_scores", "Scale", "T", r"T = \frac{S}{\sqrt{d_k}}", ("raw_scores",), _scaled_scores),
        Step("masked_scores", "Mask", "M",
             r"M_{ij} = \begin{cases} T_{ij} & \text{if } i \text{ may see } j \\ -\infty & \text{else} \end{cases}",
             ("scaled_scores",), _masked_scores),
        Step("softmax_max", "Largest of each row", "m", r"m_i = \max_j T_{ij}", ("scaled_scores", "masked_scores"),
             _softmax_max),
        Step("softmax_exp", "Exponentiate", "E", r"E_{ij} = e^{T_{ij} - m_i}",
             ("scaled_scores", "masked_scores", "softmax_max"), _softmax_exp),
        Step("softmax_sum", "Sum each row", "z", r"z_i = \sum_j E_{ij}", ("softmax_exp",), _softmax_sum),
        Step("weights", "Divide by the sum", "A", r"A_{ij} = \frac{E_{ij}}{z_i}", ("softmax_exp", "softmax_sum"),
             _weights),
        Step("weighted_values", "Weigh the values", r"A_{ij} V_j", r"A_{ij} V_j", ("weights", "value"),
             _weighted_values),
        Step("outputs", "Sum the weighted values", "O", r"O_i = \sum_j A_{ij} V_j", ("weighted_values",), _outputs),
    )
}  # fmt: skip
"""Every step, in the order of the recipe."""


_EVERY = tuple(STEPS)
_UNMASKED = tuple(step for step in STEPS if step != "masked_scores")


def steps_of(problem: Problem) -> tuple[str, ...]:
    """Ids of the problem's steps in order: all, but `masked_scores` only where something is masked."""
    return _EVERY if problem.masked else _UNMASKED


def work(
    problem: Problem,
    known: Values | None = None,
    replaced: Mapping[str, Compute] | None = None,
    decimals: int | None = None,
    only: Collection[str] | None = None,
) -> dict[str, F64]:
    """Work a problem through, as far as it goes.

    Args:
        problem: what to work.
        known: arrays of steps that are taken as they are: somebody's own, from which they went on.
        replaced: steps computed in another way, which somebody takes for the right one.
        decimals: every array is rounded to so many, as on paper; None keeps all digits.
        only: work nothing that these steps do not need; None: everything.

    Returns:
        An array per step, in order. Left out is what cannot be made, because what was done instead does not fit, and
        all that would have to be made from it.
    """
    known, replaced = known or {}, replaced or {}
    needed = None if only is None else _needed(steps_of(problem), only, known, replaced)
    values: dict[str, F64] = {}
    for step in steps_of(problem):
        if needed is not None and step not in needed:
            continue
        if step in known:
            values[step] = known[step]
            continue
        compute = replaced.get(step, STEPS[step].compute)
        try:
            with np.errstate(all="ignore"):  # somebody who errs may well divide by zero
                made = compute(problem, values)
        except (Stuck, ValueError, KeyError, IndexError):
            if not replaced and not known:
                raise
            continue
        values[step] = made if decimals is None else np.round(made, decimals)
    return values


def _needed(steps: Sequence[str], wanted: Collection[str], known: Values, replaced: Mapping[str, Compute]) -> set[str]:
    """These steps and all they need that is not known; one that is done otherwise may need any before it."""
    found: set[str] = set()
    ahead = list(wanted)
    while ahead:
        step = ahead.pop()
        if step not in found:
            found.add(step)
            if step in replaced and step in steps and step not in known:
                ahead.extend(steps[: steps.index(step)])
            elif step not in known:
                ahead.extend(STEPS[step].needs)
    return found


def shape_of(problem: Problem, step: str) -> tuple[int, ...]:
    """The shape of a step's array as it is shown: without the axis of heads where there is one head."""
    n, heads, v = problem.n, problem.num_heads, problem.value_dim
    shapes: dict[str, tuple[int, ...]] = {
        "query": (n, heads * problem.head_dim),
        "key": (n, heads * problem.head_dim),
        "value": (n, heads * v),
        "outputs": (n, heads * v),
    }
    if step in shapes:
        return shapes[step]
    last = {"softmax_max": (n, 1), "softmax_sum": (n, 1), "weighted_values": (n, n, v)}.get(step, (n, n))
    return last if heads == 1 else (heads, *last)


def shown(problem: Problem, step: str, array: F64) -> F64:
    """A step's array as it is shown: without the axis of heads where there is one head."""
    headless = step in ("query", "key", "value", "outputs") or problem.num_heads > 1
    return array if headless else array[0]


def kept(problem: Problem, step: str, array: F64) -> F64:
    """The reverse of `shown`."""
    headless = step in ("query", "key", "value", "outputs") or problem.num_heads > 1
    return array if headless else array[None]
