"""A worker's side of the engine, which the test plays itself at the other end of a real socket."""

import asyncio
import os
import socket
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from serving import empty_repository

from models.types import SequenceInput
from service.catalog import load_catalog
from service.errors import (
    ClientGone,
    DeadlineExceeded,
    Draining,
    EngineLost,
    InvalidOption,
    NotFound,
    QueueFull,
    TooLarge,
)
from service.messages import AttentionInput, Options
from service.metrics import Metrics
from service.remote.engine import Remote
from service.remote.frames import Area, Link
from service.remote.wire import answer_frame, catalog_frame, error_head, request_of
from service.settings import Settings
from service.tickets import Limits

LIMITS = Limits(requests=2, sequences=100, tokens=100_000, bytes=1 << 21, batch_sequences=5)


@pytest.fixture(scope="module")
def loaded(artifacts):
    """What there is to be served; loaded once."""
    return load_catalog(Settings(artifacts=artifacts, device="cpu", model_repository=empty_repository(artifacts)),
                        Metrics())  # fmt: skip


class Engine:
    """What a worker connects to.

    Attributes:
        frames: what the worker says.
        gone: set when it has left.
    """

    def __init__(self, catalog):
        self.catalog = catalog
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(b"")
        self.listener.listen()
        self.frames, self.gone = asyncio.Queue(), asyncio.Event()
        self.start = 0

    async def accept(self):
        """Let a worker in, and tell it what is served, under new serials."""
        self.listener.setblocking(False)
        end, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        end.setblocking(True)
        _, descriptors, _, _ = socket.recv_fds(end, 100, 2)
        end.setblocking(False)
        areas = [Area(descriptor) for descriptor in descriptors]
        self.gone = asyncio.Event()
        self.link = Link(lambda _, frame: self.frames.put_nowait(frame), lambda _: self.gone.set(), areas[1], areas[0])
        await asyncio.get_running_loop().create_unix_connection(lambda: self.link, sock=end)
        self.start += 1
        self.tell_catalog()

    def tell_catalog(self, obstacle="", **said):
        served = [model for versions in self.catalog.models.values() for model in versions.values()]
        serials = {id(model): f"{self.start}.{model.entry.spec.id}" for model in served}
        head, arrays = catalog_frame(self.catalog, LIMITS, serials)
        self.link.send({"did": "catalog", "obstacle": obstacle, **head, **said}, arrays)

    async def asked(self, what):
        frame = await asyncio.wait_for(self.frames.get(), 20)
        assert frame.head["do"] == what
        return frame

    def answer(self, frame):
        """Answer a request with its own inputs."""
        sequences = request_of(frame).request.sequences
        head, arrays = answer_frame([({"outputs": s.inputs}, []) for s in sequences], (1.0, 2.0, 3, 1))
        self.link.send({"did": "answer", "id": frame.head["id"], **head}, arrays)

    def refuse(self, frame, error, did="answer"):
        self.link.send({"did": did, "id": frame.head["id"], **error_head(error)})


@pytest.fixture
def played(loaded, settings):
    """Run `talk(worker's engine, the engine that the test plays, its connection)`."""

    def run(talk):
        async def main():
            metrics = Metrics()
            there = Engine(replace(loaded, failures=[]))
            remote = Remote(there.listener.getsockname(), settings, metrics)
            try:
                opened = asyncio.create_task(remote.engine())
                await there.accept()
                engine = await opened
                engine.metrics = metrics
                return await talk(engine, there, remote)
            finally:
                remote.close()
                engine.batcher.close()
                await there.gone.wait()
                there.listener.close()

        return asyncio.run(asyncio.wait_for(main(), 60))

    return run


def request(number=1.0, length=2, width=5, **fields):
    options = Options(**{"return": ["outputs"], "model": "lesson", **fields})
    return AttentionInput((SequenceInput(np.full((length, width), number, np.float32)),), "one", options)


