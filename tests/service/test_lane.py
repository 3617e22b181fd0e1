"""Long bodies, in a thread of their own."""

import asyncio
import threading
import time
from functools import partial
from typing import Any

import pytest

from service.lane import Lane, in_turn


def run(*works: Any) -> list[Any]:
    async def together() -> list[Any]:
        return await asyncio.gather(*works, return_exceptions=True)

    return asyncio.run(together())


def test_the_event_loop_goes_on():
    begun, go_on = threading.Event(), threading.Event()
    lane = Lane()

    def work() -> str:
        begun.set()
        return "done" if go_on.wait(30) else "stuck"

    async def other() -> str:
        while not begun.is_set():
            await asyncio.sleep(0.001)
        go_on.set()
        return "other"

    assert run(lane.run(work), other()) == ["done", "other"]


def test_one_work_is_done_before_the_next_begins():
    lane, seen = Lane(), []

    def work(name: str) -> str:
        seen.append(f"{name} begins")
        time.sleep(0.01)  # in which another thread, if there were one, would begin
        seen.append(f"{name} ends")
        return name

    assert run(*(lane.run(partial(work, name)) for name in "abc")) == ["a", "b", "c"]
    assert seen == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


def test_an_error_is_that_of_the_work():
    lane = Lane()

    def fails() -> None:
        raise ValueError("no")

    failed, fine = run(lane.run(fails), lane.run(lambda: 1))

    assert isinstance(failed, ValueError)
    assert fine == 1


def test_in_turn_is_one_after_the_other():
    seen: list[int] = []

    in_turn([partial(seen.append, i) for i in range(3)])

    assert seen == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        in_turn([lambda: seen.append(1 // 0)])
