"""A stand-in for the service's exercises, just as much as the widget's tests need, by the same wire.

It serves what a real one seldom shows in one go: every verdict, mistakes that cannot be told apart, heads.
"""

import json
from typing import Any

from playwright.sync_api import Page, Route

LABELS = ["t1", "t2"]
INPUTS = [[1.0, 2.0], [0.0, 1.0]]
PROJECTIONS = {
    "query": [[1.0, 0.0], [0.0, 1.0]],
    "key": [[2.0, 1.0], [1.0, 0.0]],
    "value": [[1.0, 1.0], [0.0, 2.0]],
}
ANSWERS = {
    "query": [[1.0, 2.0], [0.0, 1.0]],
    "raw_scores": [[[6.0, 1.0], [1.0, 0.0]], [[6.0, 1.0], [1.0, 0.0]]],
}
CARDS = {
    "c1": "Multiply the embeddings by the three weight matrices",
    "c2": "Multiply each query with each key",
    "c3": "Divide every score by the number of tokens",
    "c4": "Take the softmax of each row",
}


def exercise(request: dict[str, Any]) -> dict[str, Any]:
    """Two steps: a plain one, and one of two heads."""
    document = {
        "exercise": "token", "generator": "qkv/1", "seed": request.get("seed", 3),
        "level": request.get("level", "recipe"), "mode": request.get("mode", "guided"),
        "title": "The whole recipe", "instructions": "Work the steps by hand. Round to 2 decimals.",
        "labels": LABELS, "inputs": INPUTS, "projections": PROJECTIONS, "num_heads": 2, "is_causal": False,
        "decimals": 2, "given": {"scaled_scores": [[[1.0, None], [0.5, 2.0]], [[0.0, None], [-1.0, 1.0]]]},
        "assessable": [], "not_assessable": [],
    }  # fmt: skip
    if request.get("mode") == "whiteboard":
        cards = [{"id": name, "text": text} for name, text in CARDS.items()]
        return document | {"ask": ["plan"], "cards": cards, "given": {}}
    return document | asked()


def asked() -> dict[str, Any]:
    """What is asked, step by step."""
    return {
        "ask": ["query", "raw_scores"],
        "steps": [
            {"id": "query", "title": "Project to queries", "symbol": "Q", "formula": "Q = X W_Q", "shape": [2, 2],
             "row_labels": LABELS, "column_labels": ["1", "2"]},
            {"id": "raw_scores", "title": "Compare by dot product", "symbol": "S", "formula": "S = Q K^\\top",
             "shape": [2, 2, 2], "row_labels": LABELS, "column_labels": LABELS},
        ],
    }  # fmt: skip


def verdict(answer: Any, right: float) -> str:
    if answer is None:
        return "missing"
    try:
        return "ok" if abs(float(answer.replace(",", ".")) - right) < 0.01 else "wrong"
    except ValueError:
        return "invalid"


def verdicts(answer: Any, right: Any) -> Any:
    if isinstance(right, list):
        return [verdicts(a, r) for a, r in zip(answer, right, strict=True)]
    return verdict(answer, right)


def flat(cells: Any) -> list[str]:
    return [cell for part in cells for cell in flat(part)] if isinstance(cells, list) else [cells]


def grade(request: dict[str, Any]) -> dict[str, Any]:
    if "plan" in request["answers"]:
        plan = request["answers"]["plan"]
        right = plan["order"] == ["c1", "c2", "c4"]
        cells = {"order": ["wrong" if card == "c3" else "ok" for card in plan["order"]],
                 "shapes": {card: ["ok" if side == "2" else "wrong" for side in shape]
                            for card, shape in plan["shapes"].items()}}  # fmt: skip
        step = {"id": "plan", "correct": right, "credit": 1.0 if right else 0.5, "carried_forward": False,
                "cells": cells, **({} if right else {"note": "Steps missing from the order: 3."})}  # fmt: skip
        following = exercise({}) | {"mode": "whiteboard"}
        following["steps"] = [{k: v for k, v in each.items() if k != "formula"} for each in following["steps"]]
        return {"score": step["credit"], "steps": [step], "misconceptions": [], "ambiguous": [], "next": following}
    steps = []
    for name, right in ANSWERS.items():
        cells = verdicts(request["answers"][name], right)
        credit = flat(cells).count("ok") / len(flat(cells))
        steps.append({"id": name, "correct": credit == 1, "credit": credit, "cells": cells,
                      "carried_forward": name == "raw_scores" and credit == 1})  # fmt: skip
    score = sum(step["credit"] for step in steps) / len(steps)
    mistake = {"id": "key-not-transposed", "step": "raw_scores", "title": "The keys were not transposed",
               "text": "Your scores are Q times K.", "remedy": "Take rows of Q with rows of K."}  # fmt: skip
    wrong = "wrong" in flat(steps[1]["cells"])
    return {"score": score, "steps": steps, "misconceptions": [mistake] if wrong else [],
            "ambiguous": [["score.kqt", "score.other"]] if wrong else [],
            "read_as": {"query": [[0.5, None], [None, None]], "raw_scores": None}}  # fmt: skip


def hint(request: dict[str, Any]) -> dict[str, Any]:
    texts = {1: "Look at the queries.", 2: "Rows of X times columns of the weights.", 3: "The first number is 1."}
    level = request["level"]
    document = {"step": "query", "level": level, "text": texts[level]}
    return document | ({"formula": "Q = X W_Q"} if level == 2 else {})


def misconceptions(_: None) -> dict[str, Any]:
    return {"misconceptions": [{"id": "score.kqt", "title": "The scores were turned"}]}


def serve(page: Page) -> list[tuple[str, dict[str, Any]]]:
    """Answer the page's calls from here; the list gets every call, path and body."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def answer(route: Route) -> None:
        path = route.request.url.partition("/v1/")[2]
        body = route.request.post_data_json
        calls.append((path, body))
        make = {"exercises": exercise, "exercises/grade": grade, "exercises/hint": hint,
                "misconceptions": misconceptions}[path]  # fmt: skip
        route.fulfill(status=200, content_type="application/json", body=json.dumps(make(body)))

    page.route("**/v1/exercises**", answer)
    page.route("**/v1/misconceptions", answer)
    return calls
