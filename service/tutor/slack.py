"""How far apart two people may come to lie who work alike, but round in other places."""

from collections.abc import Callable, Mapping

import numpy as np

from models.types import F64
from service.tutor.problem import Problem
from service.tutor.steps import Values, joined, last_scores, split, steps_of

Errors = Mapping[str, F64]
"""Per step and cell, how far from what they would be with all digits they may be."""

NEVER_ROUNDED = frozenset({"softmax_max", "softmax_sum"})
"""The largest of rounded numbers, and their sum, have no more places than they."""


def slack(
    problem: Problem, values: Values, known: Values, decimals: int, step: str, doubts: Errors | None = None
) -> F64:
    """What rounding between the steps that are known and `step` may add up to there, to first order.

    Args:
        problem: what is worked.
        values: every step that `step` needs, and `step` itself, with all digits.
        known: the steps whose numbers stand on paper; nothing is to be allowed for before them.
        decimals: the places that each step between may have been rounded to.
        step: where it is to be known.
        doubts: how far off what is known may be itself; None for nothing.

    Returns:
        Not less than 0, in the shape of the step's array.
    """
    half = 0.5 * 10.0**-decimals
    errors: dict[str, F64] = {}
    with np.errstate(all="ignore"):
        for each in steps_of(problem):
            if each not in values:
                continue
            none = np.zeros_like(values[each])
            errors[each] = none + (
                (doubts or {}).get(each, none) if each in known else CARRIED[each](problem, values, errors)
            )
            if each == step:
                break
            if each not in known and each not in NEVER_ROUNDED:
                errors[each] = errors[each] + half * _rounding(values, known, each, decimals)
    return np.nan_to_num(errors[step], nan=0.0, posinf=0.0, neginf=0.0)


def _rounding(values: Values, known: Values, step: str, decimals: int) -> F64:
    """How many halves of the last place rounding a step's numbers costs: none where they have no more places."""
    array = values[step]
    costs: F64 = np.where(np.isneginf(array) | (np.round(array, decimals) == array), 0.0, 1.0)
    if step == "softmax_exp" and "softmax_max" not in known:
        # Whoever subtracts no maximum has smaller numbers where it is negative, and rounds off a larger part of them.
        costs = np.where(array > 0, np.exp(np.maximum(-values["softmax_max"], 0.0)), 0.0)
    return costs


def _nothing(_: Problem, __: Values, ___: Errors) -> F64:
    return np.zeros((1, 1))  # embeddings and projections are exact


def _raw_scores(problem: Problem, values: Values, errors: Errors) -> F64:
    query, key = split(values["query"], problem.num_heads), split(values["key"], problem.num_heads).swapaxes(-1, -2)
    off_query = split(errors["query"], problem.num_heads)
    off_key = split(errors["key"], problem.num_heads).swapaxes(-1, -2)
    off: F64 = np.abs(query) @ off_key + off_query @ (np.abs(key) + off_key)
    return off


def _scaled_scores(problem: Problem, _: Values, errors: Errors) -> F64:
    return errors["raw_scores"] * abs(problem.factor)


def _masked_scores(_: Problem, __: Values, errors: Errors) -> F64:
    return errors["scaled_scores"]


def _softmax_max(problem: Problem, _: Values, errors: Errors) -> F64:
    off: F64 = last_scores(problem, errors).max(axis=-1, keepdims=True)
    return off


def _softmax_exp(problem: Problem, values: Values, errors: Errors) -> F64:
    off: F64 = values["softmax_exp"] * np.expm1(last_scores(problem, errors) + errors["softmax_max"])
    return off


def _softmax_sum(_: Problem, __: Values, errors: Errors) -> F64:
    off: F64 = errors["softmax_exp"].sum(axis=-1, keepdims=True)
    return off


def _weights(_: Problem, values: Values, errors: Errors) -> F64:
    weights, total, off = values["weights"], values["softmax_sum"], errors["softmax_exp"]
    others = off.sum(axis=-1, keepdims=True) - off
    shares: F64 = ((1 - weights) * off + weights * others) / np.where(total == 0, 1.0, total)
    return shares


def _weighted_values(problem: Problem, values: Values, errors: Errors) -> F64:
    weights, off_weights = values["weights"][..., None], errors["weights"][..., None]
    value = split(values["value"], problem.num_heads)[:, None]
    off_value = split(errors["value"], problem.num_heads)[:, None]
    off: F64 = np.abs(weights) * off_value + off_weights * (np.abs(value) + off_value)
    return off


def _outputs(_: Problem, __: Values, errors: Errors) -> F64:
    return joined(errors["weighted_values"].sum(axis=-2))


CARRIED: dict[str, Callable[[Problem, Values, Errors], F64]] = {
    "query": _nothing,
    "key": _nothing,
    "value": _nothing,
    "raw_scores": _raw_scores,
    "scaled_scores": _scaled_scores,
    "masked_scores": _masked_scores,
    "softmax_max": _softmax_max,
    "softmax_exp": _softmax_exp,
    "softmax_sum": _softmax_sum,
    "weights": _weights,
    "weighted_values": _weighted_values,
    "outputs": _outputs,
}
"""What the errors of the steps before make of a step, to first order."""
