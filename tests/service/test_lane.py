"""Long work takes turns with everything else."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from service import lane
from service.lane import Lane, Steps


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is as long as a turn."""
    monkeypatch.setattr(lane, "SLICE_S", 0.0)


def steps(name: str, seen: list[str], count: int = 3) -> Steps[str]:
    for i in range(count):
        seen.append(f"{name}{i}")
        yield
    return name


async def others(seen: list[str], count: int) -> None:
    for _ in range(count):
        seen.append("other")
        await asyncio.sleep(0)


def run(*works: Any) -> list[Any]:
    async def together() -> list[Any]:
        return await asyncio.gather(*works, return_exceptions=True)

    return asyncio.run(together())


def test_whatever_else_there_is_to_do_is_done_between_steps():
    seen: list[str] = []

    found = run(Lane().run(steps("a", seen)), others(seen, 3))

    assert found == ["a", None]
    assert seen == ["a0", "other", "a1", "other", "a2", "other"]


def test_one_work_is_done_after_the_other():
    """Two side by side would both take twice as long, and twice the memory."""
    seen: list[str] = []
    one = Lane()

    found = run(one.run(steps("a", seen)), one.run(steps("b", seen)))

    assert found == ["a", "b"]
    assert seen == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_work_that_fails_or_is_given_up_lets_the_next_one_in():
    seen: list[str] = []
    one = Lane()

    def broken() -> Steps[str]:
        yield
        raise ValueError("broken")

    async def given_up() -> None:
        async with asyncio.timeout(0):
            await one.run(steps("a", seen, 1_000_000))

    error, expired, found = run(one.run(broken()), given_up(), one.run(steps("b", seen)))

    assert isinstance(error, ValueError)
    assert isinstance(expired, TimeoutError)
    assert found == "b"


def test_short_steps_share_a_turn(monkeypatch: pytest.MonkeyPatch):
    """A turn costs something too."""
    monkeypatch.setattr(lane, "SLICE_S", 60.0)
    seen: list[str] = []

    run(Lane().run(steps("a", seen)), others(seen, 1))

    assert seen == ["a0", "a1", "a2", "other"]


def test_pieces_are_collected_without_empty_ones():
    def pieces() -> Iterator[bytes]:
        yield from (b"a", b"", b"b")

    assert run(Lane().collect(pieces())) == [[b"a", b"b"]]
