"""Scores of whole numbers as fractions and roots: what stands on paper before anybody takes up a calculator."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.types import F64
from service.tutor.problem import Problem
from service.tutor.steps import Values

LARGEST = 2.0**31
"""Integers up to this size are written out; their sums of products are far from where float64 would round them."""

Cells = list[Any]
"""A form per cell, nested as the step's array is, (h, n, n) or (n, columns); None for a masked one."""


@dataclass(frozen=True, slots=True)
class Surd:
    """numerator * sqrt(radicand) / denominator in lowest terms; the radicand has no square factor.

    Attributes:
        asked: how it stood before it was simplified: numerator, and what is under the root below it; such as 3/√2.
    """

    numerator: int
    radicand: int
    denominator: int
    asked: tuple[int, int]

    @classmethod
    def over_root(cls, numerator: int, under: int) -> "Surd":
        """Numerator / sqrt(under), for whole numbers, under >= 1."""
        outside, inside = _square_free(under)
        bottom = outside * inside
        common = math.gcd(numerator, bottom)
        simple = (0, 1, 1) if numerator == 0 else (numerator // common, inside, bottom // common)
        return cls(*simple, (numerator, under))

    @property
    def value(self) -> float:
        """What it is as a decimal number."""
        return self.numerator * math.sqrt(self.radicand) / self.denominator

    @property
    def simple(self) -> str:
        """In lowest terms: 3√2/2."""
        size = abs(self.numerator)
        root = f"√{self.radicand}" if self.radicand > 1 else ""
        top = root if root and size == 1 else f"{size}{root}"
        return f"{'−' * (self.numerator < 0)}{top}{f'/{self.denominator}' if self.denominator > 1 else ''}"

    @property
    def text(self) -> str:
        """As it stood, and in lowest terms where that is something else: 3/√2 = 3√2/2."""
        top, under = self.asked
        first = str(top).replace("-", "−") if under == 1 else f"{str(top).replace('-', '−')}/{_root(under)}"
        return first if first == self.simple else f"{first} = {self.simple}"

    @property
    def latex(self) -> str:
        """In lowest terms, as LaTeX."""
        size = abs(self.numerator)
        root = rf"\sqrt{{{self.radicand}}}" if self.radicand > 1 else ""
        top = root if root and size == 1 else f"{size}{root}"
        whole = rf"\frac{{{top}}}{{{self.denominator}}}" if self.denominator > 1 else top
        return "-" * (self.numerator < 0) + whole


def _root(under: int) -> str:
    root = math.isqrt(under)
    return str(root) if root * root == under else f"√{under}"


def _square_free(number: int) -> tuple[int, int]:
    """A and b with a² b = number, b without a square factor; number is small."""
    outside = max(a for a in range(1, math.isqrt(number) + 1) if number % (a * a) == 0)
    return outside, number // (outside * outside)


def exact(problem: Problem, values: Values) -> dict[str, Cells]:
    """The exact forms of the steps that have some; none at all where what is given is not whole.

    Args:
        problem: what was worked.
        values: its steps, as `steps.work` makes them.

    Returns:
        `Surd`s by step: Q, K, V and S; T too, unless the caller scales or biases; masked scores and the largest of
        each row likewise.
    """
    given = (problem.inputs, problem.query, problem.key, problem.value,
             problem.query_bias, problem.key_bias, problem.value_bias)  # fmt: skip
    if not all(_whole(array) for array in given if array is not None):
        return {}
    steps = ("query", "key", "value", "raw_scores")
    if not all(_whole(values[step]) for step in steps):
        return {}
    found = {step: _each(values[step], 1) for step in steps}
    if problem.scale is not None or problem.attn_bias is not None:
        return found
    found["scaled_scores"] = scaled = _each(values["raw_scores"], problem.head_dim)
    kept = scaled
    if problem.keep is not None:
        rows = problem.keep.tolist()
        found["masked_scores"] = kept = [
            [
                [cell if sees else None for cell, sees in zip(*pair, strict=True)]
                for pair in zip(head, rows, strict=True)
            ]
            for head in scaled
        ]
    found["softmax_max"] = [
        [[max((cell for cell in row if cell is not None), key=lambda cell: cell.value, default=ZERO)] for row in head]
        for head in kept
    ]
    return found


ZERO = Surd.over_root(0, 1)


def _whole(array: F64) -> bool:
    return bool((array == np.round(array)).all() and (np.abs(array) <= LARGEST).all())


def _each(array: F64, under: int) -> Cells:
    if array.ndim == 1:
        return [Surd.over_root(int(number), under) for number in array]
    return [_each(row, under) for row in array]
