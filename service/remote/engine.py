"""The engine as an HTTP worker sees it: requests are checked here as far as they can be, and computed there."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, Protocol

from models.errors import AttentionError
from models.types import Array
from service.catalog import Catalog, Loaded
from service.engine import LocalEngine, Prepared, Submission, Tokenised
from service.errors import ClientGone, Draining, EngineLost, QueueFull
from service.lane import ALONE, Team
from service.loader import Change
from service.messages import TextInput
from service.metrics import Metrics
from service.remote.frames import AREA, Area, BadFrame, Frame, Link
from service.remote.wire import Asked, answer_of, catalog_of, error_of, loaded_of, request_frame
from service.settings import Settings
from service.statistics import Statistics
from service.tickets import Limits, Ticket, Waiter, tell

log = logging.getLogger(__name__)

AGAIN_S = 0.1
"""How long after the engine has gone another connection to it is tried."""

CONNECT_S = 10.0

GREETING = b"attention"
"""Comes with the descriptors of the two areas: first the worker's, then the engine's."""


@dataclass(slots=True, eq=False)
class RemoteTicket(Ticket):
    """A request that another process computes. It counts as queued until there is an answer."""

    number: int = 0

    def when_done(self, waiter: Waiter) -> None:
        """See `Ticket.when_done`; answers come one by one from there."""
        self.future.add_done_callback(lambda _: tell((waiter,)))


class Line(Protocol):
    """What leads to the engine; see `Link`."""

    def send(self, head: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """See `Link.send`."""

    def close(self) -> None:
        """See `Link.close`."""


class RemoteQueue:
    """The engine's queue: what has been handed to it, and what has come back. See `Batcher`.

    The engine alone counts what it refuses, drops and computes. Here only so much is checked that a worker never holds
    more than all of the service may.
    """

    def __init__(self, metrics: Metrics) -> None:
        """Nothing is connected yet."""
        self._metrics = metrics
        self._link: Line | None = None
        self._numbers = count(1)
        self._tickets: dict[int, RemoteTicket] = {}
        self._bytes = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def connected(self, link: Line) -> None:
        """From now on, requests go there."""
        self._link = link

    def lost(self) -> None:
        """The engine has gone: whoever waits for it is told."""
        self._link = None
        for ticket in list(self._tickets.values()):
            self._end(ticket, _lost())

    def submit(self, asked: Asked, model: str, sequences: int, size: int, limits: Limits) -> RemoteTicket:
        """Hand over a request; arguments beside `Asked` as of `request_frame` and `Batcher.submit`.

        Raises:
            Draining: while this worker stops.
            QueueFull: if this worker alone has as much in flight as the service may have.
            EngineLost: if there is no engine.
        """
        if self._draining:
            self._metrics.rejected.labels("draining").inc()
            raise Draining("the service is shutting down; try another replica", retry_after_s=1)
        if self._link is None:
            raise _lost()
        for unit, used, more, most in (
            ("requests", len(self._tickets), 1, limits.requests),
            ("bytes", self._bytes, size, limits.bytes),
        ):
            if used + more > most:
                self._metrics.rejected.labels(unit).inc()
                raise QueueFull(f"{used} {unit} are in flight and {more} more would pass the limit of {most}")
        loop = asyncio.get_running_loop()
        ticket = RemoteTicket(
            loop.create_future(), asked.deadline, sequences, 0, size, time.monotonic(), number=next(self._numbers)
        )
        ticket.waiting = 1
        self._tickets[ticket.number] = ticket
        self._bytes += size
        self._idle.clear()
        head, arrays = request_frame(asked, model)
        self._link.send({"do": "submit", "id": ticket.number, **head}, arrays)
        return ticket

    def take(self, frame: Frame) -> None:
        """An answer has come, or an error."""
        ticket = self._tickets.get(frame.head["id"])
        if ticket is None or ticket.ended:
            return
        if "code" in frame.head:
            self._end(ticket, error_of(frame.head))
            return
        verdicts, (ticket.started, ticket.finished, ticket.tokens, ticket.batch) = answer_of(frame)
        ticket.ended, ticket.waiting = True, 0
        if not ticket.future.done():
            ticket.future.set_result(verdicts)

    def cancel(self, ticket: Ticket, error: AttentionError) -> None:
        """See `Batcher.cancel`; the engine is told when the ticket is released."""
        self._end(ticket, error)

    def release(self, ticket: Ticket) -> None:
        """See `Batcher.release`."""
        assert isinstance(ticket, RemoteTicket)
        self.cancel(ticket, ClientGone("the request was abandoned"))
        if self._tickets.pop(ticket.number, None) is None:
            return
        del ticket.future
        self._bytes -= ticket.bytes
        if self._link is not None:
            self._link.send({"do": "release", "id": ticket.number})
        if not self._tickets:
            self._idle.set()

    def refuse(self) -> None:
        """See `Batcher.refuse`."""
        self._draining = True

    async def drain(self) -> None:
        """See `Batcher.drain`."""
        self.refuse()
        await self._idle.wait()

    def close(self) -> None:
        """See `Batcher.close`; the engine goes on for others."""
        self.refuse()
        for ticket in list(self._tickets.values()):
            self.cancel(ticket, Draining("the service has stopped", retry_after_s=1))
        if self._link is not None:
            self._link.close()

    def _end(self, ticket: Ticket, error: AttentionError) -> None:
        if ticket.ended:
            return
        ticket.ended, ticket.waiting = True, 0
        if not ticket.future.done():
            ticket.future.set_exception(error)
            ticket.future.exception()  # whoever abandoned the request will not ask for it


def _lost() -> EngineLost:
    return EngineLost("the process that computes has ended, and another takes its place", retry_after_s=1)


class RemoteEngine(LocalEngine):
    """Checks requests by what the engine serves, and lets it compute them. It checks them again: it knows best.

    Attributes:
        gone: whether there is no engine.
        trouble: why it says that it is not ready; empty if it is.
    """

    def __init__(self, settings: Settings, catalog: Catalog, limits: Limits, queue: RemoteQueue) -> None:
        """Hand over to `queue`; `catalog` has stand-ins for runners."""
        self.settings, self.catalog, self.limits, self.shadow = settings, catalog, limits, None
        self.own = Statistics()
        self.batcher = self._queue = queue
        self.gone, self.trouble = False, ""

    def team(self) -> AbstractContextManager[Team]:
        """See `LocalEngine.team`: whoever computes is in another process."""
        return nullcontext(ALONE)

    def obstacle(self) -> str:
        """See `LocalEngine.obstacle`."""
        return "the process that computes has ended, and another is being started" if self.gone else self.trouble

    @property
    def usable(self) -> bool:
        """See `LocalEngine.usable`."""
        return super().usable and not self.gone

    def learn(self, catalog: Catalog, limits: Limits) -> None:
        """Serve what the engine serves now."""
        for part in fields(Catalog):  # in place: there are requests that hold it
            setattr(self.catalog, part.name, getattr(catalog, part.name))
        self.limits = limits

    def queue(self, prepared: Prepared, deadline: float) -> Submission:
        """See `LocalEngine.queue`."""
        units, request = prepared.units, prepared.request
        bytes_in = prepared.size - prepared.sizes.computed([unit.length for unit in units], request.options)
        model = "@".join(prepared.name) if units[0].job.projections is None else ""
        asked = Asked(request, prepared.tokens, bytes_in, deadline)
        ticket = self._queue.submit(asked, model, len(units), prepared.size, self.limits)
        return Submission(ticket, prepared)


class Remote:
    """The connection to the engine, made again whenever it is lost; see `runtime.Compute`."""

    def __init__(self, address: bytes, settings: Settings, metrics: Metrics) -> None:
        """Nothing is connected yet; `address` is a Unix socket's."""
        self._address, self._settings, self._metrics = address, settings, metrics
        self._link: Link | None = None
        self._engine: RemoteEngine | None = None
        self._queue: RemoteQueue | None = None
        self._first: asyncio.Future[RemoteEngine] | None = None
        self._known: dict[str, Loaded] = {}
        self._numbers = count(1)
        self._questions: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._closing = False
        self._keeping: asyncio.Task[None] | None = None

    async def engine(self) -> RemoteEngine:
        """The engine, once there is one."""
        loop = asyncio.get_running_loop()
        self._queue = RemoteQueue(self._metrics)
        self._first = loop.create_future()
        self._keeping = loop.create_task(self._connect())
        return await asyncio.shield(self._first)

    async def change(self, verb: str, wanted: str) -> Change:
        """Let the engine load or unload; errors as in `Loader`.

        Raises:
            EngineLost: if there is no engine, or it ends meanwhile.
        """
        said = await self._ask("change", verb=verb, wanted=wanted)
        assert self._engine is not None
        return Change(loaded_of(self._engine.catalog, said["loaded"]), said["unloaded"])

    async def follow(self) -> None:
        """Serve what the engine serves. Where there is none, what the next one serves is known when it has come."""
        try:
            await self._ask("catalog")
        except EngineLost as error:
            log.info("nothing to follow: %s", error)

    def close(self) -> None:
        """Do not connect again."""
        self._closing = True
        if self._keeping is not None:
            self._keeping.cancel()

    async def _ask(self, question: str, **arguments: str) -> dict[str, Any]:
        if self._link is None:
            raise _lost()
        number = next(self._numbers)
        asked: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._questions[number] = asked
        self._link.send({"do": question, "id": number, **arguments})
        try:
            return await asked
        finally:
            del self._questions[number]

    async def _connect(self) -> None:
        while True:
            try:
                await connect(self._address, self._take, self._lost)
            except OSError as error:
                log.info("no connection to the engine: %s", error)
                await asyncio.sleep(AGAIN_S)
                continue
            return

    def _lost(self, _: Link) -> None:
        assert self._queue is not None
        self._link = None
        self._queue.lost()
        for asked in self._questions.values():
            if not asked.done():
                asked.set_exception(_lost())
        if self._engine is not None:
            self._engine.gone = True
        if not self._closing:
            asyncio.get_running_loop().call_later(AGAIN_S, self._again)

    def _again(self) -> None:
        if not self._closing:
            self._keeping = asyncio.get_running_loop().create_task(self._connect())

    def _take(self, link: Link, frame: Frame) -> None:
        assert self._queue is not None
        what = frame.head.get("did")
        if what == "answer":
            self._queue.take(frame)
        elif what == "state":
            if self._engine is not None:
                self._engine.trouble = frame.head["obstacle"]
        elif what == "catalog":
            self._learn(link, frame)
        elif what != "failed":
            raise BadFrame(f"nobody here knows of {what!r}")
        asked = self._questions.get(frame.head.get("id", 0)) if what in ("catalog", "failed") else None
        if asked is not None and not asked.done():
            if what == "failed":
                asked.set_exception(error_of(frame.head))
            else:
                asked.set_result(frame.head)

    def _learn(self, link: Link, frame: Frame) -> None:
        """What the engine serves now. That is its first word, once it has loaded."""
        assert self._queue is not None
        assert self._first is not None
        catalog, limits = catalog_of(frame, self._known)
        if self._engine is None:
            self._engine = RemoteEngine(self._settings, catalog, limits, self._queue)
            self._first.set_result(self._engine)
        else:
            self._engine.learn(catalog, limits)
        self._engine.gone, self._engine.trouble = False, frame.head["obstacle"]
        self._link = link
        self._queue.connected(link)


def submitted(engine: LocalEngine, asked: Asked) -> Submission:
    """Let an engine compute what another process has asked for; arguments and errors as in `LocalEngine.submit`."""
    request = asked.request
    if isinstance(request, TextInput):
        encoder = engine.catalog.encoder(request.options.model or "")
        tokenised = Tokenised(request, encoder, asked.tokens or [])
        return engine.queue(engine.prepare_text(tokenised, asked.bytes_in), asked.deadline)
    return engine.submit(request, asked.bytes_in, asked.deadline)


async def connect(
    address: bytes, take: Callable[[Link, Frame], None], lost: Callable[[Link], None], size: int = AREA
) -> Link:
    """A connection to the engine that listens at `address`, with an area for each direction.

    Raises:
        OSError: if there is none to be had.
    """
    end = socket.socket(socket.AF_UNIX)
    areas: list[Area] = []
    try:
        end.settimeout(CONNECT_S)
        end.connect(address)
        areas += [Area(size=size), Area(size=size)]
        socket.send_fds(end, [GREETING], [area.descriptor for area in areas])
        end.setblocking(False)
        link = Link(take, lost, *areas)
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=end)
    except BaseException:
        end.close()
        for area in areas:
            area.close()
        raise
    return link
