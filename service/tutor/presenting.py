"""Exercises, as they are shown: arrays as lists, steps with their labels, and what is to be done in plain words."""

from typing import Any

import numpy as np

from models.types import F64
from service.tutor.exercise import PLAN, Exercise
from service.tutor.exercises.levels import LEVELS
from service.tutor.plan import cards_of
from service.tutor.steps import STEPS, shape_of, shown

COLUMNS = {"query": "q", "key": "k", "value": "v", "outputs": "o", "weighted_values": "v"}
"""What the columns of arrays are called that have no token for each."""


def plain(array: F64) -> Any:
    """An array as nested lists: whole numbers without a point, None for minus infinity and for what is no number."""
    if array.ndim:
        return [plain(each) for each in array]
    value = float(array)
    if not np.isfinite(value):
        return None
    return int(value) if value.is_integer() else value


def labels_of(exercise: Exercise, step: str) -> tuple[list[str], list[str]]:
    """A label for each row and each column of a step's table, of one head where it has an axis of heads."""
    tokens = list(exercise.problem.tokens)
    columns = shape_of(exercise.problem, step)[-1]
    if step in COLUMNS:
        return tokens, [f"{COLUMNS[step]}{number + 1}" for number in range(columns)]
    return tokens, tokens if columns == len(tokens) and step not in ("softmax_max", "softmax_sum") else [""]


def named(exercise: Exercise, step: str) -> tuple[str, str]:
    """Title and formula of a step; those of the whole softmax where it is asked for at once."""
    if step == "weights" and not {"softmax_exp", "softmax_sum"} & set(exercise.ask):
        scores = "M" if exercise.problem.masked else "T"
        return "Softmax of each row", rf"A_{{ij}} = \frac{{e^{{{scores}_{{ij}}}}}}{{\sum_k e^{{{scores}_{{ik}}}}}}"
    return STEPS[step].title, STEPS[step].formula


def described(exercise: Exercise, step: str) -> dict[str, Any]:
    """A step: what it is, and how its table looks; its rule too, unless that is what has to be known by heart."""
    title, formula = named(exercise, step)
    rows, columns = labels_of(exercise, step)
    rule = {} if exercise.terms.mode == "whiteboard" else {"formula": formula}
    return {
        "id": step,
        "title": title,
        "symbol": STEPS[step].symbol,
        **rule,
        "shape": list(shape_of(exercise.problem, step)),
        "row_labels": rows,
        "column_labels": columns,
    }


def given(exercise: Exercise) -> dict[str, Any]:
    """The arrays that are given, by step."""
    return {step: plain(shown(exercise.problem, step, array)) for step, array in exercise.given.items()}


def presented(exercise: Exercise) -> dict[str, Any]:
    """All that a learner gets to see but the token, and what the exercise can tell of mistakes."""
    terms, problem = exercise.terms, exercise.problem
    found: dict[str, Any] = {
        "generator": terms.generator,
        "seed": terms.seed,
        "level": terms.level,
        "mode": terms.mode,
        "title": LEVELS[terms.level].title,
        "instructions": instructions(exercise),
        "labels": list(problem.tokens),
    }
    if exercise.shows_inputs:
        found["inputs"] = plain(problem.inputs)
        found["projections"] = {name: plain(getattr(problem, name)) for name in ("query", "key", "value")}
    found |= {
        "num_heads": problem.num_heads,
        "is_causal": problem.is_causal,
        "decimals": terms.decimals,
        "given": given(exercise),
    }
    if exercise.planning:
        return found | {
            "ask": [PLAN],
            "cards": [{"id": card.id, "text": card.text} for card in cards_of(exercise)],
        }
    return found | {"ask": list(exercise.ask), "steps": [described(exercise, step) for step in exercise.ask]}


def instructions(exercise: Exercise) -> str:
    """What is to be done, in plain words."""
    level = LEVELS[exercise.terms.level]
    if exercise.planning:
        one_head = " Of scores and weights, take the table of one head." if exercise.problem.num_heads > 1 else ""
        return (
            "Which of these steps lead from the embeddings to the outputs, and in which order? Write beside each how"
            f" many rows and columns its table has.{one_head} Some cards do not belong there."
        )
    usual = [step for step in level.asks if step in exercise.ask] == [
        step for step in level.asks if step != "masked_scores" or exercise.problem.masked
    ]
    titles = ", then ".join(f"“{named(exercise, step)[0]}”" for step in exercise.ask)
    task = level.task.replace("{d_k}", str(exercise.problem.head_dim)) if usual else f"Work out: {titles}."
    places = exercise.terms.decimals
    rounding = "Round to whole numbers" if not places else f"Round to {places} decimal{'s' if places > 1 else ''}"
    masked = " Write −inf for a masked score." if "masked_scores" in exercise.ask else ""
    return f"{task} {rounding}; fractions such as 1/3 are fine too. Leave blank what you do not know.{masked}"