def submit(engine, *arguments, **fields):
    return engine.submit(request(*arguments, **fields), 40, 1e9)


async def result(submission):
    return await asyncio.wait_for(submission.result(), 20)


def test_answers_come_in_any_order_each_to_who_asked(played):
    async def talk(engine, there, _):
        one, two = submit(engine, 1), submit(engine, 2, length=16_000)
        frames = [await there.asked("submit") for _ in range(2)]
        for frame in reversed(frames):
            there.answer(frame)
        return await result(one), await result(two), one, two

    *found, one, two = played(talk)

    assert [answer.answers[0]["outputs"].shape for answer in found] == [(2, 5), (16_000, 5)]
    assert [set(answer.answers[0]["outputs"].ravel()) for answer in found] == [{1}, {2}]
    assert found[0].model == ("lesson", "1")
    assert found[0].backend.name == "onnx"
    assert (one.ticket.started, two.ticket.finished) == (1.0, 2.0)


def test_who_waits_for_an_answer_or_an_error_is_called(played):
    async def talk(engine, there, _):
        submissions, told = [submit(engine, number) for number in (1, 2)], asyncio.Queue()
        for number, submission in enumerate(submissions):
            submission.ticket.when_done(lambda number=number: told.put_nowait(number))
        there.answer(await there.asked("submit"))
        there.refuse(await there.asked("submit"), DeadlineExceeded("late"))
        return [await asyncio.wait_for(told.get(), 20) for _ in submissions]

    assert played(talk) == [0, 1]


def test_what_the_engine_is_told_is_what_was_checked_here(played):
    async def talk(engine, there, _):
        submit(engine, backend="eager", scale=0.5)
        return request_of(await there.asked("submit"))

    asked = played(talk)

    assert asked.request.options == request(backend="eager", scale=0.5, model="lesson@1").options
    assert (asked.bytes_in, asked.deadline) == (40, 1e9)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "nobody"}, NotFound),
        ({"return": ["projected"]}, InvalidOption),
        ({"length": 100_000}, TooLarge),
    ],
)
def test_what_is_wrong_is_told_without_the_engine(played, fields, error):
    async def talk(engine, there, _):
        with pytest.raises(error):
            submit(engine, **fields)
        assert there.frames.empty()

    played(talk)


def test_errors_of_the_engine_are_those_of_the_request(played):
    async def talk(engine, there, _):
        submission = submit(engine)
        there.refuse(await there.asked("submit"), QueueFull("no room", retry_after_s=9))
        with pytest.raises(QueueFull, match="no room") as caught:
            await result(submission)
        return caught.value.retry_after_s

    assert played(talk) == 9


def test_an_engine_that_ends_fails_what_it_held_at_once_and_the_next_is_found(played):
    async def talk(engine, there, _):
        lesson = engine.catalog.layer("lesson")
        held = submit(engine)
        await there.asked("submit")
        there.link.close()

        with pytest.raises(EngineLost) as caught:
            await result(held)
        assert caught.value.retry_after_s == 1
        assert not engine.usable
        assert "another is being started" in engine.obstacle()
        with pytest.raises(EngineLost):
            submit(engine)
        engine.batcher.release(held.ticket)

        await there.accept()
        while not engine.usable:
            await asyncio.sleep(0.01)
        assert engine.obstacle() == ""
        assert engine.catalog.layer("lesson") is not lesson, "it has been loaded again"
        again = submit(engine)
        there.answer(await there.asked("submit"))
        await result(again)

    played(talk)


def test_what_a_client_left_is_released_and_its_answer_ignored(played):
    async def talk(engine, there, _):
        left = submit(engine, 1)
        assert left.ticket.queued
        frame = await there.asked("submit")
        engine.batcher.cancel(left.ticket, ClientGone("the client left"))
        with pytest.raises(ClientGone):
            await left.result()
        engine.batcher.release(left.ticket)
        engine.batcher.release(left.ticket)
        assert (await there.asked("release")).head["id"] == frame.head["id"]
        there.answer(frame)

        other = submit(engine, 2)
        there.answer(await there.asked("submit"))
        assert set((await result(other)).answers[0]["outputs"].ravel()) == {2}

    played(talk)


