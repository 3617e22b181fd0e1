"""The first part of a whiteboard: cards with what might be done, to be put in order, with the shapes they lead to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.tutor.chance import Chance
from service.tutor.exercise import PLAN, Exercise
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.numbers import Reading, read
from service.tutor.steps import shape_of

TEXTS = {
    "query": "Multiply the embeddings by W_Q: the queries.",
    "key": "Multiply the embeddings by W_K: the keys.",
    "value": "Multiply the embeddings by W_V: the values.",
    "raw_scores": "Take the dot product of every query with every key: the raw scores.",
    "scaled_scores": "Divide the raw scores by the square root of the number of columns of a key.",
    "masked_scores": "Put minus infinity wherever a token may not look.",
    "weights": "Take the softmax of each row of scores: the weights.",
    "outputs": "Add up the values, each times its weight: the outputs.",
}
"""What the cards of the main steps say."""

NEEDS = {
    "query": (),
    "key": (),
    "value": (),
    "raw_scores": ("query", "key"),
    "scaled_scores": ("raw_scores",),
    "masked_scores": ("scaled_scores",),
    "weights": ("scaled_scores", "masked_scores"),
    "outputs": ("weights", "value"),
}
"""The main steps that have to be done before one."""

DECOYS = {
    "scale.dk": "Divide the raw scores by the number of columns of a key.",
    "softmax.columns": "Take the softmax of each column of scores: the weights.",
    "out.keys": "Add up the keys, each times its weight: the outputs.",
    "score.qvt": "Take the dot product of every query with every value: the raw scores.",
    "softmax.linear": "Divide each score by the sum of its row: the weights.",
    "scale.after_softmax": "Divide the weights by the square root of the number of columns of a key.",
}
"""What the cards say that do not belong there, by the misconception they are."""

DECOYS_SHOWN = 3

MOST = 64
"""Cards and shapes of an answer that are looked at; there are never so many."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card.

    Attributes:
        id: a letter, which says nothing of its place.
        text: what might be done.
        step: the step it is, or None.
        misconception: what it is instead; empty for a step.
    """

    id: str
    text: str
    step: str | None
    misconception: str = ""


def cards_of(exercise: Exercise) -> list[Card]:
    """The cards of an exercise as they lie there, shuffled by its seed."""
    terms = exercise.terms
    chance = Chance(f"{terms.generator} seed {terms.seed} cards")
    decoys = chance.shuffled(sorted(DECOYS))[:DECOYS_SHOWN]
    faces: list[tuple[str, str | None, str]] = [(TEXTS[step], step, "") for step in exercise.ask]
    faces += [(DECOYS[one], None, one) for one in decoys]
    return [Card("abcdefghijklmnop"[place], *face) for place, face in enumerate(chance.shuffled(faces))]


def shape_on(exercise: Exercise, card: Card) -> tuple[int, ...]:
    """Rows and columns of what a step's card leads to, of one head where it has an axis of heads."""
    return shape_of(exercise.problem, card.step or "")[-2:]


def grade_plan(exercise: Exercise, answer: object) -> dict[str, Any]:
    """Grade a plan; as `grade`, but for its cells: `order` as it was answered, and per card the two of its `shapes`.

    A card is in its place if all that it needs stands before it. Each step counts once for that and once for its shape;
    a card that does not belong there counts against them.
    """
    cards = {card.id: card for card in cards_of(exercise)}
    plan: Mapping[str, object] = answer if isinstance(answer, dict) else {}
    order, shapes = plan.get("order"), plan.get("shapes")
    laid = order[:MOST] if isinstance(order, list) else []
    sizes = dict(list(shapes.items())[:MOST]) if isinstance(shapes, dict) else {}
    done: set[str] = set()
    order_cells = [_place(cards.get(each) if isinstance(each, str) else None, exercise, done) for each in laid]
    shape_cells = {_echo(each): _shape(cards.get(each), exercise, size) for each, size in sizes.items()}
    right = order_cells.count("ok") + sum(cells == ["ok", "ok"] for cells in shape_cells.values())
    wrong = len(order_cells) - order_cells.count("ok")
    missing = len(exercise.ask) - len(done)
    credit = round(right / (2 * len(exercise.ask) + wrong), 6)
    step = {
        "id": PLAN,
        "correct": credit == 1,
        "credit": credit,
        "cells": {"order": order_cells, "shapes": shape_cells},
        "carried_forward": False,
    }
    return {
        "score": credit,
        "steps": [{**step, "note": f"Steps missing from the order: {missing}."} if missing else step],
        "misconceptions": [_told(one) for one in dict.fromkeys(_decoys(cards, laid))],
        "ambiguous": [],
        "read_as": {
            PLAN: {
                "order": [each if isinstance(each, str) and each in cards else None for each in laid],
                "shapes": {
                    _echo(each): [read(cell).value for cell in size[:2]] if isinstance(size, list) else None
                    for each, size in sizes.items()
                },
            }
        },
    }


def _echo(name: str) -> str:
    """A card's id as it was sent, which may be anything: cut, and without halves of characters."""
    return name[:MOST].encode("utf-8", "replace").decode()


def _place(card: Card | None, exercise: Exercise, done: set[str]) -> str:
    """Whether a card may lie where it does; `done` are the steps laid before it, in whatever place."""
    if card is None:
        return "invalid"
    if card.step is None or card.step in done:
        return "wrong"
    needs = (step for step in NEEDS[card.step] if step in exercise.ask)
    good = done.issuperset(needs)
    done.add(card.step)
    return "ok" if good else "wrong"


def _shape(card: Card | None, exercise: Exercise, size: object) -> list[str]:
    if card is None or not isinstance(size, list) or len(size) != 2:
        return ["invalid", "invalid"]
    readings = [read(cell) for cell in size]
    expected: tuple[int | None, ...] = (None, None) if card.step is None else shape_on(exercise, card)
    return [_side(reading, right) for reading, right in zip(readings, expected, strict=True)]


def _side(reading: Reading, right: int | None) -> str:
    if reading.fault:
        return "invalid"
    if reading.value is None:
        return "missing"
    return "ok" if reading.value == right else "wrong"


def _decoys(cards: Mapping[str, Card], laid: list[object]) -> list[str]:
    found = (cards.get(each) for each in laid if isinstance(each, str))
    return [card.misconception for card in found if card is not None and card.misconception]


def _told(misconception: str) -> dict[str, str]:
    one = MISCONCEPTIONS[misconception]
    return {"id": one.id, "step": PLAN, "title": one.title, "text": one.explanation, "remedy": one.remedy}
