import asyncio
import threading
import time

import pytest

from service.clock import LoopClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_the_loop_clock_calls_back_at_its_time_and_not_after_cancel():
    loop = asyncio.get_running_loop()
    clock, called = LoopClock(loop), asyncio.Queue()
    assert abs(clock.time() - time.monotonic()) < 1

    clock.call_at(clock.time() + 0.002, called.put_nowait, "later")
    clock.call_at(clock.time() - 5, called.put_nowait, "at once")
    clock.call_at(clock.time() + 0.001, called.put_nowait, "never").cancel()

    assert [await called.get(), await called.get()] == ["at once", "later"]
    assert threading.current_thread() is threading.main_thread()
