"""The supervisor: starts workers, accepts connections for them, and starts another where one ends.

If requests are computed in a process of its own, the engine, that is started and kept in the same way. The supervisor
computes nothing and loads no model. What concerns all workers goes through it: metrics, statistics, rates, and changes
of what is served.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from service.descriptors import make_room
from service.devices import available_cores
from service.errors import ConfigurationError
from service.exposition import Family, departed
from service.listen import bind, bracketed, reserve, url_of
from service.rate import Rate
from service.settings import Settings
from service.workers.channel import Channel, Failed, Gone
from service.workers.connections import Connections, Seat
from service.workers.journal import Journal
from service.workers.nursery import ENGINE_PROCESS, WORKER_PROCESS, Nursery, Process
from service.workers.share import engine_apart, share, worker_count
from service.workers.states import States

log = logging.getLogger(__name__)

HUNG_S = 30.0
"""A worker that has not been heard of for so long is killed: it speaks twice a second."""

UNWELL_S = 30.0
"""A worker that was ready and has not been for so long is replaced."""

LOOK_EVERY_S = 1.0

SETTLED_S = 10.0
"""A worker that lived longer is replaced at once; others after a pause, which doubles from 1 s on."""

LONGEST_PAUSE_S = 30.0

ENGINE = -1
"""The engine's number among the workers."""

WAITING = 1_024
"""Connections to the engine that wait until it has been started."""

KILL_AFTER_S = 5.0
"""How much longer than `shutdown_timeout_s` a worker may take to end."""


def serve(settings: Settings, on_ready: Callable[[str, str], None]) -> None:
    """Serve with several workers until SIGINT or SIGTERM; see `service.server.serve`.

    Raises:
        ConfigurationError: if it cannot start as configured.
    """
    with bind(settings) as listener:
        supervisor = Supervisor(settings, worker_count(settings), listener, Nursery(listener))
        with asyncio.Runner() as runner:
            runner.run(supervisor.run(on_ready))
    if supervisor.fatal is not None:
        raise supervisor.fatal


class Worker:
    """A worker process, or the engine, as the supervisor sees it.

    Attributes:
        name: what log lines call it.
        seat: where it has connections; None for the engine.
        heard: when it last said something, by `time.monotonic`.
        talking: whether it has said anything yet.
        ready: whether its own readiness check passes.
        well: when that was last so; 0 if never.
        leaving: whether it has been told to end.
        last: its last metrics.
    """

    def __init__(self, number: int, process: Process, channel: Channel, seat: Seat | None) -> None:
        self.number, self.process, self.channel, self.seat = number, process, channel, seat
        self.name = "the engine" if number == ENGINE else f"worker {number}"
        self.started = self.heard = time.monotonic()
        self.talking = self.ready = self.leaving = False
        self.well = 0.0
        self.last: list[Family] = []

    def end(self, reason: str) -> None:
        """Kill it."""
        log.error("%s (process %d) %s; killing it", self.name, self.process.pid, reason)
        self.process.kill()


