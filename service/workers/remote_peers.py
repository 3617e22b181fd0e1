"""What a process of a service says to its supervisor, and asks of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from service.cores import Cores
from service.errors import Unavailable
from service.peers import Answer
from service.runtime import Runtime, spare_collector
from service.workers.channel import Channel, Failed, Gone

SPEAK_EVERY_S = 0.5
"""How often the supervisor hears that this process is alive."""


class RemotePeers:
    """All workers, by way of the supervisor; see `Peers`."""

    def __init__(self, channel: Channel, cores: Cores | None) -> None:
        """Ask through `channel`."""
        self._channel, self.cores = channel, cores

    def answer(self, question: str, answer: Answer) -> None:
        """See `Peers.answer`."""
        self._channel.on(question, answer)

    async def gather(self, question: str, argument: Any = None) -> list[Any]:
        """See `Peers.gather`."""
        found: list[Any] = await self._ask("gather", [question, argument], within_s=None)
        return found

    def turn(self) -> AbstractAsyncContextManager[None]:
        """See `Peers.turn`."""
        return self._in_turn()

    @contextlib.asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        await self._ask("turn", within_s=None)
        try:
            yield
        finally:
            self._channel.tell("turn_over")

    async def tell(self, question: str, argument: Any = None) -> None:
        """See `Peers.tell`."""
        await self._ask("tell", [question, argument], within_s=None)

    async def hit(self, caller: str) -> float:
        """See `Peers.hit`."""
        wait: float = await self._ask("hit", caller)
        return wait

    async def _ask(self, question: str, argument: Any = None, within_s: float | None = 5.0) -> Any:
        try:
            return await self._channel.ask(question, argument, within_s)
        except (Gone, Failed, TimeoutError) as error:
            raise Unavailable(f"the supervisor of this service did not answer: {error}", retry_after_s=1) from error


async def speak(channel: Channel, runtime: Runtime) -> None:
    """Tell the supervisor how this process is: when its models have been loaded, and every now and then."""
    loading = asyncio.ensure_future(runtime.loaded())
    loading.add_done_callback(lambda _: spare_collector())
    while True:
        channel.tell("state", {"loaded": loading.done(), "ready": not runtime.own_obstacle()})
        if loading.done():
            await asyncio.sleep(SPEAK_EVERY_S)
        else:
            await asyncio.wait((loading,), timeout=SPEAK_EVERY_S)
