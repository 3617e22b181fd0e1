"""What an answer may have come from: the step as it follows from the numbers before it, and as each mistake has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.types import F64, Bool
from service.tutor.exercise import Exercise
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.slack import slack
from service.tutor.steps import STEPS, shown, work

TOLERANCE = 0.51
"""Of one unit of the last place: half of it is rounding, and the rest is for halves, which people round either way."""

AS_GOOD_AS_MASKED = -1e4
"""A score from here on is taken for a masked one: its weight is zero to any number of places asked for."""


def close(answer: F64, expected: F64, tolerance: F64 | float) -> Bool:
    """Which cells of an answer are what is expected; a blank, not a number, never is.

    Args:
        answer: an array.
        expected: one of its shape.
        tolerance: the largest difference, of that shape or one number.
    """
    with np.errstate(invalid="ignore"):
        near: Bool = np.abs(answer - expected) <= tolerance
    return near | (np.isneginf(expected) & (answer <= AS_GOOD_AS_MASKED))


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a step comes to for somebody with a misconception.

    Attributes:
        id: of the misconception.
        way: which of its ways it is.
        array: as it is shown, of whatever shape.
        slip: whether it is a slip of the pen.
    """

    id: str
    way: int
    array: F64
    slip: bool


@dataclass(frozen=True)
class View:
    """A step as it looks from the numbers before it; arrays as they are shown.

    Attributes:
        exercise: whose step it is.
        known: the arrays that are gone on from, the given ones and a learner's own; shapes as in `Step`.
        step: its id.
    """

    exercise: Exercise
    known: Mapping[str, F64]
    step: str

    @cached_property
    def worked(self) -> dict[str, F64]:
        """Everything up to the step; shapes as in `Step`."""
        return work(self.exercise.problem, self.known, only=self.exercise.before(self.step))

    @cached_property
    def carried(self) -> F64:
        """The step, worked rightly."""
        return self._shown(self.worked[self.step])

    @cached_property
    def slack(self) -> F64:
        """What roundings between may add up to, in the shape of `carried`."""
        return self.slack_with({})

    def slack_with(self, doubts: Mapping[str, F64]) -> F64:
        """The same where numbers that are known may be off themselves; see `slack.slack`."""
        decimals = self.exercise.terms.decimals
        return self._shown(slack(self.exercise.problem, self.worked, self.known, decimals, self.step, doubts))

    @cached_property
    def between(self) -> tuple[str, ...]:
        """The steps that lead from what is known to this one, which is the last of them."""
        found: set[str] = set()
        ahead = [self.step]
        while ahead:
            if (step := ahead.pop()) not in found and (step not in self.known or step == self.step):
                found.add(step)
                ahead.extend(STEPS[step].needs)
        return tuple(step for step in self.exercise.before(self.step) if step in found)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """What each way of each misconception makes of the step, where it can be made on the way to it."""
        every = ((one.id, way) for one in MISCONCEPTIONS.values() for way in range(len(one.ways)))
        return tuple(each for one, way in every if (each := self.candidate(one, way)))

    def candidate(self, misconception: str, number: int) -> Candidate | None:
        """What one way of a misconception makes of the step; None where it plays no part, or cannot be made."""
        one = MISCONCEPTIONS[misconception]
        way = one.ways[number]
        if way.keys().isdisjoint(self.between):
            return None
        first = next(step for step in self.between if step in way)
        upto = self.exercise.before(self.step)
        same = upto[: upto.index(first)]
        known = {**self.known, **{step: self.worked[step] for step in same if step in self.worked}}
        found = work(self.exercise.problem, known, way, only=upto).get(self.step)
        if found is None or (np.isnan(found) | np.isposinf(found)).any():
            return None
        return Candidate(one.id, number, self._shown(found), one.slip)

    @cached_property
    def stacks(self) -> dict[tuple[int, ...], tuple[list[Candidate], F64]]:
        """Candidates by shape, and their arrays one after the other."""
        found: dict[tuple[int, ...], list[Candidate]] = {}
        for each in self.candidates:
            found.setdefault(each.array.shape, []).append(each)
        return {shape: (some, np.stack([each.array for each in some])) for shape, some in found.items()}

    def right(self, answer: F64) -> Bool:
        """Which cells of an answer of the right shape follow from what is known."""
        exact = self.exercise.unit * TOLERANCE
        cells = close(answer, self.carried, exact)
        # The allowance for roundings is worked out where somebody seems to need it only.
        return cells if (cells | np.isnan(answer)).all() else close(answer, self.carried, self.tolerance(answer.shape))

    def tolerance(self, shape: tuple[int, ...]) -> F64 | float:
        """How far an answer of a shape may be from what it is taken for."""
        allowed = self.slack if shape == self.carried.shape else float(self.slack.max(initial=0.0))
        return self.exercise.unit * TOLERANCE + allowed

    def fits(self, answer: F64, candidates: F64) -> Bool:
        """Whether every number of an answer is a candidate's.

        Args:
            answer: of any shape; not a number where it is blank.
            candidates: one or more arrays of that shape, one after the other.
        """
        cells = close(answer, candidates, self.tolerance(answer.shape)) | np.isnan(answer)
        return np.asarray(cells.reshape(len(candidates), -1).all(axis=-1))

    def explaining(self, answer: F64) -> list[Candidate]:
        """The candidates that explain an answer; slips if nothing else does."""
        some, stack = self.stacks.get(answer.shape, ((), None))
        if stack is None or np.isnan(answer).all():
            return []
        fitting = [each for each, fits in zip(some, self.fits(answer, stack), strict=True) if fits]
        return [each for each in fitting if not each.slip] or fitting

    def agrees(self, answer: F64, misconception: str, way: int) -> bool:
        """Whether an answer is what a way of a misconception makes of the step, which may be what is right."""
        candidate = self.candidate(misconception, way)
        expected = self.carried if candidate is None else candidate.array
        return expected.shape == answer.shape and bool(self.fits(answer, expected[None])[0])

    def _shown(self, array: F64) -> F64:
        return shown(self.exercise.problem, self.step, array)
