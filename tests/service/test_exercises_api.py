"""Exercises over HTTP: as they are described, for whom they are meant, and whatever is sent."""

import asyncio
import gzip
import json
import random
from typing import Any

import jsonschema
import pytest
from learners import on_paper, right_answers
from wire import JSON, PROBLEM, Reply, asgi, call

from service.app import Service, create_app
from service.settings import Settings
from service.tutor.exercises import exercise_of
from service.tutor.exercises.simulation import answers_by
from service.tutor.misconceptions import MISCONCEPTIONS
from service.tutor.signing import Signer

PATH = "/v1/exercises"


@pytest.fixture(scope="module")
def app() -> Service:
    """An application whose models are not loaded: exercises need none."""
    return create_app(Settings(device="cpu", tutor_keys=("tutor",), admin_keys=("admin",)))


def post(app: Service, path: str = "", body: Any = None, **headers: str) -> Reply:
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(asgi(app, "POST", PATH + path, content, named))


def issued(app: Service, **wish: Any) -> dict[str, Any]:
    reply = post(app, body={"seed": 3, **wish})
    assert reply.status == 200, reply.body
    return reply.json()


def exercise(issue: dict[str, Any]):
    return exercise_of(Signer().terms(issue["exercise"]))


def refused(reply: Reply, status: int, pointer: str | None = None) -> str:
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == PROBLEM
    if pointer is not None:
        assert pointer in [field["pointer"] for field in reply.json()["errors"]]
    return reply.json()["detail"]


# ---- a lesson


def test_a_lesson_from_the_numbers_to_the_grade(app: Service):
    """An exercise, one mistake, a hint for it, and what is right then."""
    given = issued(app, level="recipe")
    right = right_answers(exercise(given))
    wrong = on_paper(answers_by(exercise(given), MISCONCEPTIONS["scale.dk"].ways[0]))

    graded = post(app, "/grade", {"exercise": given["exercise"], "answers": wrong}).json()
    hint = post(app, "/hint", {"exercise": given["exercise"], "answers": wrong, "level": 2}).json()

    assert given["ask"] == list(right)
    assert "scale.dk" in given["assessable"]
    assert [one["id"] for one in graded["misconceptions"]] == ["scale.dk"]
    assert graded["score"] == pytest.approx(6 / 7, abs=1e-6)
    assert hint["step"] == "scaled_scores"
    assert hint["text"] == graded["misconceptions"][0]["remedy"]
    assert post(app, "/grade", {"exercise": given["exercise"], "answers": right}).json()["score"] == 1


def test_a_whiteboard_leads_from_the_plan_to_the_numbers(app: Service):
    """Whatever the plan was worth; the numbers are the same, and nothing is prompted but the steps."""
    plan = issued(app, level="causal", mode="whiteboard")

    graded = post(app, "/grade", {"exercise": plan["exercise"], "answers": {"plan": {"order": ["a"]}}}).json()

    second = graded["next"]
    assert plan["ask"] == ["plan"]
    assert "steps" not in plan
    assert {card["id"] for card in plan["cards"]} >= {"a", "k"}
    assert second["inputs"] == plan["inputs"]
    assert second["ask"][-2:] == ["weights", "outputs"]
    assert not any("formula" in step for step in second["steps"])
    answers = right_answers(exercise(second))
    assert post(app, "/grade", {"exercise": second["exercise"], "answers": answers}).json()["score"] == 1


def test_the_same_wish_is_the_same_exercise(app: Service):
    """Byte for byte; without a seed it is another one."""
    assert post(app, body={"seed": 5}).body == post(app, body={"seed": 5, "level": "recipe"}).body
    assert post(app).json()["seed"] != post(app, body={}).json()["seed"]


def test_nothing_is_kept_by_clients_on_the_way(app: Service):
    assert post(app).headers["cache-control"] == "no-store"


# ---- paper


def test_a_worksheet_holds_the_token_of_the_same_exercise(app: Service):
    page = post(app, body={"seed": 3}, accept="text/html")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert issued(app)["exercise"] in page.body.decode()
    assert "style-src 'sha256-" in page.headers["content-security-policy"]
    refused(post(app, accept="image/png"), 406)


