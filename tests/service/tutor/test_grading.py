import json
import random

import numpy as np
import pytest
from learners import exercise, on_paper, right_answers

from models.errors import InvalidInput
from service.errors import UnknownField
from service.tutor.exercises.levels import LEVELS
from service.tutor.exercises.simulation import answers_by
from service.tutor.grading import grade
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.steps import kept, shown, work


def ids(graded):
    return [one["id"] for one in graded["misconceptions"]]


def step_of(graded, step):
    return next(each for each in graded["steps"] if each["id"] == step)


def carried_on(given, step, array, decimals=None):
    """What somebody hands in who has `array` for a step and goes on from it, rounding each step asked or none."""
    known, answers = dict(given.given), {}
    for each in given.ask:
        found = array if each == step else work(given.problem, known, only=(each,))[each]
        known[each] = found if decimals is None else np.round(found, decimals)
        answers[each] = shown(given.problem, each, np.round(found, given.terms.decimals))
    return on_paper(answers)


# ---- what is right


@pytest.mark.parametrize("level", LEVELS)
def test_whoever_rounds_at_the_end_only_is_right(level):
    """With a calculator that keeps all digits, and with all of them written down."""
    for seed in range(10):
        given = exercise(level, seed)
        exact = {step: shown(given.problem, step, given.right[step]) for step in given.ask}
        last = {step: np.round(array, given.terms.decimals) for step, array in exact.items()}

        assert grade(given, on_paper(exact))["score"] == 1
        assert grade(given, on_paper(last))["score"] == 1


def test_numbers_may_be_written_as_people_write_them():
    given = exercise("scaling", seed=4)

    def comma(value):
        return [comma(each) for each in value] if isinstance(value, list) else f"{value:.4f}".replace(".", ",")

    graded = grade(given, {"scaled_scores": comma(shown(given.problem, "x", given.right["scaled_scores"]).tolist())})

    assert graded["score"] == 1
    assert all(isinstance(cell, float) for row in graded["read_as"]["scaled_scores"] for cell in row)


@pytest.mark.parametrize("masked", ["-inf", "−∞", "masked", -1e9, "-10000"])
def test_a_masked_score_may_be_written_in_many_ways(masked):
    given = exercise("causal")
    answers = right_answers(given)
    answers["masked_scores"] = [
        [masked if cell == "-inf" else cell for cell in row] for row in answers["masked_scores"]
    ]

    assert grade(given, answers)["score"] == 1


def test_half_a_unit_of_the_last_place_and_a_bit_is_rounding():
    given = exercise("scaling", decimals=2)
    right = given.right["scaled_scores"][0]

    assert grade(given, {"scaled_scores": (right + 0.0050).tolist()})["score"] == 1
    assert grade(given, {"scaled_scores": (right + 0.0052).tolist()})["score"] == 0


# ---- what was wrong before


@pytest.mark.parametrize("decimals", [3, None], ids=["rounding each step", "keeping all digits"])
@pytest.mark.parametrize("level", ["recipe", "causal", "two-heads"])
def test_a_mistake_costs_its_step_only(level, decimals):
    """Whoever goes on from it rightly, on paper or with a calculator, is right from there on."""
    for seed in range(6):
        given = exercise(level, seed)
        for step in given.ask[:-1]:
            wrong = np.where(np.isinf(given.right[step]), -np.inf, given.right[step] * 0.5 + 0.25)

            graded = grade(given, carried_on(given, step, wrong, decimals))

            assert [each["id"] for each in graded["steps"] if not each["correct"]] == [step], (seed, step)
            assert graded["score"] >= 1 - 1 / len(given.ask) - 1e-6
            assert any(each["carried_forward"] for each in graded["steps"])
            assert not step_of(graded, step)["carried_forward"]


@pytest.mark.parametrize("id", ["scale.none", "softmax.base2", "score.kqt", "out.keys", "softmax.columns"])
def test_a_named_mistake_may_be_gone_on_from_with_all_digits(id):
    """The numbers behind what was written down are known once it is known how they were made."""
    given = exercise("recipe", 3)
    values = work(given.problem, replaced=MISCONCEPTIONS[id].ways[0])
    answers = {step: np.round(shown(given.problem, step, values[step]), 3) for step in given.ask}

    graded = grade(given, on_paper(answers))

    assert ids(graded) == [id]
    assert sum(not each["correct"] for each in graded["steps"]) == 1


def test_two_mistakes_are_two():
    given = exercise("recipe", 2)
    both = {**MISCONCEPTIONS["scale.none"].ways[0], **MISCONCEPTIONS["softmax.columns"].ways[0]}

    graded = grade(given, on_paper(answers_by(given, both)))

    assert ids(graded) == ["scale.none", "softmax.columns"]
    assert [one["step"] for one in graded["misconceptions"]] == ["scaled_scores", "weights"]
    assert graded["score"] == pytest.approx(5 / 7, abs=1e-6)


