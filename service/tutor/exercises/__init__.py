"""Exercises: made from a seed, the same for ever, and handed out with what they can tell of a learner's mistakes."""

from collections.abc import Callable
from dataclasses import dataclass

from service.tutor.exercise import Exercise, Terms
from service.tutor.exercises import qkv1


@dataclass(frozen=True, slots=True)
class Generator:
    """What makes exercises of terms.

    Attributes:
        exercise_of: the exercise that terms stand for, always the same.
        chosen: terms with the drawing that shows the most mistakes.
        draws: how many drawings there are of a seed.
    """

    exercise_of: Callable[[Terms], Exercise]
    chosen: Callable[[Terms], Terms]
    draws: int


GENERATORS = {qkv1.NAME: Generator(qkv1.exercise_of, qkv1.chosen, qkv1.DRAWS)}
"""Every generator by its name and version. To change what is drawn, add another: those that are here never change."""

NEWEST = qkv1.NAME


def exercise_of(terms: Terms) -> Exercise:
    """The exercise that terms stand for; their generator is a known one."""
    return GENERATORS[terms.generator].exercise_of(terms)