def test_solutions_are_for_tutors(app: Service):
    """401 without a key, 403 with another's; as numbers or as a sheet."""
    body = {"exercise": issued(app, level="causal")["exercise"]}

    refused(post(app, "/solution", body), 401)
    for key in ("x", "admin"):
        refused(post(app, "/solution", body, x_api_key=key), 403)
    solved = post(app, "/solution", body, authorization="Bearer tutor").json()
    sheet = post(app, "/solution", body, x_api_key="tutor", accept="text/html")

    assert [step["id"] for step in solved["steps"]][-2:] == ["weighted_values", "outputs"]
    assert solved["steps"][5]["values"][0][1:] == [None] * 3
    assert b"Answers" in sheet.body


def test_without_tutors_nobody_sees_solutions():
    app = create_app(Settings(device="cpu"))

    assert "ATTENTION_TUTOR_KEYS" in refused(post(app, "/solution", {"exercise": "x"}, x_api_key="x"), 403)


def test_a_tutor_key_is_an_api_key_too():
    app = create_app(Settings(device="cpu", api_keys=("pupil",), tutor_keys=("tutor",)))

    assert post(app).status == 401
    assert post(app, x_api_key="pupil").status == post(app, x_api_key="tutor").status == 200


def test_an_exercise_is_signed_with_the_services_own_key(app: Service):
    """One that was signed with another is none."""
    other = create_app(Settings(device="cpu", signing_key="secret"))
    body = {"exercise": issued(app)["exercise"], "answers": {}}

    refused(post(other, "/grade", body), 422, "/exercise")
    assert "secret" not in repr(other.runtime.settings)
    assert post(other, "/grade", {**body, "exercise": post(other).json()["exercise"]}).status == 200


# ---- what is refused


