"""The quiz over HTTP."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from serving import Server
from wire import JSON, PROBLEM, Reply, call

from service.tutor.quiz import MOST_SEED, QUESTIONS, TOPICS, Quiz

pytestmark = pytest.mark.server

PATH = "/v1/quiz"


def grade(server: Server, body: Any) -> Reply:
    return call(server.url, "POST", f"{PATH}/grade", json.dumps(body).encode(), {"Content-Type": JSON})


def right(token: str) -> dict[str, str]:
    return {
        one.question.id: letter
        for one in Quiz.of_token(token).questions()
        for letter, choice in one.choices.items()
        if choice is one.posed.right
    }


def test_a_quiz_is_asked_without_its_answers(server: Server):
    reply = call(server.url, "GET", f"{PATH}?seed=3&count=50")

    assert reply.status == 200
    sheet = reply.json()
    assert set(sheet) == {"quiz", "seed", "questions"}
    assert (sheet["quiz"], sheet["seed"]) == ("quiz/1/3/50/all", 3)
    assert {question["id"] for question in sheet["questions"]} == set(QUESTIONS)
    for question in sheet["questions"]:
        assert set(question) - {"formula"} == {"id", "topic", "text", "choices"}
        assert all(set(choice) == {"id", "text"} for choice in question["choices"])
    assert sum("formula" in question for question in sheet["questions"]) == 1
    for drawn in Quiz(3, 50).questions():
        assert not any(choice.why in reply.body.decode() for choice in drawn.choices.values())


def test_the_same_request_has_the_same_bytes_and_a_tag(server: Server):
    first, again = (call(server.url, "GET", f"{PATH}?seed=3") for _ in range(2))

    assert first.body == again.body
    assert len(first.json()["questions"]) == 10
    unchanged = call(server.url, "GET", f"{PATH}?seed=3", headers={"If-None-Match": first.headers["etag"]})
    assert (unchanged.status, unchanged.body) == (304, b"")
    assert call(server.url, "GET", f"{PATH}?seed=4").body != first.body


def test_without_a_seed_there_is_another_quiz_each_time(server: Server):
    sheets = [call(server.url, "GET", PATH) for _ in range(2)]

    assert sheets[0].json()["seed"] != sheets[1].json()["seed"]
    for sheet in sheets:
        assert sheet.headers["cache-control"] == "no-store"
        assert "etag" not in sheet.headers
        again = call(server.url, "GET", f"{PATH}?seed={sheet.json()['seed']}")
        assert again.body == sheet.body


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_alone(server: Server, topic: str):
    questions = call(server.url, "GET", f"{PATH}?seed=1&topic={topic}&count=50").json()["questions"]

    assert {question["topic"] for question in questions} == {topic}
    assert len(questions) == sum(question.topic == topic for question in QUESTIONS.values())


def test_right_answers_score_one_and_are_told_why(server: Server):
    sheet = call(server.url, "GET", f"{PATH}?seed=5&count=50").json()

    reply = grade(server, {"quiz": sheet["quiz"], "answers": right(sheet["quiz"])})

    assert reply.status == 200
    assert reply.json()["score"] == 1
    assert [mark["id"] for mark in reply.json()["questions"]] == [question["id"] for question in sheet["questions"]]
    assert all(mark["correct"] and mark["text"].startswith("Yes") for mark in reply.json()["questions"])


def test_wrong_answers_are_told_which_idea_led_there_and_open_ones_nothing(server: Server):
    token = "quiz/1/5/3/weighted-sum"
    drawn = Quiz.of_token(token).questions()
    correct = right(token)
    letter, choice = next((letter, one) for letter, one in drawn[0].choices.items() if one.misconception)
    answers = {drawn[0].question.id: letter, drawn[1].question.id: correct[drawn[1].question.id]}

    found = grade(server, {"quiz": token, "answers": answers}).json()

    assert found == {
        "score": pytest.approx(1 / 3),
        "questions": [
            {"id": drawn[0].question.id, "correct": False, "verdict": "wrong", "chosen": letter, "text": choice.why,
             "misconception": choice.misconception},
            {"id": drawn[1].question.id, "correct": True, "verdict": "ok", "chosen": correct[drawn[1].question.id],
             "text": drawn[1].posed.right.why},
            {"id": drawn[2].question.id, "correct": False, "verdict": "missing", "chosen": None,
             "text": "This one was left open."},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"quiz": "quiz/1/7/3/softmax", "answers": {"softmax.none": "a"}}, "/answers/softmax.none"),
        ({"quiz": "quiz/1/7/3/softmax", "answers": {"a/b": None}}, "/answers/a~1b"),
        ({"quiz": "quiz/1/7/3/softmax", "answers": {"softmax.shift": "e"}}, "/answers/softmax.shift"),
        ({"quiz": "quiz/1/7/3/softmax", "answers": {"softmax.shift": 1}}, "/answers/softmax.shift"),
        ({"quiz": "quiz/9/7/3/softmax", "answers": {}}, "/quiz"),
        ({"quiz": 7, "answers": {}}, "/quiz"),
        ({"quiz": "quiz/1/7/3/softmax"}, "/answers"),
        ({"quiz": "quiz/1/7/3/softmax", "answers": []}, "/answers"),
        ({"quiz": "quiz/1/7/3/softmax", "answers": {}, "more": 1}, "/more"),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(server: Server, body: Any, pointer: str):
    reply = grade(server, body)

    assert reply.status == 422
    assert reply.headers["content-type"] == PROBLEM
    assert pointer in [error["pointer"] for error in reply.json()["errors"]]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [("seed=-1", "/seed"), (f"seed={MOST_SEED + 1}", "/seed"), ("seed=x", "/seed"), ("count=0", "/count"),
     ("count=51", "/count"), ("topic=none", "/topic"), ("sed=1", "/sed")],
)  # fmt: skip
def test_parameters_out_of_range_are_refused(server: Server, query: str, pointer: str):
    reply = call(server.url, "GET", f"{PATH}?{query}")

    assert reply.status == 422
    assert [error["pointer"] for error in reply.json()["errors"]] == [pointer]


@pytest.mark.parametrize(("body", "status"), [(b"", 400), (b"{", 400), (b"[]", 422), (b"\xff", 400)])
def test_bodies_that_are_no_object(server: Server, body: bytes, status: int):
    assert call(server.url, "POST", f"{PATH}/grade", body).status == status


def test_the_examples_of_the_page_work(server: Server):
    """As they stand there."""
    page = (Path(__file__).parents[2] / "docs" / "tutor.md").read_text()
    (query,) = re.findall(r"/v1/quiz(\?[^' ]*)'", page)
    (body,) = re.findall(r"/v1/quiz/grade -H [^{]* -d '(\{.*?\}\})'", page, re.DOTALL)

    sheet = call(server.url, "GET", f"{PATH}{query}").json()
    marks = grade(server, json.loads(body)).json()["questions"]

    assert sheet["quiz"] == json.loads(body)["quiz"]
    assert sorted(mark["verdict"] == "missing" for mark in marks) == [False, False, True]


def test_the_examples_of_the_document_are_true(server: Server):
    document = call(server.url, "GET", "/openapi.json").json()
    content = document["paths"]["/v1/quiz/grade"]["post"]["requestBody"]["content"][JSON]
    (sheet,) = document["components"]["schemas"]["QuizSheet"]["examples"]

    asked = call(server.url, "GET", f"{PATH}?seed={sheet['seed']}&count=1&topic=weighted-sum").json()

    assert grade(server, content["example"]).status == 200
    assert asked == sheet
