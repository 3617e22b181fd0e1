"""Exercises as they are asked for: issued, graded, hinted at, solved. A token makes anew whatever is kept at hand."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from service.tutor.diagnosis import View
from service.tutor.exercise import PLAN, Exercise, Terms
from service.tutor.exercises import GENERATORS, NEWEST, exercise_of
from service.tutor.exercises.qkv1 import too_many_numbers
from service.tutor.exercises.simulation import assessable
from service.tutor.exercises.terms import Wanted, terms_of
from service.tutor.grading import check_asked, grade
from service.tutor.hints import RULES, hint
from service.tutor.plan import grade_plan
from service.tutor.presenting import described, plain, presented
from service.tutor.signing import Signer
from service.tutor.steps import STEPS, shown
from service.tutor.worksheet import answer_sheet, worksheet

HELD = 64
"""Exercises that are kept at hand, with what grading them takes; a class works on a few."""

FEW_SCORES = 128
"""Scores of an exercise up to which that is kept: it takes some hundred tables of that size."""


class Classroom:
    """Exercises behind tokens that are signed with one key."""

    def __init__(self, signing_key: str = "") -> None:
        """Sign with a key; empty for the published one."""
        self.signer = Signer(signing_key)
        self._held = lru_cache(HELD)(_made)
        self._issued = lru_cache(HELD)(self._issue)

    def issue(self, wanted: Wanted, seed: int) -> dict[str, Any]:
        """A new exercise; the same one for the same wish and seed.

        It takes some tens of milliseconds, as many learners who make one mistake each are tried out on it.

        Raises:
            InvalidOption: with the option that cannot be had.
        """
        return self._issued(terms_of(wanted, NEWEST, seed))

    def page(self, wanted: Wanted, seed: int) -> str:
        """The same as a worksheet in HTML."""
        token = self.issue(wanted, seed)["exercise"]
        return worksheet(self._of(token)[0], token)

    def grade(self, token: str, answers: Mapping[str, object]) -> dict[str, Any]:
        """Grade answers; see `grading.grade` and `plan.grade_plan`. After a plan, `next` is the second part.

        Raises:
            InvalidInput: if the token is none, or something was answered that is not asked.
        """
        exercise, views = self._of(token)
        if not exercise.planning:
            return grade(exercise, answers, views)
        check_asked(exercise, answers)
        return grade_plan(exercise, answers.get(PLAN)) | {"next": self._issued(replace(exercise.terms, part=2))}

    def takes_long(self, token: str) -> bool:
        """Whether it may take more than some milliseconds: what is large, and a plan, which is followed by more.

        Raises:
            InvalidInput: if the token is none.
        """
        terms = self.signer.terms(token)
        return too_many_numbers(terms) or (terms.mode == "whiteboard" and terms.part == 1)

    def hint(self, token: str, answers: Mapping[str, object], level: int, step: str | None) -> dict[str, Any]:
        """A hint; see `hints.hint`."""
        return hint(self._of(token)[0], answers, level, step)

    def solution(self, token: str) -> dict[str, Any]:
        """Every step that is asked and all between them, with all digits: for tutors."""
        exercise, _ = self._of(token)
        steps = [
            described(exercise, step)
            | {
                "formula": STEPS[step].formula,
                "text": RULES[step],
                "values": plain(shown(exercise.problem, step, array)),
            }
            for step, array in exercise.right.items()
        ]
        return {"decimals": exercise.terms.decimals, "steps": steps}

    def answer_sheet(self, token: str) -> str:
        """The same as a page in HTML."""
        return answer_sheet(self._of(token)[0], token)

    def _of(self, token: str) -> tuple[Exercise, dict[str, View]]:
        return self._at_hand(self.signer.terms(token))

    def _at_hand(self, terms: Terms) -> tuple[Exercise, dict[str, View]]:
        """An exercise, and its views; see `assess`."""
        exercise, views = self._held(terms)
        return exercise, views if terms.tokens**2 * terms.num_heads <= FEW_SCORES else {}

    def _issue(self, terms: Terms) -> dict[str, Any]:
        """The terms as an exercise, of the drawing that shows most if that has not been chosen yet."""
        chosen = terms if terms.part == 2 else GENERATORS[terms.generator].chosen(terms)
        exercise, views = self._at_hand(chosen)
        telling, others = assessable(exercise, views)
        return {
            "exercise": self.signer.token(chosen),
            **presented(exercise),
            "assessable": telling,
            "not_assessable": [asdict(each) for each in others],
        }


def _made(terms: Terms) -> tuple[Exercise, dict[str, View]]:
    return exercise_of(terms), {}