class Supervisor:
    """The parent of `count` workers.

    Attributes:
        fatal: why the service could not start, if it could not.
    """

    def __init__(self, settings: Settings, count: int, listener: socket.socket, nursery: Nursery) -> None:
        """No worker is started yet."""
        self._settings, self._count, self._listener, self._nursery = settings, count, listener, nursery
        self._states = States()
        self._connections = Connections(self._states)
        self._workers: dict[int, Worker] = {}
        self._rate = Rate(settings.rate_limit)
        self._turn = asyncio.Lock()
        self._turn_of: Worker | None = None
        self._journal = Journal()
        self._departed: list[Family] = []
        self._restarts = self._engine_restarts = 0
        self._apart: socket.socket | None = None
        self._retirements: set[asyncio.Task[None]] = set()
        self._first_loaded = asyncio.Event()
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._rpc: socket.socket | None = None
        self._on_ready: Callable[[], None] | None = None
        self.fatal: ConfigurationError | None = None

    async def run(self, on_ready: Callable[[str, str], None]) -> None:
        """Serve until a signal; `on_ready` as in `serve`."""
        make_room()
        loop = asyncio.get_running_loop()
        if self._settings.grpc_port is not None:
            self._rpc = reserve(self._settings, self._settings.grpc_port)
        host = bracketed(self._settings.host)
        url, rpc = url_of(self._listener, self._settings), f"{host}:{self._rpc.getsockname()[1]}" if self._rpc else ""
        self._on_ready = lambda: on_ready(url, rpc)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        engine: asyncio.Task[None] | None = None
        if engine_apart(self._settings, self._count):
            self._apart = listening()
            engine = loop.create_task(self._keep(ENGINE))
        self._connections.listen(self._listener)
        keepers = [loop.create_task(self._keep(number)) for number in range(self._count)]
        await self._stopping.wait()
        self._nursery.close()
        await self._drain()
        await asyncio.wait(keepers)
        if engine is not None:  # last: it computes what the workers have accepted
            for worker in self._workers.values():
                worker.leaving = True
                worker.channel.tell("at_once" if self._at_once.is_set() else "stop")
            await engine
        if self._apart is not None:
            self._apart.close()
        await self._connections.close()
        log.info("stopped")

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._at_once.set()
            for worker in self._workers.values():
                worker.channel.tell("at_once")
            return
        log.info("stopping: answering what was accepted, refusing new work; signal again to stop at once")
        self._stopping.set()

    async def _drain(self) -> None:
        """Go on accepting for a while and say no, so that clients and load balancers notice; then let workers end."""
        workers = [worker for worker in self._workers.values() if worker.number != ENGINE]
        for worker in workers:
            worker.leaving = True
            worker.channel.tell("drain")
        if self.fatal is None and (len(self._connections) or self._rpc is not None):
            await _either(self._at_once, self._settings.drain_grace_s)
        self._connections.stop_listening()
        for worker in workers:
            worker.channel.tell("stop")

    # ---- the life of one worker

    async def _keep(self, number: int) -> None:
        """Have a worker of this number until the service stops."""
        if number > 0 and self._apart is None:  # the first exports the graphs that the others read
            await _any_of(self._first_loaded, self._stopping)
        pause = 0.0
        while not self._stopping.is_set():
            worker = await self._started(number)
            if worker is None:
                return
            await self._until_ended(worker)
            if self._stopping.is_set():
                return
            code = worker.process.returncode
            if not self._first_loaded.is_set():
                first = worker.name if self._apart else "the first worker"
                self._fail(f"{first} ended with {code} before it was ready; its log lines say why")
                return
            lived = time.monotonic() - worker.started
            pause = 0.0 if lived > SETTLED_S else min(LONGEST_PAUSE_S, max(1.0, 2 * pause))
            if number == ENGINE:
                self._engine_restarts += 1
            else:
                self._restarts += 1
            log.error("%s (process %d) ended with %s; another starts in %g s", worker.name, worker.process.pid, code,
                      pause)  # fmt: skip
            await _either(self._stopping, pause)

    async def _started(self, number: int) -> Worker | None:
        """Start a worker, or the engine; None if the service stops before that."""
        if number == ENGINE:
            assert self._apart is not None, "there is an engine only where it is apart"
            return await self._born(ENGINE, ENGINE_PROCESS, self._apart.fileno())
        link, their_link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        seat = Seat(link)
        with their_link:
            descriptors = their_link.fileno(), self._states.descriptor
            worker = await self._born(number, WORKER_PROCESS, *descriptors, seat=seat)
        if worker is None:
            link.close()
        else:
            self._connections.seat(seat)
        return worker

    async def _born(self, number: int, module: str, *descriptors: int, seat: Seat | None = None) -> Worker | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = await self._nursery.start(module, (theirs.fileno(), *descriptors))
        if process is None:
            ours.close()
            return None
        worker = Worker(number, process, await Channel.opened(ours), seat)
        self._introduce(worker)
        self._workers[number] = worker
        return worker

    def _introduce(self, worker: Worker) -> None:
        """Tell a new worker what to be, and listen to what it says."""
        mine = self._settings if worker.number == ENGINE else share(self._settings, self._count)
        worker.channel.tell(
            "hello",
            {
                "number": worker.number,
                "settings": mine.model_dump(mode="json"),
                "cores": self._settings.compute_threads or available_cores(),
                "changes": self._journal.changes,
                "complete": self._on_ready is None,
                "grpc_port": self._rpc.getsockname()[1] if self._rpc else None,
                "engine": self._apart.getsockname().hex() if self._apart else "",
            },
        )

        async def state(said: dict[str, bool]) -> None:
            self._heard(worker, loaded=said["loaded"], ready=said["ready"])

        async def fatal(reason: str) -> None:
            if self._first_loaded.is_set():
                log.error("%s cannot start: %s", worker.name, reason)
            else:
                self._fail(reason)

        async def leave(_: None) -> None:
            await self._retire(worker)

        async def turn(_: None) -> None:
            await self._turn.acquire()
            if worker.process.returncode is not None:
                self._turn.release()
            else:
                self._turn_of = worker

        async def turn_over(_: None) -> None:
            self._end_turn(worker)

        async def gather(asked: list[Any]) -> list[Any]:
            return await self._gather(*asked)

        async def tell(told: list[Any]) -> None:
            await self._tell(worker, *told)

        async def hit(caller: str) -> float:
            return self._rate.hit(caller)

        for handler in (state, fatal, leave, turn, turn_over, gather, tell, hit):
            worker.channel.on(handler.__name__, handler)

    async def _until_ended(self, worker: Worker) -> None:
        """Watch over a worker until its process has ended, then clear up after it."""
        ended = asyncio.ensure_future(worker.process.wait())
        talk = asyncio.ensure_future(worker.channel.run())
        told_to_end_at = 0.0
        while not ended.done():
            await asyncio.wait((ended,), timeout=LOOK_EVERY_S)
            now = time.monotonic()
            if ended.done():
                break
            if not self._computes():
                worker.well = worker.well and now  # it is not at fault
            ends_last = worker.number == ENGINE and not worker.leaving
            if worker.leaving or (self._stopping.is_set() and not ends_last) or talk.done():
                told_to_end_at = told_to_end_at or now
                patience = 0.0 if self._at_once.is_set() else self._settings.shutdown_timeout_s
                patience += self._settings.drain_grace_s + KILL_AFTER_S
                if now - told_to_end_at > patience:
                    worker.end("does not end")
            elif now - worker.heard > HUNG_S:
                worker.end("has not been heard of")
            elif worker.well and not worker.ready and now - worker.well > UNWELL_S:
                log.error("%s has not been ready for %.0f s", worker.name, now - worker.well)
                await self._retire(worker)
        if worker.seat is not None:
            self._connections.unseat(worker.seat)
            self._states.computing[worker.number] = 0
        await talk
        del self._workers[worker.number]
        self._departed = departed(self._departed, worker.last)
        self._end_turn(worker)

    def _heard(self, worker: Worker, *, loaded: bool, ready: bool) -> None:
        worker.heard = time.monotonic()
        worker.talking = True
        worker.ready = ready
        if worker.seat is not None:
            worker.seat.ready = ready
        if ready:
            worker.well = worker.heard
        if loaded:
            self._first_loaded.set()
        ready_ones = sum(other.ready for other in self._workers.values() if other.seat is not None)
        if self._on_ready is not None and ready_ones == self._count:
            for other in self._workers.values():
                other.channel.tell("complete")
            self._on_ready()
            self._on_ready = None

    def _computes(self) -> bool:
        """Whether the engine is ready, where that is a process of its own: without it no worker can be."""
        engine = self._workers.get(ENGINE)
        return self._apart is None or (engine is not None and engine.ready)

    async def _retire(self, worker: Worker) -> None:
        """Let a worker end in good order: what it has accepted is answered, its idle connections go to others."""
        if worker.leaving:
            return
        worker.leaving = True
        worker.channel.tell("drain")
        if worker.seat is not None:
            worker.seat.taking = False
            worker.channel.tell("give_back")
        await asyncio.sleep(self._settings.drain_grace_s)
        worker.channel.tell("stop")

    def _fail(self, reason: str) -> None:
        self.fatal = self.fatal or ConfigurationError(reason)
        self._stopping.set()

    # ---- what concerns all workers

    async def _gather(self, question: str, argument: Any) -> list[Any]:
        """What every worker answers; to the question for metrics, what there is to say of those that have ended too."""
        asked = [worker for worker in self._workers.values() if worker.talking]
        answers = await asyncio.gather(*(worker.channel.ask(question, argument) for worker in asked),
                                       return_exceptions=True)  # fmt: skip
        found = []
        for worker, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, BaseException):
                found.append(answer)
                if question == "metrics":
                    worker.last = answer
            else:
                log.warning("%s did not answer: %r", worker.name, answer)
                if question == "metrics":  # what it said last, so that no counter falls
                    found.append(worker.last)
        if question == "metrics":
            found += [self._departed, self._metrics()]
        return found

    def _metrics(self) -> list[Family]:
        restarts = {"attention_worker_restarts": self._restarts, "attention_engine_restarts": self._engine_restarts}
        return [{"name": name, "documentation": "", "type": "counter", "samples": [[f"{name}_total", {}, count]]}
                for name, count in restarts.items()]  # fmt: skip

    async def _tell(self, teller: Worker, question: str, argument: Any) -> None:
        self._journal.add(question, argument)
        others = [worker for worker in self._workers.values()
                  if worker is not teller and not worker.leaving and worker.number != ENGINE]  # fmt: skip
        said = await asyncio.gather(*(worker.channel.ask(question, argument, within_s=None) for worker in others),
                                    return_exceptions=True)  # fmt: skip
        for worker, answer in zip(others, said, strict=True):
            if isinstance(answer, Failed):
                log.error("%s could not follow: %s %s: %s", worker.name, question, argument, answer)
                task = asyncio.get_running_loop().create_task(self._retire(worker))
                self._retirements.add(task)
                task.add_done_callback(self._retirements.discard)
            elif isinstance(answer, BaseException) and not isinstance(answer, Gone):
                raise answer

    def _end_turn(self, worker: Worker) -> None:
        if self._turn_of is worker:
            self._turn_of = None
            self._turn.release()


def listening() -> socket.socket:
    """Where workers connect to the engine. It outlives engines: who connects while there is none waits for the next.

    Its address is of those that are no files, and the system's choice; the engine looks at who connects.
    """
    found = socket.socket(socket.AF_UNIX)
    found.bind(b"")
    found.listen(WAITING)
    found.setblocking(False)
    return found


async def _either(event: asyncio.Event, within_s: float) -> None:
    """Wait for an event, or so long."""
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except TimeoutError:
        return


async def _any_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
