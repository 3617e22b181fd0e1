"""Requests as calls of engines that the test plays itself."""

import asyncio
import time

import numpy as np
import pytest

from deploy.ray import calls
from deploy.ray.calls import Calls
from service.errors import EngineLost

ARRAYS = [np.ones(3, np.float32)]


class Response:
    """What comes of a call: an answer, an exception, or nothing until it is cancelled."""

    def __init__(self, outcome):
        self.outcome, self.cancelled = outcome, False

    def __await__(self):
        return self._come().__await__()

    async def _come(self):
        if self.outcome is None:
            await asyncio.Event().wait()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def cancel(self):
        self.cancelled = True


class Engines:
    """Plays the handle."""

    def __init__(self, *outcomes):
        self.responses = [Response(outcome) for outcome in outcomes]
        self.called = []

    def infer(self, head, arrays):
        self.called.append((head, arrays))
        return self.responses[len(self.called) - 1]


def play(engines, talk):
    """Run `talk(calls, frames)`, where frames are what the queue gets to hear."""

    async def main():
        frames = []
        made = Calls(engines.infer, frames.append, lambda error: EngineLost(str(error), retry_after_s=3))
        await talk(made, frames)
        return frames

    return asyncio.run(asyncio.wait_for(main(), 20))


def submit(made, number=1, seconds=10.0):
    made.send({"do": "submit", "id": number, "deadline": time.monotonic() + seconds}, ARRAYS)


async def answered(frames, count=1):
    while len(frames) < count:
        await asyncio.sleep(0.001)


def test_a_request_goes_with_the_time_it_has_left_and_its_answer_has_times_of_this_machine():
    engines = Engines(({"answers": [], "ran": (0.25, 0.5, 7, 2)}, ARRAYS))
    before = time.monotonic()

    async def talk(made, frames):
        submit(made, 7, seconds=10)
        await answered(frames)
        assert made.heard >= before

    (frame,) = play(engines, talk)

    ((head, arrays),) = engines.called
    assert 9 < head["left"] <= 10
    assert "deadline" not in head, "the clock of another machine is another"
    assert arrays is ARRAYS
    assert frame.head["id"] == 7
    started, finished, *others = frame.head["ran"]
    assert before + 0.25 <= started <= time.monotonic() + 0.25
    assert finished - started == pytest.approx(0.25)
    assert others == [7, 2]


def test_what_an_engine_refuses_is_passed_on_as_it_is():
    async def talk(made, frames):
        submit(made)
        await answered(frames)

    (frame,) = play(Engines(({"code": "not-found", "detail": "no such model"}, [])), talk)

    assert frame.head == {"code": "not-found", "detail": "no such model", "id": 1}


def test_an_exception_of_the_call_is_an_error_of_ours():
    async def talk(made, frames):
        submit(made)
        await answered(frames)

    (frame,) = play(Engines(RuntimeError("the actor died")), talk)

    assert (frame.head["code"], frame.head["detail"], frame.head["retry_after_s"]) == (
        "engine-lost",
        "the actor died",
        3,
    )


@pytest.mark.parametrize(
    ("heard", "lost", "code"),
    [(0, 0, "engine-lost"), (100, 0, "deadline-exceeded"), (100, 100, "engine-lost")],
    ids=["nobody answers", "others are answered", "one was lost meanwhile"],
)
def test_nobody_waits_longer_than_the_deadline_and_is_told_why(monkeypatch, heard, lost, code):
    monkeypatch.setattr(calls, "GRACE_S", 0.02)
    engines = Engines(None)

    async def talk(made, frames):
        submit(made, seconds=0.02)
        made.heard, made.lost = heard and time.monotonic() + heard, lost and time.monotonic() + lost
        await answered(frames)

    (frame,) = play(engines, talk)

    assert frame.head["code"] == code
    assert engines.responses[0].cancelled


def test_a_request_that_is_released_is_cancelled_and_nothing_is_heard_of_it():
    engines = Engines(None, None)

    async def talk(made, frames):
        submit(made, 1)
        submit(made, 2)
        await asyncio.sleep(0.01)
        made.send({"do": "release", "id": 1})
        await asyncio.sleep(0.01)
        assert [response.cancelled for response in engines.responses] == [True, False]
        made.close()
        await asyncio.sleep(0.01)

    assert play(engines, talk) == []
    assert all(response.cancelled for response in engines.responses)


def test_a_call_that_ray_gives_up_is_an_error_of_ours():
    async def talk(made, frames):
        submit(made)
        await answered(frames)

    (frame,) = play(Engines(asyncio.CancelledError()), talk)

    assert frame.head["code"] == "engine-lost"


def test_an_answered_request_is_forgotten_when_it_is_released():
    async def talk(made, frames):
        submit(made)
        await answered(frames)
        made.send({"do": "release", "id": 1})
        made.send({"do": "release", "id": 1})

    assert len(play(Engines(({"answers": []}, [])), talk)) == 1
