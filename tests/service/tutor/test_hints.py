import re

import numpy as np
import pytest
from learners import exercise, on_paper, right_answers

from service.errors import InvalidOption, UnknownField
from service.tutor.exercises.levels import LEVELS
from service.tutor.exercises.simulation import answers_by
from service.tutor.hints import RULES, TERMS, hint
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.steps import STEPS


def answers_until(given, step):
    """Everything before a step, and nothing from there on."""
    before = given.ask[: given.ask.index(step)]
    return {each: array for each, array in right_answers(given).items() if each in before}


def test_the_first_step_that_is_wrong_or_missing_is_named():
    given = exercise("recipe")

    assert hint(given, {}, 1)["step"] == "query"
    assert hint(given, answers_until(given, "weights"), 1) == {
        "step": "weights",
        "level": 1,
        "text": "Look at the step “Softmax of each row”.",
    }
    assert hint(given, right_answers(given), 1) == {"step": None, "level": 1, "text": "Everything is right."}


def test_level_one_says_what_grading_says():
    given = exercise("recipe")
    answers = right_answers(given)
    answers["key"][0][0] += 1

    text = hint(given, answers, 1)["text"]

    assert text == (
        "Some numbers of the step “Project to keys” are right; look at the others. All but one of the numbers are"
        " right."
    )


def test_level_two_tells_the_rule_or_what_was_mistaken():
    given = exercise("recipe")
    wrong = on_paper(answers_by(given, MISCONCEPTIONS["scale.none"].ways[0]))

    assert hint(given, {}, 2)["text"] == RULES["query"]
    assert hint(given, {}, 2)["formula"] == STEPS["query"].formula
    assert hint(given, wrong, 2)["text"] == MISCONCEPTIONS["scale.none"].remedy


@pytest.mark.parametrize("level", LEVELS)
def test_level_three_shows_one_number_and_how_it_comes_about(level):
    """Of every step that can be asked."""
    every = [step for step in STEPS if step in exercise(level).right]
    asked = [step for step in every if step not in LEVELS[level].given and (level != "mixing" or step != "weights")]
    given = exercise(level, 2, ask=asked)
    for step in asked:
        shown = hint(given, answers_until(given, step), 3)

        assert shown["step"] == step
        value = np.array(right_answers(given)[step], dtype=object)[tuple(shown["cell"]["index"])]
        assert shown["cell"]["value"] == pytest.approx(value, abs=1e-9)
        assert "nan" not in shown["text"]
    assert set(TERMS) == set(STEPS) == set(RULES)


def test_level_three_shows_the_same_number_whatever_was_answered():
    """Else all of them could be asked for, one by one."""
    given = exercise("recipe")
    answers = answers_until(given, "scaled_scores")
    shown = {
        str(hint(given, {**answers, "scaled_scores": [[cell] * 4] * 4}, 3)["cell"]) for cell in (None, 0, "x", 0.5, 1)
    }

    assert len(shown) == 1


def test_level_three_does_not_run_ahead():
    """The terms of a later number would give away those that are still to be worked."""
    given = exercise("recipe")

    assert hint(given, {}, 3, "outputs")["step"] == "query"
    assert hint(given, answers_until(given, "scaled_scores"), 3, "outputs")["step"] == "scaled_scores"
    assert hint(given, {}, 2, "outputs")["step"] == "outputs"


def test_a_number_follows_from_the_learners_own():
    given = exercise("scores", ask=["raw_scores", "scaled_scores"])
    answers = {"raw_scores": [[3] * 4] * 4}

    shown = hint(given, answers, 3, "scaled_scores")

    assert shown["cell"] == {"index": [3, 0], "value": 1.73}
    assert "3 / √3 = 1.73." in shown["text"]


def test_negative_numbers_stand_in_parentheses_in_sums_only():
    text = hint(exercise("recipe", 7), {}, 3)["text"]

    assert not re.search(r"[·+] −", text)


@pytest.mark.parametrize(("step", "place"), [("raw_scores", "In head 1, row t4, column t1:"), ("query", "In row t4,")])
def test_a_number_of_several_heads_says_of_which(step, place):
    given = exercise("two-heads")

    assert place in hint(given, answers_until(given, step), 3)["text"]


def test_what_is_not_asked_has_no_hint():
    with pytest.raises(InvalidOption):
        hint(exercise("scores"), {}, 1, "weights")
    with pytest.raises(UnknownField):
        hint(exercise("scores"), {"weights": []}, 1)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_plan_has_hints_too(level):
    given = exercise("recipe", mode="whiteboard")

    assert hint(given, {}, level)["step"] == "plan"
    assert hint(given, {"plan": "x"}, level, "plan")["level"] == level
    with pytest.raises(UnknownField):
        hint(given, {"query": []}, level)
