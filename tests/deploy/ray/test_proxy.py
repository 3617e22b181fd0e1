"""What the proxy of Serve says by itself, and what clients read."""

import asyncio
import json

import pytest
from wire import PROBLEM, asgi

from deploy.ray.proxy import Spoken, middlewares

RAYS_ID = {"X-Request-Id": "from-ray"}


def proxy(*messages):
    """An ASGI application that sends messages."""

    async def application(scope, receive, send):
        for message in messages:
            await send(message)

    return Spoken(application)


def answer(status, body=b"of the proxy", content_type=b"text/plain", headers=()):
    start = {"type": "http.response.start", "status": status}
    return {**start, "headers": [(b"content-type", content_type), *headers]}, {
        "type": "http.response.body",
        "body": body,
    }


def ask(application, path="/v1/attention"):
    return asyncio.run(asgi(application, "POST", path, headers=RAYS_ID))


def test_where_a_replica_ends_before_it_answers_clients_are_told_to_try_again():
    reply = ask(proxy())

    assert (reply.status, reply.headers["retry-after"], reply.headers["content-type"]) == (503, "1", PROBLEM)
    assert (reply.json()["type"], reply.json()["instance"]) == ("/problems/worker-lost", "from-ray")


@pytest.mark.parametrize(
    ("status", "headers", "code", "answered"),
    [
        (503, [(b"retry-after", b"1")], "queue-full", 503),
        (503, [], "unavailable", 503),
        (408, [], "deadline-exceeded", 504),
    ],
)
def test_what_the_proxy_refuses_is_a_problem(status, headers, code, answered):
    reply = ask(proxy(*answer(status, headers=headers)))

    assert (reply.status, reply.json()["type"]) == (answered, f"/problems/{code}")
    assert ("retry-after" in reply.headers) == (answered == 503)
    assert reply.headers["content-length"] == str(len(reply.body))


def test_the_open_inference_protocol_has_its_own_way_to_say_so():
    reply = ask(proxy(), "/v2/models/lesson/infer")

    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["error"]


@pytest.mark.parametrize(
    "messages",
    [
        answer(200),
        answer(404),  # a path that leads nowhere in the cluster
        answer(503, json.dumps({"type": "/problems/queue-full"}).encode(), PROBLEM.encode()),
        answer(504, b"{}", PROBLEM.encode()),
    ],
)
def test_what_the_application_says_is_left_as_it_is(messages):
    reply = ask(proxy(*messages))

    assert (reply.status, reply.body) == (messages[0]["status"], messages[1]["body"])


def test_an_answer_names_its_request_once():
    sent = []

    async def application(scope, receive, send):
        ids = [(b"x-request-id", b"ours"), (b"X-Request-ID", b"of Serve")]
        await send({"type": "http.response.start", "status": 200, "headers": ids})

    async def send(message):
        sent.append(message)

    asyncio.run(Spoken(application)({"type": "http", "path": "/", "headers": []}, None, send))

    assert sent[0]["headers"] == [(b"x-request-id", b"ours")]


def test_other_messages_than_of_http_pass():
    seen = []

    async def application(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(Spoken(application)({"type": "lifespan"}, None, None))

    assert seen == ["lifespan"]


def test_serve_gets_what_it_takes_for_middleware():
    (middleware,) = middlewares()

    assert middleware.cls is Spoken
