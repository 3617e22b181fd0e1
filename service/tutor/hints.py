"""Hints, in three levels: where to look; by which rule; and one number of the step with all its terms."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from models.types import F64
from service.errors import InvalidOption
from service.tutor.assessment import Assessment, StepResult, assess
from service.tutor.exercise import PLAN, Exercise
from service.tutor.grading import check_asked, read_answers
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.plan import cards_of, grade_plan, shape_on
from service.tutor.presenting import labels_of, named, plain
from service.tutor.problem import Problem
from service.tutor.steps import Values, last_scores, split

RULES = {
    "query": "Multiply each row of the embeddings by each column of W_Q, and add up the products.",
    "key": "Multiply each row of the embeddings by each column of W_K, and add up the products.",
    "value": "Multiply each row of the embeddings by each column of W_V, and add up the products.",
    "raw_scores": "Row i, column j is the dot product of query i with key j: multiply place by place, and add up.",
    "scaled_scores": "Divide every score by the square root of the number of columns that one key has.",
    "masked_scores": "Where a token may not look, to the right of itself, put minus infinity; leave the rest.",
    "softmax_max": "Take the largest score of each row.",
    "softmax_exp": "Subtract the row's largest score from each score, and raise e to the power of what is left.",
    "softmax_sum": "Add up the exponentials of each row.",
    "weights": "Raise e to the power of each score, and divide by the sum of those of its row: each row adds up to 1.",
    "weighted_values": "Multiply each token's row of values by the weight that it has for row i.",
    "outputs": "Row i is the sum of all rows of values, each times its weight in row i.",
}
"""How each step is done, in words."""


def hint(exercise: Exercise, answers: Mapping[str, object], level: int, step: str | None = None) -> dict[str, Any]:
    """A hint for the first step that is wrong or missing, or for the step that is named.

    The number of level 3 is the same one of a step whatever the answers: nobody can ask for all of them one by one. It
    follows from the learner's own numbers before it, and is one of an earlier step where some of those are missing.

    Args:
        exercise: what is being worked.
        answers: as for `grade`.
        level: 1 names the step, 2 tells its rule, 3 shows one number.
        step: a step that is asked, or None.

    Returns:
        `step`, None where nothing is left to do, `level` and `text`; `formula` from level 2, `cell` at level 3.

    Raises:
        InvalidOption: if the step is not asked.
        UnknownField: for answers to what was not asked.
    """
    if step is not None and step not in exercise.asked_now:
        raise InvalidOption.at("/step", f"{step[:64]!r} is not asked; asked are {', '.join(exercise.asked_now)}")
    if exercise.planning:
        check_asked(exercise, answers)
        return _plan_hint(exercise, answers, level, step)
    assessment = assess(exercise, read_answers(exercise, answers))
    wanted = (result for result in assessment.steps if (result.id == step if step else not result.correct))
    if (result := next(wanted, None)) is None:
        return {"step": None, "level": level, "text": "Everything is right."}
    if level >= 3:
        result = next(each for each in assessment.steps if each is result or not each.complete)
    found: dict[str, Any] = {"step": result.id, "level": level, "text": _where(exercise, result)}
    if level >= 2:
        found |= {"text": _rule(assessment, result), "formula": named(exercise, result.id)[1]}
    if level >= 3:
        found |= _shown_cell(exercise, result)
    return found


def _where(exercise: Exercise, result: StepResult) -> str:
    title = named(exercise, result.id)[0]
    if result.right is None or not result.right.any():
        where = f"Look at the step “{title}”."
    else:
        where = f"Some numbers of the step “{title}” are right; look at the others."
    return f"{where} {result.note}".strip()


def _rule(assessment: Assessment, result: StepResult) -> str:
    """What to do; where it is known what was done instead, the words that go with that."""
    for finding in assessment.findings:
        if finding.step == result.id and len(finding.ids) == 1:
            return MISCONCEPTIONS[finding.ids[0]].remedy
    return RULES[result.id]


def _shown_cell(exercise: Exercise, result: StepResult) -> dict[str, Any]:
    """The first number of the last row, of the first head: a row that sees every token, masked or not."""
    view = result.view
    index = _index(result)
    value = view.carried[index]
    rows, columns = labels_of(exercise, result.id)
    place = f"row {rows[-1]}, column {columns[0]}" if columns[0] else f"row {rows[-1]}"
    if len(result.shape) - (result.id == "weighted_values") == 3:
        place = f"head 1, {place}"
    terms = TERMS[result.id](exercise.problem, view.worked)
    rounded = np.round(np.asarray(value), exercise.terms.decimals)
    result_in_words = number(float(rounded)).strip("()")
    ends = f" = {result_in_words}" if np.isfinite(value) and result.id != "masked_scores" else ""
    return {
        "text": f"{RULES[result.id]} In {place}: {terms}{ends}.",
        "cell": {"index": [int(each) for each in index], "value": plain(rounded + 0.0)},
    }


def _index(result: StepResult) -> tuple[int, ...]:
    axes = len(result.shape)
    rows = result.view.carried.shape[-2] if result.id != "weighted_values" else result.shape[-3]
    behind = 2 if result.id == "weighted_values" else 1
    return (*(0,) * (axes - behind - 1), rows - 1, *(0,) * behind)


def number(value: float) -> str:
    """A number in a sum: in parentheses where it is negative, with at most four decimals."""
    text = f"{value:.4f}".rstrip("0").rstrip(".").replace("-", "−")
    text = "0" if text == "−0" else text
    return f"({text})" if text.startswith("−") else text


def _sum(left: F64, right: F64) -> str:
    return " + ".join(f"{number(a)}·{number(b)}" for a, b in zip(left, right, strict=True))


def _projection(name: str) -> Callable[[Problem, Values], str]:
    return lambda problem, _: _sum(problem.inputs[-1], getattr(problem, name)[:, 0])


def _raw(problem: Problem, values: Values) -> str:
    query, key = (split(values[each], problem.num_heads)[0] for each in ("query", "key"))
    return _sum(query[-1], key[0])


def _scaled(problem: Problem, values: Values) -> str:
    return f"{number(values['raw_scores'][0, -1, 0])} / √{problem.head_dim}"


def _masked(_: Problem, values: Values) -> str:
    return f"the last token sees all others, so {number(values['scaled_scores'][0, -1, 0]).strip('()')} stays"


def _max(problem: Problem, values: Values) -> str:
    return "the largest of " + ", ".join(number(score) for score in last_scores(problem, values)[0, -1])


def _exp(problem: Problem, values: Values) -> str:
    largest = float(values["softmax_max"][0, -1, 0])
    return f"e to the power of {number(last_scores(problem, values)[0, -1, 0])} − {number(largest)}"


def _total(_: Problem, values: Values) -> str:
    return " + ".join(number(each) for each in values["softmax_exp"][0, -1])


def _weight(_: Problem, values: Values) -> str:
    exps = values["softmax_exp"][0, -1]
    return f"{number(exps[0])} / ({' + '.join(number(each) for each in exps)})"


def _weighted(problem: Problem, values: Values) -> str:
    return f"{number(values['weights'][0, -1, 0])}·{number(split(values['value'], problem.num_heads)[0, 0, 0])}"


def _output(problem: Problem, values: Values) -> str:
    return _sum(values["weights"][0, -1], split(values["value"], problem.num_heads)[0, :, 0])


TERMS: dict[str, Callable[[Problem, Values], str]] = {
    "query": _projection("query"),
    "key": _projection("key"),
    "value": _projection("value"),
    "raw_scores": _raw,
    "scaled_scores": _scaled,
    "masked_scores": _masked,
    "softmax_max": _max,
    "softmax_exp": _exp,
    "softmax_sum": _total,
    "weights": _weight,
    "weighted_values": _weighted,
    "outputs": _output,
}
"""How the number shown comes about."""


def _plan_hint(exercise: Exercise, answers: Mapping[str, object], level: int, step: str | None) -> dict[str, Any]:
    graded = grade_plan(exercise, answers.get(PLAN))["steps"][0]
    if graded["correct"] and step is None:
        return {"step": None, "level": level, "text": "Everything is right."}
    text = "Look at the plan again: the order of the cards, and the shape beside each."
    if level >= 2:
        text = (
            "A card may lie only behind all that it is made of. Tables have a row per token; a product of two tables"
            " has the rows of the first and the columns of the second."
        )
    if level >= 3:
        card = next(card for card in cards_of(exercise) if card.step == exercise.ask[0])
        rows, columns = shape_on(exercise, card)
        text = f"{text} Card {card.id} belongs into the plan, and its table has {rows} rows and {columns} columns."
    return {"step": PLAN, "level": level, "text": text}
