"""The worker processes of one service, as one of them sees them: what concerns all goes through here."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from service.cores import Cores
from service.rate import Rate

Answer = Callable[[Any], Awaitable[Any]]
"""What a worker says to a question, by its argument. Both are what JSON can hold."""


class Peers(Protocol):
    """All workers, the one that asks included."""

    @property
    def cores(self) -> Cores | None:
        """What they share to compute on; None for a lone one."""

    def answer(self, question: str, answer: Answer) -> None:
        """From now on, answer a question of any worker's so."""

    async def gather(self, question: str, argument: Any = None) -> list[Any]:
        """What every worker answers; workers that do not answer in time are left out."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Be the only one, of all workers, inside of this context."""

    async def tell(self, question: str, argument: Any = None) -> None:
        """Let every other worker do what it would to answer. One that fails is started afresh."""

    async def hit(self, caller: str) -> float:
        """See `Rate.hit`; counted over all workers."""


class Alone:
    """The only worker."""

    cores = None

    def __init__(self, rate_limit: str) -> None:
        """See `Rate`."""
        self._answers: dict[str, Answer] = {}
        self._rate = Rate(rate_limit)
        self._turn = asyncio.Lock()

    def answer(self, question: str, answer: Answer) -> None:
        """See `Peers.answer`."""
        self._answers[question] = answer

    async def gather(self, question: str, argument: Any = None) -> list[Any]:
        """See `Peers.gather`."""
        return [await self._answers[question](argument)]

    def turn(self) -> AbstractAsyncContextManager[None]:
        """See `Peers.turn`."""
        return self._turn

    async def tell(self, question: str, argument: Any = None) -> None:
        """See `Peers.tell`."""

    async def hit(self, caller: str) -> float:
        """See `Peers.hit`."""
        return self._rate.hit(caller)
