"""What an exercise is: a problem, what of it is given, and the steps that are asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from models.types import F64
from service.tutor.problem import Problem
from service.tutor.steps import steps_of, work

Mode = Literal["guided", "whiteboard"]

PLAN = "plan"
"""What the first part of a whiteboard asks for, beside the steps of the recipe."""


@dataclass(frozen=True, slots=True)
class Terms:
    """All that an exercise is made from: the same terms, the same exercise, for ever.

    Attributes:
        generator: its name and version, `qkv/1`.
        seed: what is drawn from, 0 to 2**53 - 1.
        draw: which of the drawings from the seed it is.
        level: the id of a level.
        mode: `guided` asks step by step; `whiteboard` first for the plan, and then for the steps without their rules.
        part: 1, and 2 for the steps of a whiteboard.
        tokens, embed_dim, head_dim, value_dim, num_heads: sizes; widths are those of one head.
        is_causal: whether a row sees columns up to its own only.
        decimals: the places that answers are rounded to.
        ask: ids of the steps that are asked, in the order of the recipe.
    """

    generator: str
    seed: int
    draw: int
    level: str
    mode: Mode
    part: int
    tokens: int
    embed_dim: int
    head_dim: int
    value_dim: int
    num_heads: int
    is_causal: bool
    decimals: int
    ask: tuple[str, ...]


@dataclass(frozen=True)
class Exercise:
    """Something to be worked by hand.

    Attributes:
        terms: what it was made from.
        problem: its numbers; embeddings and projections are not numbers where they are not shown.
        given: steps whose arrays are given, rounded as they are shown; shapes as in `Step`.
    """

    terms: Terms
    problem: Problem
    given: Mapping[str, F64]

    @property
    def ask(self) -> tuple[str, ...]:
        """The steps asked; those of the second part too while the first asks for the plan."""
        return self.terms.ask

    @property
    def planning(self) -> bool:
        """Whether it is the first part of a whiteboard, which asks for the plan."""
        return self.terms.mode == "whiteboard" and self.terms.part == 1

    @property
    def asked_now(self) -> tuple[str, ...]:
        """What answers may be handed in to: the steps, or the plan."""
        return (PLAN,) if self.planning else self.ask

    @property
    def shows_inputs(self) -> bool:
        """Whether embeddings and projections are shown: where nothing that follows from them is given."""
        return not self.given

    @property
    def unit(self) -> float:
        """One unit of the last place asked for."""
        return float(10.0**-self.terms.decimals)

    @cached_property
    def right(self) -> dict[str, F64]:
        """The steps asked and all between them, with all digits."""
        return work(self.problem, self.given, only=self.ask)

    @cached_property
    def usual(self) -> dict[str, F64]:
        """The steps asked, as somebody writes who makes no mistake and rounds each."""
        known = dict(self.given)
        for step in self.ask:
            known[step] = np.round(work(self.problem, known, only=(step,))[step], self.terms.decimals)
        return {step: known[step] for step in self.ask}

    def before(self, step: str) -> tuple[str, ...]:
        """The recipe as far as a step, that one included."""
        order = steps_of(self.problem)
        return order[: order.index(step) + 1]
