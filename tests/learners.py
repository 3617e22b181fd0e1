"""Learners for the tests of exercises: what they are handed, and what they hand in."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from service.tutor.exercise import Exercise
from service.tutor.exercises import NEWEST, exercise_of
from service.tutor.exercises.simulation import Answers, answers_by
from service.tutor.exercises.terms import Wanted, terms_of
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.steps import shown


def exercise(level: str = "recipe", seed: int = 1, draw: int = 0, part: int = 1, **wanted: Any) -> Exercise:
    """An exercise of any drawing, well chosen or not."""
    terms = terms_of(Wanted(level=level, **wanted), NEWEST, seed, part=part)
    return exercise_of(replace(terms, draw=draw))


def right_answers(given: Exercise) -> dict[str, Any]:
    """What somebody hands in who makes no mistake and rounds each step."""
    return on_paper({step: shown(given.problem, step, array) for step, array in given.usual.items()})


def on_paper(answers: Answers | Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Arrays as they are handed in: nested lists, `-inf` for a masked score, None for a blank."""
    return {step: _written(array) for step, array in answers.items()}


def _written(array: Any) -> Any:
    if array.ndim:
        return [_written(each) for each in array]
    value = float(array)
    return None if np.isnan(value) else "-inf" if value == -np.inf else value


def mistaken(given: Exercise) -> Iterator[tuple[str, Answers]]:
    """Everybody who makes one mistake, by each of its ways, as far as it can be made."""
    for one in MISCONCEPTIONS.values():
        for way in one.ways:
            if (answers := answers_by(given, way)) is not None:
                yield one.id, answers
