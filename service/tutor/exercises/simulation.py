"""Learners who make one mistake and no other: what an exercise can tell of them is known before it is handed out."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.types import F64
from service.tutor.diagnosis import View
from service.tutor.exercise import Exercise
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.misconceptions.base import Way
from service.tutor.steps import shape_of, shown, work

SEPARATION = 1.5
"""Units of the last place that two learners have to lie apart in some cell, to be told apart for sure."""

RIGHT = ""
"""Stands for what is right, among the ids of misconceptions."""

Answers = Mapping[str, F64]
"""Arrays as they are shown, by step; blanks are not numbers."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A misconception that an exercise cannot show, and why, in a few words."""

    id: str
    reason: str


def answers_by(exercise: Exercise, way: Way) -> Answers | None:
    """What somebody hands in who works in a way and rounds each step asked; None where nobody can work so here.

    The answers end where the arrays do not fit any more.
    """
    problem, decimals = exercise.problem, exercise.terms.decimals
    known, answers, erred = dict(exercise.given), {}, False
    for step in exercise.ask:
        erring = any(each in way for each in View(exercise, known, step).between)
        if not (erring or erred):
            known[step] = exercise.usual[step]
            answers[step] = shown(problem, step, known[step])
            continue
        found = work(problem, known, way, only=exercise.before(step)).get(step)
        if found is None or (np.isnan(found) | np.isposinf(found)).any():
            return answers if erred else None
        known[step] = np.round(found, decimals)
        answers[step] = shown(problem, step, known[step])
        erred = erred or erring
        if answers[step].shape != shape_of(problem, step):
            return answers
    return answers if erred else None


def neighbours(exercise: Exercise, views: dict[str, View]) -> dict[str, set[str]]:
    """Whom each misconception lies too close to.

    Args:
        exercise: whose numbers are looked at.
        views: see `assess`; those of all steps are made.

    Returns:
        By id, those that show in at least one of their ways, each with the ids of the others, and `RIGHT`, that its
        numbers might be taken for in any of them, at the first asked step where that way shows.
    """
    by_way: dict[tuple[str, int], set[str]] = {}
    known = dict(exercise.given)
    for step in exercise.ask:
        view = views.setdefault(step, View(exercise, dict(known), step))
        by_way = _neighbours(view) | by_way
        known[step] = exercise.usual[step]
    found: dict[str, set[str]] = {}
    for (one, _), others in by_way.items():
        found.setdefault(one, set()).update(others)
    return found


def _neighbours(view: View) -> dict[tuple[str, int], set[str]]:
    """The same for one step, by misconception and way: those that show there."""
    found: dict[tuple[str, int], set[str]] = {}
    for shape, (group, stack) in view.stacks.items():
        allowed = np.broadcast_to(view.tolerance(shape), shape).ravel()
        apart = np.maximum(SEPARATION * view.exercise.unit, allowed)
        rows = _finite(stack.reshape(len(group), -1))
        near = ~(np.abs(rows[:, None] - rows[None]) > apart).any(axis=-1)
        from_right = np.full(rows.shape, np.inf)
        if shape == view.carried.shape:
            from_right = np.abs(rows - _finite(view.carried.ravel()))
        shows, doubtful = (from_right > allowed).any(axis=-1), ~(from_right > apart).any(axis=-1)
        for index in np.flatnonzero(shows):
            each, others = group[int(index)], [group[int(other)] for other in np.flatnonzero(near[index])]
            close_to = {other.id for other in others if other.slip <= each.slip} - {each.id}
            found[each.id, each.way] = close_to | ({RIGHT} if doubtful[index] else set())
    return found


def _finite(array: F64) -> F64:
    """Masked scores far away, and not infinitely so."""
    return np.maximum(array, -1e6)


def assessable(exercise: Exercise, views: dict[str, View]) -> tuple[list[str], list[Refused]]:
    """The misconceptions that grading tells from what is right and from all others, and those that it cannot tell.

    Args:
        exercise: what is to be handed out.
        views: see `assess`.

    Returns:
        Ids, and the others with the reason; both in the order of the registry.
    """
    near = neighbours(exercise, views)
    refused = [Refused(one, _reason(exercise, one, near.get(one))) for one in MISCONCEPTIONS if near.get(one) != set()]
    return [one for one in MISCONCEPTIONS if near.get(one) == set()], refused


def _reason(exercise: Exercise, misconception: str, near: set[str] | None) -> str:
    """Why a misconception cannot be told here."""
    if near and RIGHT in near:
        return "lies too close to what is right here"
    if near:
        return f"looks the same here as {', '.join(sorted(near))}"
    if any(answers_by(exercise, way) is not None for way in MISCONCEPTIONS[misconception].ways):
        return "makes no difference here"
    return "cannot be made here"
