"""Questions and answers between the supervisor and a worker, over one socket: JSON behind its length."""

import asyncio
import json
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

log = logging.getLogger(__name__)

LENGTH = struct.Struct("!I")

ANSWER_S = 5.0
"""Longest wait for an answer that costs no more than looking something up."""

Handler = Callable[[Any], Awaitable[Any]]


class Gone(ConnectionError):
    """The other side has ended, or has closed the channel."""


class Failed(RuntimeError):
    """The other side could not answer."""


class Channel:
    """One end. Both ends may ask, at the same time, and answer in any order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """See `opened`."""
        self._reader, self._writer = reader, writer
        self._handlers: dict[str, Handler] = {}
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    async def opened(cls, end: socket.socket) -> "Channel":
        """The end of a channel that `end` is a socket of."""
        return cls(*await asyncio.open_connection(sock=end))

    def on(self, question: str, handler: Handler) -> None:
        """From now on, answer a question so."""
        self._handlers[question] = handler

    async def ask(self, question: str, argument: Any = None, within_s: float | None = ANSWER_S) -> Any:
        """The other side's answer.

        Args:
            question: what the other side has a handler for.
            argument: what JSON can hold.
            within_s: how long to wait; None for as long as it takes.

        Raises:
            Gone: if the other side ends, or has.
            Failed: if its handler raised.
            TimeoutError: if no answer comes in time.
        """
        if self._closed:
            raise Gone(question)
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send({"ask": question, "argument": argument, "number": number})
        try:
            async with asyncio.timeout(within_s):
                return await waiting
        finally:
            del self._waiting[number]

    def tell(self, question: str, argument: Any = None) -> None:
        """Let the other side do what it would to answer, and do not wait."""
        if not self._closed:
            self._send({"ask": question, "argument": argument})

    async def run(self) -> None:
        """Answer, and take answers, until the other side ends."""
        try:
            while True:
                self._take(await self._receive())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    async def first(self) -> Any | None:
        """What the first message says, before any is answered; None if the other side ends without one."""
        try:
            return (await self._receive())["argument"]
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            return None

    async def _receive(self) -> dict[str, Any]:
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        message: dict[str, Any] = json.loads(await self._reader.readexactly(length))
        return message

    def close(self) -> None:
        """End it: whoever waits for an answer is told."""
        self._closed = True
        self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Gone("the other side has ended"))

    def _take(self, message: dict[str, Any]) -> None:
        if "ask" in message:
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif (waiting := self._waiting.get(message["number"])) is not None and not waiting.done():
            if "failed" in message:
                waiting.set_exception(Failed(message["failed"]))
            else:
                waiting.set_result(message["answer"])

    async def _answer(self, message: dict[str, Any]) -> None:
        number = message.get("number")
        try:
            said = {"answer": await self._handlers[message["ask"]](message["argument"])}
        except Exception as error:
            if number is None:
                log.exception("%s failed", message["ask"])
            said = {"failed": f"{type(error).__name__}: {error}"}
        if number is not None and not self._closed:
            self._send({**said, "number": number})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self._writer.write(LENGTH.pack(len(body)) + body)
