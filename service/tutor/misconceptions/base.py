"""What a misconception is: a step of the recipe that somebody does in another way, and why they might."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from models.types import F64
from service.tutor.arithmetic import right
from service.tutor.problem import Problem
from service.tutor.steps import STEPS, Compute, StepId, Stuck, Values

Way = Mapping[str, Compute]
"""The steps that come out otherwise, first the one where it happens, each with what is computed there instead.

A function raises `Stuck` where the mistake cannot be made: the problem's shapes do not let it, or it has no mask, heads
or biases for it.
"""


@dataclass(frozen=True, slots=True)
class Misconception:
    """A named mistake. Ids are stable and never used again for anything else.

    Attributes:
        id: such as `scale.none`.
        title: what somebody did, in a few words.
        formula: what they computed, LaTeX.
        explanation: why it is not right, to the learner, in plain words.
        remedy: what to do instead, to the learner; it gives no numbers away.
        ways: how it may be made, one or more, the usual one first. Where a step of the way is not asked for, it shows
            in the first one after it that is.
        twins: ids of those that some problems cannot tell from it, with the reason.
        warns: it is told and costs nothing: what it leads to may well be within tolerance.
        slip: a slip of the pen, and no wrong idea: looked for where nothing else explains an answer.
    """

    id: str
    title: str
    formula: str
    explanation: str
    remedy: str
    ways: tuple[Way, ...]
    twins: Mapping[str, str]
    warns: bool = False
    slip: bool = False

    @property
    def step(self) -> StepId:
        """The step where it usually happens."""
        return self.steps[0]

    @property
    def steps(self) -> tuple[StepId, ...]:
        """Every step where it may happen, the usual one first."""
        return tuple(dict.fromkeys(STEPS[next(iter(way))].id for way in self.ways))


PROJECTIONS: tuple[StepId, ...] = ("query", "key", "value")


def in_projections(rows: Callable[[Problem, StepId], F64]) -> tuple[Way, ...]:
    """The ways of a mistake in projecting: with every matrix that lets one make it, or with one of them only.

    Args:
        rows: what is computed instead in one of `PROJECTIONS`, (n, columns); or raises `Stuck`.
    """

    def alone(step: StepId) -> Compute:
        return lambda problem, _: rows(problem, step)

    def where_possible(step: StepId) -> Compute:
        def compute(problem: Problem, values: Values) -> F64:
            try:
                return rows(problem, step)
            except Stuck:
                return right(step, problem, values)

        return compute

    each: list[Way] = [{step: alone(step)} for step in PROJECTIONS]
    return ({step: where_possible(step) for step in PROJECTIONS}, *each)


def projection_of(problem: Problem, step: StepId) -> tuple[F64, F64 | None]:
    """The matrix and the bias of one of `PROJECTIONS`."""
    return {
        "query": (problem.query, problem.query_bias),
        "key": (problem.key, problem.key_bias),
        "value": (problem.value, problem.value_bias),
    }[step]
