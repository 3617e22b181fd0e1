import json
import random

import pytest
from learners import exercise

from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.plan import DECOYS, DECOYS_SHOWN, cards_of, grade_plan, shape_on

GIVEN = exercise("two-heads", 3, mode="whiteboard")
CARDS = {card.step or card.id: card for card in cards_of(GIVEN)}


def right_plan(given=GIVEN):
    cards = {card.step: card for card in cards_of(given)}
    return {
        "order": [cards[step].id for step in given.ask],
        "shapes": {cards[step].id: list(shape_on(given, cards[step])) for step in given.ask},
    }


def step_of(plan):
    return grade_plan(GIVEN, plan)["steps"][0]


def test_the_cards_say_nothing_of_their_place():
    cards = cards_of(GIVEN)

    assert [card.id for card in cards] == list("abcdefghijk")
    assert {card.step for card in cards} == {*GIVEN.ask, None}
    assert sum(card.step is None for card in cards) == DECOYS_SHOWN
    assert {card.misconception for card in cards} <= {*DECOYS, ""}
    assert set(DECOYS) <= set(MISCONCEPTIONS)
    orders = {tuple(card.step for card in cards_of(exercise("recipe", seed, mode="whiteboard"))) for seed in range(20)}
    assert len(orders) == 20


@pytest.mark.parametrize("level", ["recipe", "causal", "two-heads"])
def test_the_recipe_in_order_is_right(level):
    given = exercise(level, 4, mode="whiteboard")

    graded = grade_plan(given, right_plan(given))

    assert graded["score"] == 1
    assert graded["steps"][0]["correct"]
    assert graded["misconceptions"] == []


@pytest.mark.parametrize("order", [("value", "key", "query"), ("key", "query", "value")])
def test_what_does_not_need_one_another_may_stand_in_any_order(order):
    """Values are needed at the end only."""
    rest = [step for step in GIVEN.ask if step not in order]
    late = [*order[:0], *(step for step in order if step != "value"), *rest[:-1], "value", rest[-1]]

    for steps in ([*order, *rest], late):
        plan = right_plan() | {"order": [CARDS[step].id for step in steps]}
        assert grade_plan(GIVEN, plan)["score"] == 1


def test_a_card_before_what_it_needs_is_wrong_and_those_after_it_are_not():
    plan = right_plan()
    order = plan["order"]
    order[3], order[4] = order[4], order[3]  # scaled before there are scores

    step = step_of(plan)

    assert step["cells"]["order"] == ["ok", "ok", "ok", "wrong", "ok", "ok", "ok", "ok"]
    assert step["credit"] == pytest.approx(15 / 17, abs=1e-6)
    assert not step["correct"]


def test_a_decoy_tells_what_somebody_believes():
    decoy = next(card for card in cards_of(GIVEN) if card.step is None)
    plan = right_plan()
    plan["order"].append(decoy.id)

    graded = grade_plan(GIVEN, plan)

    assert [one["id"] for one in graded["misconceptions"]] == [decoy.misconception]
    assert graded["score"] == pytest.approx(16 / 17, abs=1e-6)


def test_missing_cards_are_counted_and_not_named():
    plan = right_plan()
    plan["order"].pop()

    step = step_of(plan)

    assert step["note"] == "Steps missing from the order: 1."
    assert step["credit"] == pytest.approx(15 / 16, abs=1e-6)


def test_shapes_are_those_of_one_head():
    shapes = right_plan()["shapes"]

    assert shapes[CARDS["query"].id] == [4, 6]
    assert shapes[CARDS["weights"].id] == [4, 4]
    shapes[CARDS["query"].id] = ["4", "3"]
    shapes[CARDS["key"].id] = ["", "x"]
    assert step_of({"shapes": shapes})["cells"]["shapes"][CARDS["query"].id] == ["ok", "wrong"]
    assert step_of({"shapes": shapes})["cells"]["shapes"][CARDS["key"].id] == ["missing", "invalid"]


def test_whatever_is_handed_in_is_graded():
    chance = random.Random(2)
    junk = [None, 1, "a", "z", "", [], {}, ["a"], ["a"] * 500, {"a": 1}, {"a": [4, 4]}, [None, [], {}, 1, "a", "a"],
            {"a": [1, 2, 3], "\ud800": [4, 4], "b": [[], {}]}, {"order": "abc"}, True, "x" * 999]  # fmt: skip
    for _ in range(2_000):
        plan = chance.choice([*junk, {"order": chance.choice(junk), "shapes": chance.choice(junk)}])

        graded = grade_plan(GIVEN, plan)

        assert 0 <= graded["score"] < 1
        json.dumps(graded, allow_nan=False)
