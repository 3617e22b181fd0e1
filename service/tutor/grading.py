"""Grading: a learner's answers in, verdicts out. It tells what is wrong and why, and never what would be right."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from service.errors import UnknownField
from service.tutor.assessment import Assessment, StepResult, assess
from service.tutor.diagnosis import View
from service.tutor.exercise import Exercise
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.numbers import BLANK, Nested, Reading, Sheet, read_sheet
from service.tutor.steps import shape_of

TOO_MANY = 4
"""An answer of so many times the cells asked for is not looked at."""


def check_asked(exercise: Exercise, answers: Mapping[str, object]) -> None:
    """Raise `UnknownField` for answers to what was not asked."""
    for step in answers:
        if step not in exercise.asked_now:
            raise UnknownField.at(f"/answers/{step[:64]}", f"not asked; asked are {', '.join(exercise.asked_now)}")


def read_answers(exercise: Exercise, answers: Mapping[str, object]) -> dict[str, Sheet]:
    """What was written, by step.

    Raises:
        UnknownField: for answers to what was not asked.
    """
    check_asked(exercise, answers)
    return {
        step: read_sheet(
            answers[step],
            most=TOO_MANY * math.prod(shape_of(exercise.problem, step)) + 64,
            masked=step == "masked_scores",
        )
        for step in exercise.ask
        if step in answers
    }


def grade(exercise: Exercise, answers: Mapping[str, object], views: dict[str, View] | None = None) -> dict[str, Any]:
    """Grade answers; the same answers always get the same grade.

    Args:
        exercise: what was to be worked.
        answers: by step, nested lists of numbers or texts, None for a blank.
        views: see `assess`.

    Returns:
        `score` 0..1, `steps` as they were asked, `misconceptions` by the order in which they show, groups of
        `ambiguous` ones, and `read_as`, the numbers as they were read.

    Raises:
        UnknownField: for answers to what was not asked.
    """
    sheets = read_answers(exercise, answers)
    assessment = assess(exercise, sheets, views)
    return {
        "score": assessment.score,
        "steps": [_step(result, sheets.get(result.id)) for result in assessment.steps],
        "misconceptions": list(_misconceptions(assessment)),
        "ambiguous": [finding.ids for finding in assessment.findings if len(finding.ids) > 1],
        "read_as": {step: _numbers(sheet.readings) for step, sheet in sheets.items()},
    }


def _misconceptions(assessment: Assessment) -> Iterator[dict[str, str]]:
    for finding in assessment.findings:
        if len(finding.ids) == 1:
            one = MISCONCEPTIONS[finding.ids[0]]
            yield {
                "id": one.id,
                "step": finding.step,
                "title": one.title,
                "text": one.explanation,
                "remedy": one.remedy,
            }


def _step(result: StepResult, sheet: Sheet | None) -> dict[str, Any]:
    if sheet is None or sheet.readings == BLANK:
        cells: Any = np.full(result.shape, "missing").tolist()
    else:
        right = iter([] if result.right is None else result.right.ravel().tolist())
        cells = _verdicts(sheet.readings, right)
    graded = {
        "id": result.id,
        "correct": result.correct,
        "credit": result.credit,
        "cells": cells,
        "carried_forward": result.carried_forward,
    }
    return {**graded, "note": result.note} if result.note else graded


def _verdicts(readings: Nested, right: Iterator[bool]) -> Any:
    """A verdict per cell; `right` runs out at once where the table has another shape, and nothing of it is right."""
    if isinstance(readings, list):
        return [_verdicts(each, right) for each in readings]
    good = next(right, False)
    if readings.fault:
        return "invalid"
    if readings.value is None:
        return "missing"
    return "ok" if good else "wrong"


def _numbers(readings: Nested) -> Any:
    if isinstance(readings, Reading):
        return None if readings.value == -math.inf else readings.value
    return [_numbers(each) for each in readings]
