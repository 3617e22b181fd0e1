"""Requests of an ingress replica as calls of engine replicas: what `RemoteQueue` takes for its line to the engine."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from models.errors import AttentionError
from models.types import Array
from service.errors import DeadlineExceeded, EngineLost
from service.remote.frames import Frame
from service.remote.wire import Head, error_head

GRACE_S = 0.25
"""An engine drops what has passed its deadline, and says so. If nothing is heard by so much later, it is given up."""

Said = tuple[Head, list[Array]]
"""A head, as JSON could hold it, and arrays."""


class Response(Protocol):
    """What comes of a call: Ray's `DeploymentResponse`."""

    def __await__(self) -> Any:
        """The `Said` of an engine."""

    def cancel(self) -> None:
        """Nobody wants it any more."""


class Calls:
    """A task for each request that has been handed over, until it is answered or released.

    Attributes:
        heard: when an engine last answered anything, by `time.monotonic`.
        lost: when one was last found to be gone.
    """

    def __init__(
        self,
        infer: Callable[[Head, Sequence[Array]], Response],
        take: Callable[[Frame], None],
        named: Callable[[Exception], AttentionError],
    ) -> None:
        """Call by `infer`, and give what comes of it to `take`.

        Args:
            infer: calls some engine replica.
            take: see `RemoteQueue.take`.
            named: what an exception of a call is to the client.
        """
        self._infer, self._take, self._named = infer, take, named
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.heard = self.lost = 0.0

    def send(self, head: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """See `Link.send`: a request is submitted, or released."""
        number: int = head["id"]
        if head["do"] == "submit":
            self._tasks[number] = asyncio.get_running_loop().create_task(self._call(number, dict(head), arrays))
        elif (task := self._tasks.pop(number, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """See `Link.close`."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()

    async def _call(self, number: int, head: Head, arrays: Sequence[Array]) -> None:
        sent = time.monotonic()
        head["left"] = head.pop("deadline") - sent  # clocks of other machines differ
        try:
            said, answer = await self._answered(head, arrays)
            self.heard = time.monotonic()
        except asyncio.CancelledError:
            if number not in self._tasks:  # released
                raise
            said, answer = error_head(EngineLost("the call of an engine replica was given up")), []
        except AttentionError as error:
            said, answer = error_head(error), []
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, the client is told
            kind = self._named(error)
            if isinstance(kind, EngineLost):
                self.lost = time.monotonic()
            said, answer = error_head(kind), []
        if "ran" in said:
            started, finished, *others = said["ran"]
            said = {**said, "ran": (sent + started, sent + finished, *others)}
        self._take(Frame({**said, "id": number}, answer))

    async def _answered(self, head: Head, arrays: Sequence[Array]) -> Said:
        response, sent = self._infer(head, arrays), time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, head["left"]) + GRACE_S):
                answered: Said = await response
                return answered
        except TimeoutError:
            with suppress(Exception):
                response.cancel()
            if self.heard < sent or self.lost > sent:
                raise EngineLost("engine replicas are gone, and others are being started", retry_after_s=2) from None
            raise DeadlineExceeded("no engine replica has answered in the time that the request was given") from None
        except asyncio.CancelledError:
            response.cancel()
            raise
