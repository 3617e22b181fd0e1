"""Exercises that were handed out once: their tokens make the same numbers and get the same grades for ever.

To write the file of a new generator, run this module; files of old ones are never written again.
"""

import json
import sys
from pathlib import Path

import pytest
from learners import mistaken, on_paper, right_answers

from service.tutor.classroom import Classroom
from service.tutor.exercise import Exercise
from service.tutor.exercises import exercise_of
from service.tutor.exercises.levels import LEVELS
from service.tutor.exercises.terms import Wanted
from service.tutor.plan import cards_of, shape_on
from service.tutor.presenting import presented

FOLDER = Path(__file__).parent / "golden"
CASES = [case for file in sorted(FOLDER.glob("exercises-*.json")) for case in json.loads(file.read_text())]

WISHES = [
    *({"level": level} for level in LEVELS),
    *({"level": level, "mode": "whiteboard"} for level in LEVELS if LEVELS[level].whole),
    {"tokens": 2, "embed_dim": 2, "head_dim": 2, "value_dim": 2},
    {"tokens": 3, "num_heads": 2, "decimals": 2},
    {"ask": ["scaled_scores", "softmax_exp", "softmax_sum", "weights", "weighted_values", "outputs"], "decimals": 4},
    {"level": "softmax", "ask": ["softmax_max", "weights"], "tokens": 5, "decimals": 0},
    {"ask": ["outputs"], "is_causal": True, "embed_dim": 6, "value_dim": 2},
]
"""What is asked for in the file: every level and mode, and some sizes and steps."""

SHOWN = ("title", "instructions", "assessable", "not_assessable")
"""What may be worded otherwise, or know of more, in a later version."""


def kept(graded):
    """Of a grade what must stay: the marks, and the names of mistakes."""
    return {
        "score": graded["score"],
        "steps": [{name: each[name] for name in ("id", "correct", "credit", "cells")} for each in graded["steps"]],
        "misconceptions": [one["id"] for one in graded["misconceptions"]],
        "ambiguous": graded["ambiguous"],
    }


def steps_kept(issued):
    steps = [{name: step[name] for name in ("id", "shape")} for step in issued.get("steps", ())]
    return {name: value for name, value in issued.items() if name not in SHOWN} | {"steps": steps}


def plan_of(given: Exercise):
    cards = [card for step in given.ask for card in cards_of(given) if card.step == step]
    return {"order": [card.id for card in cards], "shapes": {card.id: list(shape_on(given, card)) for card in cards}}


def made():
    """The content of a new file."""
    room = Classroom()
    for number, wish in enumerate(WISHES):
        issued = room.issue(Wanted(**wish), 1000 + number)
        given = exercise_of(room.signer.terms(issued["exercise"]))
        if given.planning:
            plan = plan_of(given)
            handed_in = [{"plan": plan}, {"plan": {"order": plan["order"][::-1]}}, {}]
        else:
            learners = [on_paper(answers) for _, answers in mistaken(given)]
            handed_in = [right_answers(given), *learners[number % 7 :: 29], {}]
        yield {
            "wish": wish,
            "seed": 1000 + number,
            "issued": steps_kept(issued),
            "graded": [{"answers": each, "grade": kept(room.grade(issued["exercise"], each))} for each in handed_in],
        }
        if given.planning:
            second = room.grade(issued["exercise"], {})["next"]
            given = exercise_of(room.signer.terms(second["exercise"]))
            answers = right_answers(given)
            grade = kept(room.grade(second["exercise"], answers))
            yield {"issued": steps_kept(second), "graded": [{"answers": answers, "grade": grade}]}


def test_every_level_and_both_modes_are_kept():
    assert len(CASES) >= 16
    assert {case["issued"]["level"] for case in CASES} == set(LEVELS)
    assert {case["issued"]["mode"] for case in CASES} == {"guided", "whiteboard"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['issued']['level']}-{case['issued']['seed']}")
def test_what_was_handed_out_stays_what_it_was(case):
    """The token makes the same numbers, the same wish the same token, and the same answers get the same grade."""
    room = Classroom()
    if "wish" in case:
        assert steps_kept(room.issue(Wanted(**case["wish"]), case["seed"])) == case["issued"]
    token = case["issued"]["exercise"]
    assert steps_kept({"exercise": token, **presented(exercise_of(room.signer.terms(token)))}) == case["issued"]
    for graded in case["graded"]:
        assert kept(room.grade(token, graded["answers"])) == graded["grade"]


if __name__ == "__main__":
    json.dump(list(made()), sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")