@pytest.mark.parametrize(
    ("path", "body", "status", "pointer"),
    [
        ("", {"seed": "1"}, 422, "/seed"), ("", {"seed": -1}, 422, "/seed"), ("", {"seed": 2**53}, 422, "/seed"),
        ("", {"tokens": 17}, 422, "/tokens"), ("", {"tokens": 4.0}, 422, "/tokens"),
        ("", {"tokens": True}, 422, "/tokens"),
        ("", {"level": "x"}, 422, "/level"), ("", {"level": 1}, 422, "/level"), ("", {"mode": "x"}, 422, "/mode"),
        ("", {"ask": ["x"]}, 422, "/ask/0"), ("", {"ask": "query"}, 422, "/ask"), ("", {"ask": []}, 422, "/ask"),
        ("", {"is_causal": 1}, 422, "/is_causal"), ("", {"levle": "x"}, 422, "/levle"), ("", [], 422, ""),
        ("", b"{", 400, None), ("", b'{"seed": NaN}', 400, None), ("", b'{"seed": 1, "seed": 2}', 422, "/seed"),
        ("/grade", None, 400, None), ("/grade", {}, 422, "/exercise"), ("/grade", {"exercise": "x"}, 422, "/answers"),
        ("/grade", {"exercise": "x", "answers": {}}, 422, "/exercise"), ("/grade", b"[" * 99_999, 400, None),
        ("/grade", {"exercise": "x" * 3_000, "answers": {}}, 422, "/exercise"),
        ("/grade", {"exercise": 1, "answers": []}, 422, "/answers"),
        ("/hint", {"exercise": "x", "level": 4}, 422, "/level"),
        ("/hint", {"exercise": "x", "level": 1}, 422, "/exercise"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(app: Service, path: str, body: Any, status: int, pointer: str | None):
    refused(post(app, path, body), status, pointer)


def test_what_is_not_asked_is_refused_by_name(app: Service):
    token = issued(app, level="scores")["exercise"]

    refused(post(app, "/grade", {"exercise": token, "answers": {"weights": []}}), 422, "/answers/weights")
    refused(post(app, "/hint", {"exercise": token, "level": 1, "step": "weights"}), 422, "/step")


@pytest.mark.parametrize("path", ["", "/grade", "/hint", "/solution"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_body_larger_than_anybody_needs_is_not_read(app: Service, path: str, zipped: bool):
    body = json.dumps({"exercise": "x" * 300_000}).encode()
    headers = {"content_encoding": "gzip"} if zipped else {}

    reply = post(app, path, gzip.compress(body) if zipped else body, x_api_key="tutor", **headers)

    assert "256 KiB" in refused(reply, 413)


def test_only_post_is_taken(app: Service):
    for path in ("", "/grade", "/hint", "/solution"):
        reply = asyncio.run(asgi(app, "GET", PATH + path))
        refused(reply, 405)
        assert reply.headers["allow"] == "POST"


PIECES = [
    None, True, 0, -1.5, 1e308, "", "1/3", "x", "-inf", "\x00", "\ud800", [], [[]], {}, {"a": {}}, [[1, 2], [3]],
    [[[1]]], {"order": ["\ud800"], "shapes": {"\ud800" * 99: [4, 4], "x" * 999: [[], None]}},
    "9" * 5_000, [[0] * 50] * 50, {"order": [1, None, "a"], "shapes": {"a": [1, "x"], "b": 7}}, 10**400,
]  # fmt: skip


def test_whatever_is_sent_is_answered(app: Service):
    """Some hundred bodies of rubbish: 200, 400 or 422, and never a failure of ours."""
    chance = random.Random(3)
    tokens = [issued(app, **wish)["exercise"] for wish in ({}, {"level": "softmax"}, {"mode": "whiteboard"})]
    steps = ["query", "weights", "masked_scores", "plan", "outputs", "", "x"]
    statuses = set()
    for _ in range(400):
        body = {
            "exercise": chance.choice([*tokens, *tokens, *PIECES]),
            "answers": chance.choice([{chance.choice(steps): chance.choice(PIECES) for _ in range(2)}, *PIECES[:3]]),
        }
        path = chance.choice(["/grade", "/hint", "/solution", ""])
        if path == "/hint":
            body |= {"level": chance.choice([1, 2, 3, 3, 9])}
        elif path != "/grade":
            body = {chance.choice(["exercise", "seed", "ask", "tokens"]): chance.choice(PIECES)}

        reply = post(app, path, body, x_api_key="tutor")

        statuses.add(reply.status)
        assert reply.status in (200, 400, 422), (path, body, reply.body)
        json.loads(reply.body)
    assert statuses >= {200, 422}


# ---- as described


def test_every_example_works_as_it_stands(app: Service):
    """And answers are what the document says."""
    document = app.api.openapi()
    for path in ("", "/grade", "/hint", "/solution"):
        operation = document["paths"][PATH + path]["post"]
        example = operation["requestBody"]["content"][JSON]["example"]
        described = operation["responses"]["200"]["content"][JSON]["schema"]

        reply = post(app, path, example, x_api_key="tutor")

        assert reply.status == 200, reply.body
        jsonschema.validate(reply.json(), {"components": document["components"], **described})
        jsonschema.validate(example, operation["requestBody"]["content"][JSON]["schema"])


@pytest.mark.parametrize("wish", [{"level": "mixing"}, {"level": "two-heads"}, {"mode": "whiteboard"}], ids=str)
def test_answers_are_as_described(app: Service, wish: dict[str, Any]):
    document = app.api.openapi()
    described = {"components": document["components"], "$ref": "#/components/schemas/ExerciseAnswer"}
    given = issued(app, **wish)

    jsonschema.validate(given, described)
    for answers in ({}, right_answers(exercise(given))) if "plan" not in given["ask"] else ({},):
        graded = post(app, "/grade", {"exercise": given["exercise"], "answers": answers}).json()
        jsonschema.validate(graded, described | {"$ref": "#/components/schemas/GradeAnswer"})
        hint = post(app, "/hint", {"exercise": given["exercise"], "answers": answers, "level": 3}).json()
        jsonschema.validate(hint, described | {"$ref": "#/components/schemas/HintAnswer"})


@pytest.mark.server
def test_any_worker_grades_what_any_other_handed_out(server):
    """On connections of their own, which are spread over the workers."""
    body = call(server.url, "POST", PATH, b'{"seed": 9, "level": "scaling"}').json()
    answers = right_answers(exercise(body))
    sent = json.dumps({"exercise": body["exercise"], "answers": answers}).encode()

    graded = {call(server.url, "POST", f"{PATH}/grade", sent).body for _ in range(6)}

    assert [json.loads(each)["score"] for each in graded] == [1]