def test_a_mistake_of_two_steps_is_told_once():
    """Queries for keys, and keys for queries."""
    given = exercise("recipe", 2)

    graded = grade(given, on_paper(answers_by(given, MISCONCEPTIONS["proj.swap_qk"].ways[0])))

    assert ids(graded) == ["proj.swap_qk"]
    assert [each["correct"] for each in graded["steps"]] == [False, False, True, True, True, True, True]


def test_blanks_before_are_taken_as_right():
    """A step that was left out is worked on from as if it had been filled in, and so is a single cell."""
    given = exercise("recipe")
    answers = right_answers(given)
    del answers["raw_scores"]
    answers["query"][0][0] = ""

    graded = grade(given, answers)

    assert [each["credit"] for each in graded["steps"]] == [pytest.approx(11 / 12), 1, 1, 0, 1, 1, 1]
    assert step_of(graded, "query")["cells"][0] == ["missing", "ok", "ok"]
    assert step_of(graded, "raw_scores")["cells"] == [["missing"] * 4] * 4
    assert ids(graded) == graded["ambiguous"] == []


# ---- what it came from


def test_what_cannot_be_told_apart_is_told_as_a_group():
    """Of 2 × 2 numbers a wrong scale may be any of three; what comes later may leave fewer."""
    given = exercise("scaling", tokens=2, embed_dim=2, head_dim=2, value_dim=2)

    graded = grade(given, on_paper(answers_by(given, MISCONCEPTIONS["scale.dk"].ways[0])))

    assert graded["ambiguous"] == [["scale.dk", "scale.dmodel", "scale.n"]]
    assert graded["misconceptions"] == []
    assert graded["score"] == 0


def test_another_step_may_tell_twins_apart():
    """Scores of queries with values: from swapped matrices, or a wrong product. If no keys are asked, values tell."""
    given = exercise("recipe", 3, ask=["raw_scores", "value", "outputs"])
    swapped = grade(given, on_paper(answers_by(given, MISCONCEPTIONS["proj.swap_kv"].ways[0])))
    product = grade(given, on_paper(answers_by(given, MISCONCEPTIONS["score.qvt"].ways[0])))

    assert ids(swapped) == ["proj.swap_kv"]
    assert ids(product) == ["score.qvt"]


def test_a_slip_costs_its_cell():
    given = exercise("recipe")
    answers = right_answers(given)
    answers["key"][2][1] += 2

    graded = grade(given, carried_on(given, "key", np.array(answers["key"]), 3))

    assert ids(graded) == ["proj.cell_slip"]
    assert step_of(graded, "key")["credit"] == pytest.approx(11 / 12)
    assert step_of(graded, "key")["note"] == "All but one of the numbers are right."
    assert sum(not each["correct"] for each in graded["steps"]) == 1


def test_a_warning_costs_nothing():
    given = exercise("softmax", 2)

    graded = grade(given, on_paper(answers_by(given, MISCONCEPTIONS["round.early"].ways[1])))

    assert ids(graded) == ["round.early"]
    assert graded["score"] == 1
    assert graded["steps"][0]["correct"]


def test_a_table_of_a_wrong_shape_is_a_sign_in_itself():
    given = exercise("recipe")

    graded = grade(given, on_paper(answers_by(given, MISCONCEPTIONS["score.qtk"].ways[0])))

    assert ids(graded) == ["score.qtk"]
    step = step_of(graded, "raw_scores")
    assert step["note"] == "This table is 3 × 3; the one asked for is 4 × 4."
    assert step["cells"] == [["wrong"] * 3] * 3
    slips = {"raw_scores": [[9, 8, 7]] * 3}
    assert ids(grade(given, slips)) == ["score.qtk"]
    assert ids(grade(given, {"raw_scores": [[9, 8]] * 3})) == []


def test_what_is_no_table_is_said_to_be_none():
    given = exercise("scores")

    ragged = grade(given, {"raw_scores": [[1, 2], [3]]})["steps"][0]
    huge = grade(given, {"raw_scores": [[0] * 99] * 99})["steps"][0]
    junk = grade(given, {"raw_scores": [[{}, True, "x", "1,234"]] * 4})["steps"][0]

    assert ragged["note"] == "The rows are not all of one length."
    assert ragged["cells"] == [["wrong", "wrong"], ["wrong"]]
    assert huge["cells"] == "invalid"
    assert junk["cells"] == [["invalid"] * 4] * 4
    assert {ragged["credit"], huge["credit"], junk["credit"]} == {0}


