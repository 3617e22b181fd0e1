"""The main endpoint in this process: where a body is read, and what a broken stage does."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from wire import JSON, NPY, SAFETENSORS, Reply, asgi, npy

from service.app import Service, create_app
from service.codecs.base import Decoder, ReadsAtOnce
from service.errors import Unparsable
from service.messages import AttentionInput
from service.routes import tensors
from service.routes.attention import AttentionRoute
from service.settings import Settings


@pytest.fixture
def app(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Service:
    """An application that believes to be ready, without models: whatever is asked must fail before they are needed."""
    found = create_app(settings)
    monkeypatch.setattr(type(found.runtime), "engine", None)
    return found


class Noting(ReadsAtOnce):
    """A reader of bodies that notes the thread it is called in, and refuses."""

    media_type = JSON

    def __init__(self) -> None:
        self.threads: list[int] = []

    def decode(self, body: bytes, query: str) -> AttentionInput:
        self.threads.append(threading.get_ident())
        raise Unparsable(f"{len(body)} bytes, {query}")


def post(app: Service, body: bytes, query: str = "", **headers: str) -> Reply:
    named = {"content-type": JSON} | {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(asgi(app, "POST", "/v1/attention", body, named, query))


@pytest.mark.parametrize(
    ("size", "same"),
    [(0, True), (AttentionRoute.long_from - 1, True), (AttentionRoute.long_from, False)],
)
def test_a_large_body_is_read_off_the_event_loop(app: Service, monkeypatch: pytest.MonkeyPatch, size: int, same: bool):
    """Finding what is wrong in megabytes of numbers takes seconds; a small body does not pay for a thread."""
    noting = Noting()
    monkeypatch.setattr(tensors, "decoder_for", lambda *_: noting)

    reply = post(app, b" " * size, "a=b")

    assert reply.status == 400
    assert reply.json()["detail"] == f"{size} bytes, a=b"
    assert (noting.threads == [threading.get_ident()]) is same


def test_a_reader_that_breaks_is_a_fault_of_the_service(app: Service, monkeypatch: pytest.MonkeyPatch):
    """500, told apart from a bad body; nothing is queued or left in progress."""

    def broken(_: str) -> Decoder:
        raise KeyError("a bug")

    monkeypatch.setattr(tensors, "decoder_for", broken)

    reply = post(app, b"{}")

    assert reply.status == 500
    assert reply.json()["type"] == "/problems/internal-error"
    assert app.runtime.metrics.registry.get_sample_value("attention_requests_in_progress") == 0


@pytest.mark.parametrize("media_type", [JSON, SAFETENSORS, NPY])
def test_every_format_is_found_by_its_content_type(app: Service, media_type: str):
    """An empty body is refused by each in its own words."""
    reply = post(app, b"", content_type=media_type)

    assert reply.status == 400
    assert {JSON: "the body is empty", SAFETENSORS: "safetensors", NPY: ".npy"}[media_type] in reply.json()["detail"]


def test_what_is_wrong_in_the_headers_is_said_before_the_body_is_read(app: Service):
    """A client need not send megabytes to learn that nobody reads them."""
    read: list[Any] = []

    async def receive() -> Any:
        read.append(1)
        raise AssertionError("the body was read")

    async def refused(headers: dict[bytes, bytes]) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/attention", "query_string": b"", "client": None,
                 "headers": list(headers.items())}  # fmt: skip
        await app(scope, receive, send)
        status: int = sent[0]["status"]
        return status

    for headers, status in (
        ({b"content-type": b"text/plain"}, 415),
        ({b"accept": b"text/html"}, 406),
        ({b"x-request-timeout-ms": b"soon"}, 422),
        ({b"content-encoding": b"br"}, 415),
    ):
        assert asyncio.run(refused(headers)) == status
    assert not read


def test_the_stages_are_timed_only_of_answers(app: Service):
    """The histogram is of answered requests."""
    post(app, npy(np.zeros((1, 1), np.int32)), content_type=NPY)

    sample = app.runtime.metrics.registry.get_sample_value
    assert sample("attention_stage_duration_seconds_count", {"stage": "decode"}) == 0
