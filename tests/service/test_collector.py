"""What has been loaded is out of the way of the garbage collector before anybody is told that the service is ready."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from service.server import _announce
from service.workers.remote_peers import speak


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happens, in order."""
    found: list[Any] = []
    monkeypatch.setattr(gc, "freeze", lambda: found.append("frozen"))
    return found


class Loading:
    """A runtime that takes a moment to load."""

    started = True

    def __init__(self) -> None:
        self.over = False

    async def loaded(self) -> None:
        await asyncio.sleep(0.01)
        self.over = True

    def obstacle(self) -> str:
        return ""

    own_obstacle = obstacle


def test_a_lone_process_is_ready_then(told: list[Any]):
    asyncio.run(_announce(SimpleNamespace(runtime=Loading()), lambda: told.append("ready")))  # type: ignore[arg-type]

    assert told == ["frozen", "ready"]


def test_a_worker_and_an_engine_say_then_that_they_have_loaded(told: list[Any]):
    async def run() -> None:
        runtime, done = Loading(), asyncio.Event()

        def tell(what: str, state: dict[str, Any]) -> None:
            told.append(state["loaded"])
            if state["loaded"]:
                done.set()

        speaking = asyncio.ensure_future(speak(SimpleNamespace(tell=tell), runtime))  # type: ignore[arg-type]
        await asyncio.wait_for(done.wait(), 10)
        speaking.cancel()

    asyncio.run(run())

    assert told == [False, "frozen", True]