@pytest.mark.parametrize("flat", [True, False])
def test_a_column_may_be_written_as_a_row(flat):
    """One number per row is a list to most people; a lone number is a table to nobody."""
    given = exercise("softmax", ask=["softmax_max"])
    column = given.right["softmax_max"][0].ravel().tolist()

    assert grade(given, {"softmax_max": column if flat else [column]})["score"] == 1
    one = exercise("dot-product")
    assert grade(one, {"raw_scores": str(one.right["raw_scores"].item())})["score"] == 1


def test_only_what_is_asked_can_be_answered():
    with pytest.raises(UnknownField) as caught:
        grade(exercise("scores"), {"raw_scores": [], "weights": []})

    assert caught.value.fields[0].pointer == "/answers/weights"


# ---- laws


def test_the_same_answers_get_the_same_grade():
    """Whatever was graded before, and whether anything is kept from it."""
    given, views = exercise("causal", 5), {}
    wrong = on_paper(answers_by(given, MISCONCEPTIONS["softmax.columns"].ways[0]))
    right = right_answers(given)

    first = [grade(given, wrong), grade(given, right)]

    assert [grade(given, wrong, views), grade(given, right, views)] == first
    assert [grade(given, wrong, views), grade(given, right, views)] == first


def test_grading_shows_no_right_number():
    """All steps but one are left blank: nothing in the answer depends on what would be right there."""
    for level in ("recipe", "causal", "two-heads"):
        given = exercise(level, 7)
        answers = {"query": [[0.125] * given.problem.query.shape[1]] * 4, "weights": [["?"] * 4] * 4}
        if level == "two-heads":
            answers["weights"] = [answers["weights"]] * 2

        text = json.dumps(grade(given, answers))

        for step in ("scaled_scores", "weights", "outputs"):
            for value in np.unique(np.round(given.right[step], 3)):
                if np.isfinite(value) and not float(value).is_integer():
                    assert f"{value:.3f}".rstrip("0") not in text
        reads = json.loads(text)["read_as"]
        assert set(np.ravel(reads["query"])) == {0.125}
        assert set(np.ravel(reads["weights"])) == {None}


JUNK = [
    None, True, False, 0, 1, -1, 0.5, 1e300, -1e300, 10**30, float("nan"), float("inf"), -float("inf"), 1e9, -1e9,
    5e-324,
    "", " ", "x", "-inf", "masked", "1/3", "1/0", "√2", "0,5", "1,234", "½", "\x00", "\ud800", "9" * 60, "−", [], [[]],
    {}, {"a": [1]}, [None], [[1]], [[[1]]], [[[[[[1]]]]]], [1, [2]], "[[1]]", [[0] * 4] * 4, [[1e9] * 3] * 4,
    [[-1e9] * 4] * 4, [[""] * 4] * 4, [["-inf"] * 4] * 4, [[0] * 40] * 40, ["a"] * 300,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_no_answer_brings_grading_down(seed):
    """Ten thousand in all: right ones with holes, wrong ones, and rubbish in every place."""
    chance = random.Random(seed)
    small, whole = (1, 0, 2, 3), (0,)
    drawn = [exercise(level, seed) for level in LEVELS for seed in (whole if LEVELS[level].whole else small)]
    cases = [(given, {}, right_answers(given)) for given in drawn]
    for _ in range(2_500):
        given, views, right = chance.choice(cases)
        answers = {}
        for step, array in right.items():
            kind = chance.random()
            if kind < 0.3:
                answers[step] = chance.choice(JUNK)
            elif kind < 0.7:
                answers[step] = spoilt(array, chance)
            elif kind < 0.95:
                answers[step] = array

        graded = grade(given, answers, views)

        assert 0 <= graded["score"] <= 1
        assert [each["id"] for each in graded["steps"]] == list(given.ask)
        assert all(0 <= each["credit"] <= 1 for each in graded["steps"])
        json.dumps(graded, allow_nan=False)


def spoilt(value, chance):
    """The answer with some cells replaced."""
    if isinstance(value, list):
        return [spoilt(each, chance) for each in value]
    return chance.choice(JUNK) if chance.random() < 0.1 else value


def test_an_answer_to_no_step_is_refused_and_nothing_else():
    """Names of steps come from outside too."""
    given = exercise("scores")

    for name in ("", "plan", "raw_scores ", "\ud800", "x" * 10_000):
        with pytest.raises(InvalidInput):
            grade(given, {name: []})


def test_shapes_of_answers_are_those_of_the_steps():
    """As they are shown: no axis of heads where there is one head."""
    given = exercise("two-heads")

    for step, answer in right_answers(given).items():
        assert kept(given.problem, step, np.array(answer, dtype=object)).ndim == given.right[step].ndim
