"""The engine process: computes what the workers accept. `python -m service.workers.engine`."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from models.errors import AttentionError
from service import logs
from service.catalog import Loaded
from service.engine import LocalEngine
from service.errors import Draining, InternalError, WorkerLost
from service.logs import outline
from service.remote.engine import GREETING, submitted
from service.remote.frames import Area, BadFrame, Frame, Link
from service.remote.wire import Verdicts, answer_frame, catalog_frame, error_head, request_of
from service.runtime import Runtime
from service.server import loop_factory
from service.settings import Settings
from service.tickets import Ticket
from service.workers.channel import Channel
from service.workers.remote_peers import RemotePeers, speak

log = logging.getLogger(__name__)

GREET_S = 10.0
"""How long whoever connects may take to say that it is a worker."""

TELL_EVERY_S = 0.5
"""How often workers hear whether the engine is ready, if that has changed."""


@dataclass(slots=True, eq=False)
class Held:
    """A request of a worker's.

    Attributes:
        place: of its tensors in the memory shared with the worker; None once that may be overwritten.
    """

    ticket: Ticket
    place: int | None


class Desk:
    """Where workers hand in requests and get answers."""

    def __init__(self, runtime: Runtime, engine: LocalEngine) -> None:
        """Compute by `engine`, which is that of `runtime`."""
        self._runtime, self._engine = runtime, engine
        self._links: dict[Link, dict[int, Held]] = {}
        self._lingering: list[tuple[Link, Held]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._serials: dict[int, tuple[Loaded, str]] = {}
        self._numbers = count()
        self._listener: socket.socket | None = None
        self._told = ""
        self.empty = asyncio.Event()
        self.empty.set()

    def listen(self, listener: socket.socket) -> None:
        """Accept workers, and tell them from now on how this engine is."""
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)
        self._start(self._tell())

    def close(self) -> None:
        """Accept nobody, and let go of who is there."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
        for task in self._tasks:
            task.cancel()
        for link in list(self._links):
            link.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            end, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        self._start(self._greet(end))

    async def _greet(self, end: socket.socket) -> None:
        """Make sure that it is a worker, and tell it what is served."""
        try:
            areas = await asyncio.to_thread(_areas, end)
        except (OSError, BadFrame) as error:
            log.warning("whoever connected is no worker: %s", error)
            end.close()
            return
        theirs, mine = areas
        in_place = self._engine.shadow is None  # which looks at requests when they are long answered
        link = Link(self._take, self._lost, mine, theirs, in_place=in_place)
        self._links[link] = {}
        self.empty.clear()
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=end)
        link.send(*self._catalog({}))

    async def _tell(self) -> None:
        while True:
            if (obstacle := self._runtime.own_obstacle()) != self._told:
                self._told = obstacle
                for link in self._links:
                    link.send({"did": "state", "obstacle": obstacle})
            lingering, self._lingering = self._lingering, []
            for link, held in lingering:
                self._part(link, held)
            await asyncio.sleep(TELL_EVERY_S)

    def _lost(self, link: Link) -> None:
        """A worker has ended: nobody wants what it asked for."""
        for held in self._links.pop(link).values():
            self._engine.batcher.cancel(held.ticket, WorkerLost("the process that held the request has ended"))
            self._engine.batcher.release(held.ticket)
        if not self._links:
            self.empty.set()

    def _take(self, link: Link, frame: Frame) -> None:
        what, number = frame.head.get("do"), frame.head.get("id")
        if type(number) is not int:
            raise BadFrame(f"{what} without a number")
        if what == "submit":
            self._submit(link, number, frame)
        elif what == "release":
            if (held := self._links[link].pop(number, None)) is not None:
                self._engine.batcher.release(held.ticket)
                self._part(link, held)
        elif what == "catalog":
            link.send(*self._catalog({"id": number}))
        elif what == "change":
            self._start(self._change(link, number, frame.head["verb"], frame.head["wanted"]))
        else:
            raise BadFrame(f"nobody here knows of {what!r}")

    def _submit(self, link: Link, number: int, frame: Frame) -> None:
        asked = request_of(frame)
        try:
            submission = submitted(self._engine, asked)
        except Exception as error:  # noqa: BLE001 - one request must not end the connection of all others
            link.done(frame.place)
            self._refuse(link, number, error)
            return
        ticket = submission.ticket
        self._links[link][number] = Held(ticket, frame.place)
        ticket.future.add_done_callback(partial(self._answer, link, number))

    def _answer(self, link: Link, number: int, future: "asyncio.Future[Verdicts]") -> None:
        held = self._links.get(link, {}).get(number)
        if held is None or future.cancelled():  # released: nobody waits
            return
        self._part(link, held)
        if (error := future.exception()) is not None:
            self._refuse(link, number, error)
            return
        ticket = held.ticket
        ran = (ticket.started, ticket.finished, ticket.tokens, ticket.batch)
        head, arrays = answer_frame(future.result(), ran)
        link.send({"did": "answer", "id": number, **head}, arrays)

    def _part(self, link: Link, held: Held) -> None:
        """Let the worker overwrite the tensors of a request that has ended, once nothing of it is computed."""
        if held.place is None:
            return
        if held.ticket.running:
            self._lingering.append((link, held))
        else:
            link.done(held.place)
            held.place = None

    def _refuse(self, link: Link, number: int, error: BaseException, did: str = "answer") -> None:
        link.send({"did": did, "id": number, **error_head(_named(error))})

    async def _change(self, link: Link, number: int, verb: str, wanted: str) -> None:
        try:
            if self._runtime.draining:
                raise Draining("the service is shutting down")
            change = await self._runtime.changed(verb, self._engine.catalog, wanted)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            link.send(*self._catalog({}))  # what could not be loaded is listed as broken
            self._refuse(link, number, error, "failed")
            return
        loaded = [model.entry.spec.id for model in change.loaded]
        link.send(*self._catalog({"id": number, "loaded": loaded, "unloaded": change.unloaded}))

    def _catalog(self, said: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        engine = self._engine
        served = [model for versions in engine.catalog.models.values() for model in versions.values()]
        self._serials = {
            id(model): self._serials.get(id(model)) or (model, f"{os.getpid()}.{next(self._numbers)}")
            for model in served
        }
        serials = {key: serial for key, (_, serial) in self._serials.items()}
        head, arrays = catalog_frame(engine.catalog, engine.limits, serials)
        return {"did": "catalog", "obstacle": self._runtime.own_obstacle(), **head, **said}, arrays


def _named(error: BaseException) -> AttentionError:
    if isinstance(error, AttentionError):
        return error
    log.error("a request could not be taken\n%s", outline(error))
    return InternalError("something unforeseen went wrong on our side; it has been logged")


def _areas(end: socket.socket) -> tuple[Area, Area]:
    """What the worker at the other end shares: what it writes and what it reads.

    Raises:
        OSError, BadFrame: if it is no worker of this service's.
    """
    _, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user != os.geteuid():
        raise BadFrame(f"it runs as user {user}")
    end.settimeout(GREET_S)
    greeting, descriptors, _, _ = socket.recv_fds(end, len(GREETING), 2)
    if greeting != GREETING or len(descriptors) != 2:
        for descriptor in descriptors:
            os.close(descriptor)
        raise BadFrame("it does not greet as one")
    end.setblocking(False)
    theirs, mine = (Area(descriptor) for descriptor in descriptors)
    return theirs, mine


async def compute(control: socket.socket, listener: socket.socket) -> None:
    """Compute until the supervisor says stop; or, if it ends, until the workers have."""
    channel = await Channel.opened(control)
    hello = await channel.first()
    if hello is None:  # the service stops already
        return
    settings = Settings(**hello["settings"] | {"tracing": False})  # workers make spans, of stages here too
    logs.set_up(settings, "engine")
    ending = asyncio.Event()

    def on_fatal(error: AttentionError) -> None:
        channel.tell("fatal", str(error))
        ending.set()

    runtime = Runtime(settings, on_fatal, RemotePeers(channel, None), [tuple(change) for change in hello["changes"]])
    runtime.metrics.workers.set(0)  # it is none, and whether a request would be answered is not for it to say
    for gauge in (runtime.metrics.ready, runtime.metrics.workers_ready):
        runtime.metrics.watch(gauge, lambda: 0.0)

    async def complete(_: None) -> None:
        """What workers tell their callers is theirs to know."""

    async def drain(_: None) -> None:
        runtime.begin_drain()

    async def stop(_: None) -> None:
        ending.set()

    async def at_once(_: None) -> None:
        os._exit(0)

    for handler in (complete, drain, stop, at_once):
        channel.on(handler.__name__, handler)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, channel.tell, "leave")
    runtime.start()
    talking = loop.create_task(channel.run())
    speaking = loop.create_task(speak(channel, runtime))
    orphaned = False

    def end(_: object) -> None:
        nonlocal orphaned
        orphaned = not ending.is_set()
        runtime.begin_drain()
        ending.set()

    talking.add_done_callback(end)
    engine = await runtime.loaded()
    if engine is not None and not ending.is_set():
        desk = Desk(runtime, engine)
        desk.listen(listener)
        await ending.wait()
        if orphaned:  # the workers answer what they have accepted, and end
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.shutdown_timeout_s):
                    await desk.empty.wait()
        await runtime.stop()
        desk.close()
    speaking.cancel()
    channel.close()


def main() -> None:
    """Run the engine whose descriptors are the command's arguments: control, and where workers connect."""
    control, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    listener.setblocking(False)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(compute(control, listener))


if __name__ == "__main__":
    main()
