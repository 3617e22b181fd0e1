"""Long bodies, in a thread of their own."""

import asyncio
import threading
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
    """In one thread: another, if there were one, would have begun with the second, as the first waits for the third."""
    lane, seen, threads, all_asked = Lane(), [], set(), threading.Event()

    def work(name: str) -> str:
        seen.append(f"{name} begins")
        threads.add(threading.get_ident())
        assert all_asked.wait(30)
        seen.append(f"{name} ends")
        return name

    async def together() -> list[str]:
        asked = [asyncio.ensure_future(lane.run(partial(work, name))) for name in "abc"]
        await asyncio.sleep(0)  # each has handed over its work
        all_asked.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(together()) == ["a", "b", "c"]
    assert seen == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert len(threads) == 1


def test_an_error_is_that_of_the_work():
    lane = Lane()

    def fails() -> None:
        raise ValueError("no")

    failed, fine = run(lane.run(fails), lane.run(lambda: 1))

    assert isinstance(failed, ValueError)
    assert fine == 1


def test_what_nobody_waits_for_any_more_is_not_begun():
    lane, held, seen = Lane(), threading.Event(), []

    async def run() -> None:
        first = asyncio.ensure_future(lane.run(lambda: held.wait(30)))
        second = asyncio.ensure_future(lane.run(partial(seen.append, "begun")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        held.set()
        assert await first
        await lane.run(lambda: None)
        assert second.cancelled()

    asyncio.run(run())

    assert seen == []


def test_who_starts_a_work_is_called_in_the_event_loop():
    lane, found = Lane(), []

    def fails() -> None:
        raise ValueError("no")

    async def run() -> None:
        lane.start(lambda: 1, lambda *what: found.append((*what, threading.current_thread())))
        lane.start(fails, lambda *what: found.append((*what, threading.current_thread())))
        while len(found) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(run())

    (first, none, here), (nothing, error, there) = found
    assert (first, none, nothing) == (1, None, None)
    assert isinstance(error, ValueError)
    assert here is there is threading.main_thread()


def test_it_ends_after_what_it_has_been_given():
    lane, seen = Lane(), []

    async def run() -> None:
        lane.start(partial(seen.append, "done"), lambda *_: None)

    asyncio.run(run())
    lane.close()

    assert lane._thread is not None
    lane._thread.join(30)
    assert not lane._thread.is_alive()
    assert seen == ["done"], "although the loop that asked has been closed"


def test_in_turn_is_one_after_the_other():
    seen: list[int] = []

    in_turn([partial(seen.append, i) for i in range(3)])

    assert seen == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        in_turn([lambda: seen.append(1 // 0)])