def test_a_worker_holds_no_more_than_the_service_may(played):
    """The engine may be slow to refuse."""

    async def talk(engine, there, _):
        one, _two = submit(engine), submit(engine)
        with pytest.raises(QueueFull, match="2 requests are in flight"):
            submit(engine)
        engine.batcher.release(one.ticket)
        submit(engine)
        registry: CollectorRegistry = engine.metrics.registry
        return registry.get_sample_value("attention_rejected_total", {"reason": "requests"})

    assert played(talk) == 1


def test_draining_waits_for_what_was_handed_over(played):
    async def talk(engine, there, _):
        held = submit(engine)
        draining = asyncio.create_task(engine.batcher.drain())
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            submit(engine)
        assert not draining.done()
        there.answer(await there.asked("submit"))
        await result(held)
        assert not draining.done()
        engine.batcher.release(held.ticket)
        await asyncio.wait_for(draining, 20)

    played(talk)


def test_what_hinders_the_engine_hinders_the_worker(played):
    async def talk(engine, there, _):
        there.link.send({"did": "state", "obstacle": "a compute slot has died"})
        while engine.obstacle() != "a compute slot has died":
            await asyncio.sleep(0.01)
        assert engine.usable
        there.catalog.failures.append("x")
        there.tell_catalog()
        while engine.usable:
            await asyncio.sleep(0.01)

    played(talk)


def test_a_change_is_made_there_and_known_here_when_it_is_answered(played):
    async def talk(engine, there, remote):
        changing = asyncio.create_task(remote.change("unload", "lesson"))
        frame = await there.asked("change")
        assert (frame.head["verb"], frame.head["wanted"]) == ("unload", "lesson")
        there.catalog.replace("lesson", {})
        there.tell_catalog(id=frame.head["id"], loaded=["single-head-64@1"], unloaded=["lesson@1"])
        change = await asyncio.wait_for(changing, 20)
        with pytest.raises(NotFound):
            engine.catalog.layer("lesson")
        assert [model.entry.spec.id for model in change.loaded] == ["single-head-64@1"]
        assert change.unloaded == ["lesson@1"]

        following = asyncio.create_task(remote.follow())
        frame = await there.asked("catalog")
        there.catalog.replace("single-head-64", {})
        there.tell_catalog(id=frame.head["id"])
        await asyncio.wait_for(following, 20)
        with pytest.raises(NotFound):
            engine.catalog.layer("single-head-64")

    played(talk)


def test_a_change_that_fails_fails_here_too(played):
    async def talk(_, there, remote):
        changing = asyncio.create_task(remote.change("load", "nobody"))
        there.refuse(await there.asked("change"), NotFound("there is no model"), "failed")
        with pytest.raises(NotFound, match="there is no model"):
            await asyncio.wait_for(changing, 20)

        changing = asyncio.create_task(remote.change("load", "lesson"))
        await there.asked("change")
        there.link.close()
        with pytest.raises(EngineLost):
            await asyncio.wait_for(changing, 20)
        await remote.follow()  # there is nothing to follow

    played(talk)


def test_descriptors_are_let_go_of(played):
    async def talk(_, there, remote):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            there.link.close()
            await there.accept()
            await asyncio.wait_for(_followed(remote, there), 20)
        return len(os.listdir("/proc/self/fd")) - before

    assert played(talk) == 0


async def _followed(remote, there):
    while True:
        following = asyncio.create_task(remote.follow())
        await asyncio.sleep(0.01)
        if not there.frames.empty():
            there.tell_catalog(id=there.frames.get_nowait().head["id"])
            return await following
        await following
