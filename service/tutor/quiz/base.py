"""What a question is: a text, one right choice and some wrong ones, each with what is said to whoever takes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.types import F64
from service.tutor.chance import Chance
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.problem import Problem
from service.tutor.steps import StepId, Values, work

Topic = Literal[
    "query", "key", "value", "scaling", "softmax", "weighted-sum", "masks", "heads", "order", "shapes"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the choices.

    Attributes:
        text: what it says.
        why: what is said to whoever takes it: why it is right, or why not.
        misconception: id of the idea that leads to it; empty where none does.
    """

    text: str
    why: str
    misconception: str = ""


@dataclass(frozen=True, slots=True)
class Posed:
    """A question as it is posed, with its numbers.

    Attributes:
        text: the question.
        right: the right choice.
        wrong: the other ones, two or more.
        formula: shown with the text, LaTeX; empty for none.
    """

    text: str
    right: Choice
    wrong: tuple[Choice, ...]
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question.

    Attributes:
        id: its public name, which begins with its topic and never changes.
        pose: draws its numbers, if it has any.
        since: the first version of the generator that asks it.
    """

    id: str
    pose: Callable[[Chance], Posed]
    since: int = 1

    @property
    def topic(self) -> Topic:
        """What it is about."""
        topic: Topic = self.id.partition(".")[0]  # type: ignore[assignment]  # a test looks at each
        return topic


def fixed(id: str, text: str, right: Choice, *wrong: Choice, formula: str = "") -> Question:
    """A question that is always the same."""
    posed = Posed(text, right, wrong, formula)
    return Question(id, lambda _: posed)


def mistaken(
    problem: Problem, known: Values, step: StepId, ids: Sequence[str], written: Callable[[F64], str]
) -> tuple[str, list[tuple[str, str]]] | None:
    """What a step comes to, and what it comes to by some mistakes.

    Args:
        problem: the sizes, and what is not known.
        known: arrays that the question gives.
        step: what is asked for.
        ids: of misconceptions, made in their usual way.
        written: what the question shows of that step's array.

    Returns:
        The right result, and for each mistake its id and its result; None where two of them look the same or one
        cannot be made, so that other numbers are needed.
    """
    results = [written(work(problem, known, only=(step,))[step])]
    for id in ids:
        way = MISCONCEPTIONS[id].ways[0]
        given = {name: array for name, array in known.items() if name not in way}
        worked = work(problem, given, way, only=(step,))
        if step not in worked:
            return None
        results.append(written(worked[step]))
    if len(set(results)) < len(results):
        return None
    return results[0], list(zip(ids, results[1:], strict=True))


def number(x: float, decimals: int = 2) -> str:
    """A number as it is written: rounded, without trailing zeros, with a real minus sign."""
    text = f"{x:.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text.replace("-", "−")


def vector(row: F64, decimals: int = 2) -> str:
    """Numbers in brackets."""
    return f"({', '.join(number(float(x), decimals) for x in row)})"


def matrix(rows: F64, decimals: int = 2) -> str:
    """Rows of numbers, LaTeX."""
    lines = r" \\ ".join(" & ".join(number(float(x), decimals).replace("−", "-") for x in row) for row in rows)
    return rf"\begin{{pmatrix}} {lines} \end{{pmatrix}}"


def integers(chance: Chance, shape: tuple[int, ...], most: int = 3) -> F64:
    """Whole numbers from -most to most, without zero."""
    size = int(np.prod(shape))
    drawn = [chance.choice((-1, 1)) * chance.between(1, most) for _ in range(size)]
    return np.array(drawn, dtype=np.float64).reshape(shape)


def sized(n: int, head_dim: int, value_dim: int, embed_dim: int, *, is_causal: bool = False) -> Problem:
    """A problem of these sizes, for questions that give a later step."""
    return Problem(
        np.zeros((n, embed_dim)),
        np.zeros((embed_dim, head_dim)),
        np.zeros((embed_dim, head_dim)),
        np.zeros((embed_dim, value_dim)),
        is_causal=is_causal,
    )
