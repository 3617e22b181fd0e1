"""A learner's work, gone through step by step: what is right, what went on from what was wrong, and why it was.

Each step is held against what follows from the numbers before it, the learner's own. So a mistake costs its step only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from models.types import F64, Bool
from service.tutor.diagnosis import TOLERANCE, Candidate, View, close
from service.tutor.exercise import Exercise
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.misconceptions.base import PROJECTIONS
from service.tutor.numbers import Sheet
from service.tutor.steps import kept, shape_of, shown

CELL_SLIP = "proj.cell_slip"
"""What a single wrong entry of a projection is called."""


@dataclass
class Finding:
    """A mistake.

    Attributes:
        step: the first asked step where it shows.
        ways: the misconceptions that it may come from, one where that is known, and the ways of each.
    """

    step: str
    ways: dict[str, set[int]]

    @property
    def ids(self) -> list[str]:
        """The misconceptions, sorted."""
        return sorted(self.ways)


@dataclass
class StepResult:
    """A step of somebody's work.

    Attributes:
        id: the step's.
        view: how the step looks from the numbers before it.
        shape: the right one, as shown.
        values: what was written, as shown, not a number where nothing can be read; None where it is no table of the
            right shape.
        right: the cells that are right, of that shape; None where there are no values.
        credit: 0 to 1.
        carried_forward: whether some of it is right only in the light of a mistake made before.
        note: what cells cannot say.
    """

    id: str
    view: View
    shape: tuple[int, ...]
    values: F64 | None
    right: Bool | None
    credit: float = 0.0
    carried_forward: bool = False
    note: str = ""

    @property
    def correct(self) -> bool:
        """Whether all of it is right."""
        return self.right is not None and bool(self.right.all())

    @property
    def complete(self) -> bool:
        """Whether a number stands in every cell."""
        return self.values is not None and not np.isnan(self.values).any()


@dataclass
class Assessment:
    """All of somebody's work."""

    steps: list[StepResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The mean of the steps' credits."""
        return round(sum(step.credit for step in self.steps) / len(self.steps), 6)


def assess(exercise: Exercise, sheets: Mapping[str, Sheet], views: dict[str, View] | None = None) -> Assessment:
    """Go through somebody's work.

    Args:
        exercise: what was to be worked.
        sheets: what was written, by step.
        views: kept from one call to the next, for one exercise: what does not depend on the answers.
    """
    desk = _Desk(exercise, {} if views is None else views)
    for step in exercise.ask:
        desk.take(step, sheets.get(step))
    return desk.assessment


class _Desk:
    """The steps taken so far.

    Two ways of going on are followed, as people do both: from the numbers as they were written down, rounded; and from
    what those were before they were rounded, as a calculator keeps them.
    """

    def __init__(self, exercise: Exercise, views: dict[str, View]) -> None:
        self.assessment = Assessment()
        self._exercise, self._views = exercise, views
        self._written, self._unrounded = dict(exercise.given), dict(exercise.given)
        self._doubts: dict[str, F64] = {}  # how far wrong numbers may be from what they were before they were rounded
        self._usual = True  # so far everything is as somebody writes who makes no mistake
        self._astray = False

    def take(self, step: str, sheet: Sheet | None) -> None:
        """Go through the next step."""
        shape = shape_of(self._exercise.problem, step)
        values = None if sheet is None else _fitted(sheet.values, shape)
        result = StepResult(step, self._view(step), shape, values, None)
        self.assessment.steps.append(result)
        if values is not None and not np.isnan(values).all():
            self._hold(result, values)
            return
        if values is not None:
            result.right = np.zeros(shape, dtype=bool)
        elif sheet is not None and sheet.values is None:
            result.note = "The rows are not all of one length."
        elif sheet is not None and sheet.values is not None and sheet.values.shape:
            self._misshapen(result, sheet.values)
        self._usual = False

    def _view(self, step: str) -> View:
        """How a step looks; those that look the same to everybody who has made no mistake yet are kept."""
        if not self._usual:
            return View(self._exercise, dict(self._written), step)
        return self._views.setdefault(step, View(self._exercise, dict(self._written), step))

    def _view_unrounded(self, view: View) -> View:
        """The same step from numbers before they were rounded; the same view where those are the ones written down."""
        if all(np.array_equal(self._unrounded[step], array) for step, array in self._written.items()):
            return view
        return View(self._exercise, dict(self._unrounded), view.step)

    def _hold(self, result: StepResult, values: F64) -> None:
        """Hold a table of the right shape against what is right, and go on from it."""
        problem, step, blank = self._exercise.problem, result.id, np.isnan(values)
        unrounded = self._view_unrounded(result.view)
        result.right = self._right(result, unrounded, values)
        result.credit = float(result.right.mean())
        wrong = ~(result.right | blank)
        exact = unrounded.carried if self._astray else shown(problem, step, self._exercise.right[step])
        exact = np.where(wrong, values, exact)
        if wrong.any():
            made = self._explain(result, values, wrong, unrounded)
            exact = exact if made is None else made
            if made is None:
                self._doubts[step] = kept(problem, step, np.where(wrong, 0.5 * self._exercise.unit, 0.0))
        self._narrow(result.view, values)
        written = kept(problem, step, np.where(blank, result.view.carried, values))
        self._usual = self._usual and np.array_equal(written, self._exercise.usual[step])
        self._astray = self._astray or bool(wrong.any())
        self._written[step], self._unrounded[step] = written, kept(problem, step, exact)

    def _right(self, result: StepResult, unrounded: View, values: F64) -> Bool:
        """Which cells are right: by the numbers before them, or as they should have been all along."""
        cells, blank = result.view.right(values), np.isnan(values)
        if (cells | blank).all() and not self._astray:
            return cells
        exact = shown(self._exercise.problem, result.id, self._exercise.right[result.id])
        never_wrong = close(values, exact, result.view.tolerance(values.shape))
        cells = cells | never_wrong
        if self._astray and unrounded is not result.view and not (cells | blank).all():
            cells = cells | unrounded.right(values)
        if self._doubts and not (cells | blank).all():
            allowed = self._exercise.unit * TOLERANCE + result.view.slack_with(self._doubts)
            cells = cells | close(values, result.view.carried, allowed)
        result.carried_forward = self._astray and bool((cells & ~never_wrong).any())
        return cells

    def _explain(self, result: StepResult, values: F64, wrong: Bool, unrounded: View) -> F64 | None:
        """Say where wrong cells come from, and what they cost.

        Returns:
            What was written before it was rounded, where one mistake explains it.
        """
        assert result.right is not None
        candidates = result.view.explaining(values)
        if not candidates and unrounded is not result.view:
            candidates = unrounded.explaining(values)
        candidates = self._agreeing(candidates)
        if not candidates:
            if wrong.sum() == 1 and result.right.sum() == wrong.size - 1 and wrong.size > 1:
                result.note = "All but one of the numbers are right."
                if result.id in PROJECTIONS:
                    self._found(result.id, {CELL_SLIP: set()})
            return None
        ways = _ways(candidates)
        self._found(result.id, ways)
        mistakes = [MISCONCEPTIONS[each] for each in ways]
        if any(each.warns for each in mistakes):
            result.right = result.right | wrong
            result.credit = float(result.right.mean())
        elif not any(each.slip for each in mistakes):
            result.credit = 0.0
        if len(ways) > 1:
            return None
        made = unrounded.candidate(candidates[0].id, candidates[0].way)
        return None if made is None or made.array.shape != result.shape else made.array

    def _agreeing(self, candidates: list[Candidate]) -> list[Candidate]:
        """Those that the steps before agree with; all, if none is: then it was made here for the first time."""

        def agrees(candidate: Candidate) -> bool:
            way = MISCONCEPTIONS[candidate.id].ways[candidate.way]
            before = ((each.view, each.values) for each in self.assessment.steps[:-1] if each.id in way)
            return all(values is None or view.agrees(values, candidate.id, candidate.way) for view, values in before)

        return [each for each in candidates if agrees(each)] or candidates

    def _misshapen(self, result: StepResult, values: F64) -> None:
        """A table of another shape is a sign in itself: where only one mistake has it, wrong cells do not matter."""
        given, asked = (" × ".join(map(str, shape)) for shape in (values.shape, result.shape))
        result.note = f"This table is {given}; the one asked for is {asked}."
        ways = _ways(self._agreeing(result.view.explaining(values)))
        of_this_shape = _ways(result.view.stacks.get(values.shape, ([], values))[0])
        if ways or len(of_this_shape) == 1:
            self._found(result.id, ways or of_this_shape)

    def _found(self, step: str, ways: dict[str, set[int]]) -> None:
        """Note a mistake, unless one that was noted before is the same, going on."""
        for finding in self.assessment.findings:
            if both := {each: finding.ways[each] for each in ways if each in finding.ways}:
                finding.ways = both
                return
        self.assessment.findings.append(Finding(step, ways))

    def _narrow(self, view: View, values: F64) -> None:
        """Leave of what an earlier mistake may come from that which agrees with this step too."""
        for finding in self.assessment.findings:
            if len(finding.ways) > 1 and finding.step != view.step:
                agreeing = {
                    each: {way for way in ways if view.agrees(values, each, way)} for each, ways in finding.ways.items()
                }
                finding.ways = {each: ways for each, ways in agreeing.items() if ways} or finding.ways


def _ways(candidates: list[Candidate]) -> dict[str, set[int]]:
    """Candidates by misconception."""
    found: dict[str, set[int]] = {}
    for each in candidates:
        found.setdefault(each.id, set()).add(each.way)
    return found


def _fitted(values: F64 | None, shape: tuple[int, ...]) -> F64 | None:
    """What was written in the shape that is asked for, if it differs by axes of length one at most."""
    if values is None or (values.shape == () and np.isnan(values)):
        return None
    if values.shape == shape:
        return values
    lengths, asked = ([length for length in each if length != 1] for each in (values.shape, shape))
    return values.reshape(shape) if lengths == asked else None
