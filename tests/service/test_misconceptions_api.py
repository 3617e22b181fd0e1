"""The named mistakes over HTTP."""

import pytest
from serving import Server
from wire import JSON, PROBLEM, call

from service.tutor.misconceptions import MISCONCEPTIONS

pytestmark = pytest.mark.server

PATH = "/v1/misconceptions"


def test_all_are_listed_in_the_order_of_the_recipe(server: Server):
    reply = call(server.url, "GET", PATH)

    assert reply.status == 200
    assert reply.headers["content-type"] == JSON
    listed = reply.json()["misconceptions"]
    assert [one["id"] for one in listed] == list(MISCONCEPTIONS)
    for one in listed:
        known = MISCONCEPTIONS[one["id"]]
        assert one == {
            "id": known.id, "step": known.step, "steps": list(known.steps), "title": known.title,
            "formula": known.formula, "explanation": known.explanation, "remedy": known.remedy,
            "twins": [{"id": id, "reason": reason} for id, reason in known.twins.items()],
            "warns": known.warns, "slip": known.slip,
        }  # fmt: skip


def test_one_is_had_by_its_id(server: Server):
    listed = call(server.url, "GET", PATH).json()["misconceptions"]

    assert call(server.url, "GET", f"{PATH}/softmax.columns").json() in listed


@pytest.mark.parametrize(
    ("asked", "hint"),
    [("scale.nothing", "did you mean 'scale.none'?"), ("xyzzy", "/v1/misconceptions lists them")],
)
def test_an_unknown_one_is_404_with_the_nearest_id(server: Server, asked: str, hint: str):
    reply = call(server.url, "GET", f"{PATH}/{asked}")

    assert reply.status == 404
    assert reply.headers["content-type"] == PROBLEM
    assert reply.json()["type"] == "/problems/not-found"
    assert hint in reply.json()["detail"]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/out.mean"])
def test_who_has_the_answer_already_is_told_so(server: Server, path: str):
    first = call(server.url, "GET", path)
    tag = first.headers["etag"]

    again = call(server.url, "GET", path, headers={"If-None-Match": f'"other", W/{tag}'})
    other = call(server.url, "GET", path, headers={"If-None-Match": '"other"'})

    assert first.headers["cache-control"] == "max-age=3600"
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert (other.status, other.body) == (200, first.body)
    assert call(server.url, "GET", path, headers={"If-None-Match": "*"}).status == 304


def test_only_get_and_head(server: Server):
    reply = call(server.url, "POST", PATH, b"{}")

    assert reply.status == 405
    assert reply.headers["allow"] == "GET, HEAD"
    assert call(server.url, "HEAD", PATH).status == 200


def test_they_are_described(server: Server):
    described = call(server.url, "GET", "/openapi.json").json()

    for path, model in ((PATH, "MisconceptionList"), (f"{PATH}/{{id}}", "MisconceptionDescription")):
        responses = described["paths"][path]["get"]["responses"]
        assert responses["200"]["content"][JSON]["schema"] == {"$ref": f"#/components/schemas/{model}"}
        assert "content" not in responses["304"]
    assert described["components"]["schemas"]["MisconceptionDescription"]["examples"]
