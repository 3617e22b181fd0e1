"""Pieces of the recipe from which other ways of working it are put together."""

from collections.abc import Callable

import numpy as np

from models.types import F64, Bool
from service.tutor.problem import Problem
from service.tutor.steps import STEPS, Compute, StepId, Stuck, Values, split


def per_head(problem: Problem, values: Values, step: StepId) -> F64:
    """Queries, keys or values of each head: (h, n, columns)."""
    return split(values[step], problem.num_heads)


def softmax(scores: F64, axis: int = -1) -> F64:
    """exp(scores), divided by its sum along the axis; zeros where that axis has nothing but minus infinity."""
    largest = scores.max(axis=axis, keepdims=True)
    return shares(np.exp(scores - np.where(np.isneginf(largest), 0.0, largest)), axis)


def shares(exponentials: F64, axis: int | tuple[int, ...] = -1) -> F64:
    """Exponentials divided by their sum along the axes; zeros where that is zero."""
    total = exponentials.sum(axis=axis, keepdims=True)
    divided: F64 = exponentials / np.where(total == 0, 1.0, total)
    return divided


def scaled_by(factor: Callable[[Problem], float]) -> Compute:
    """The step of scaling with another factor; `factor` may raise `Stuck`."""

    def scaled_scores(problem: Problem, values: Values) -> F64:
        scaled: F64 = values["raw_scores"] * factor(problem)
        return scaled if problem.attn_bias is None else scaled + problem.attn_bias

    return scaled_scores


def mask_of(problem: Problem) -> Bool:
    """Which column each row may see, (n, n).

    Raises:
        Stuck: if all rows see all columns, and there is no step of masking.
    """
    if problem.keep is None:
        raise Stuck
    return problem.keep


def hidden_as(scores: F64, keep: Bool | None, number: float) -> F64:
    """Scores, (h, n, n), with a number in the place of those that are not to be seen."""
    return scores if keep is None else np.where(keep, scores, number)


def several(problem: Problem) -> int:
    """The number of heads.

    Raises:
        Stuck: if there is only one, and nothing to do wrong with them.
    """
    if problem.num_heads == 1:
        raise Stuck
    return problem.num_heads


def mixed(weights: F64, rows: F64) -> F64:
    """Each token's rows, (h, n, columns), times its weights, (h, n, n): (h, n, n, columns)."""
    each: F64 = weights[..., None] * rows[:, None]
    return each


def right(step: StepId, problem: Problem, values: Values) -> F64:
    """A step as it should be."""
    return STEPS[step].compute(problem, values)
