"""A worker process: takes connections from the supervisor and answers them. `python -m service.workers.worker`."""

import asyncio
import signal
import socket
import sys
from collections import deque
from typing import Any

from models.errors import AttentionError
from service import logs
from service.app import Service, create_app
from service.cores import Cores
from service.descriptors import make_room
from service.http import Protocol
from service.metrics import Metrics
from service.remote.engine import Remote
from service.server import Server, configured, loop_factory, start_rpc
from service.settings import Settings
from service.workers.channel import Channel
from service.workers.connections import GIVEN_BACK, PLACE
from service.workers.remote_peers import RemotePeers, speak
from service.workers.states import State, States


class WorkerProtocol(Protocol):
    """A connection that says what it is being used for, so that it can be saved if this process dies.

    Attributes:
        place: where in `states`.
    """

    def __init__(self, *args: Any, place: int, states: States, link: "Link", **kwargs: Any) -> None:
        """Arguments of uvicorn's own, and what this connection is."""
        super().__init__(*args, **kwargs)
        self.place, self._states, self._link = place, states, link
        self._begun = self._answered = 0
        self._given_back = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It has been taken over."""
        self._states[self.place] = State.IDLE
        super().connection_made(transport)

    def on_asked(self) -> None:
        """A request has begun to come."""
        if self._begun == self._answered:
            self._states[self.place] = State.ASKED
        self._begun += 1

    def on_answer(self) -> None:
        """The first bytes of an answer are about to be written."""
        self._states[self.place] = State.ANSWERING

    def on_response_complete(self) -> None:
        """An answer has been written: it has left already, unless the client reads slowly."""
        self._answered += 1
        super().on_response_complete()
        if not self.settle():
            self._link.settle_soon(self)  # what was written leaves when this turn of the event loop ends

    def settle(self) -> bool:
        """Say what goes on between answers; whether all that was written has left."""
        if self._begun > self._answered:  # what was asked meanwhile
            self._states[self.place] = State.ASKED
        elif self.transport.is_closing() or self.transport.get_write_buffer_size():
            return False
        else:
            self._states[self.place] = State.IDLE
        return True

    def give_back(self) -> None:
        """Let another worker have it, if nothing is going on."""
        if self._states[self.place] == State.IDLE:
            self._given_back = True
            self._states[self.place] = State.HANDED
            self.transport.abort()  # the supervisor holds it open

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, or not ours any more."""
        super().connection_lost(exc)
        self._link.over(self.place, given_back=self._given_back)


class Link:
    """Where connections come from, and are reported to when they are over."""

    def __init__(self, end: socket.socket, server: Server, states: States) -> None:
        """Serve by `server` what comes through `end`."""
        end.setblocking(False)
        self._end, self._server, self._states = end, server, states
        self._loop = asyncio.get_running_loop()
        self._unsaid: deque[bytes] = deque()
        self._unsettled: list[WorkerProtocol] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop.add_reader(end, self._take)

    def over(self, place: int, *, given_back: bool) -> None:
        """Report that a connection is closed, or whole and not ours any more."""
        self._unsaid.append(PLACE.pack(place | (GIVEN_BACK if given_back else 0)))
        if len(self._unsaid) == 1:
            self._say()

    def settle_soon(self, connection: WorkerProtocol) -> None:
        """Let a connection settle in the next turn of the event loop, in one go with others that wrote in this one."""
        if not self._unsettled:
            self._loop.call_soon(self._settle)
        self._unsettled.append(connection)

    def _settle(self) -> None:
        connections, self._unsettled = self._unsettled, []
        for connection in connections:
            connection.settle()

    def give_back(self) -> None:
        """Let other workers have every connection on which nothing is going on."""
        for protocol in list(self._server.server_state.connections):
            if isinstance(protocol, WorkerProtocol):
                protocol.give_back()

    def _say(self) -> None:
        self._loop.remove_writer(self._end)
        while self._unsaid:
            try:
                self._end.send(self._unsaid[0])
            except BlockingIOError:
                self._loop.add_writer(self._end, self._say)
                return
            except OSError:  # the supervisor has ended
                return
            self._unsaid.popleft()

    def _take(self) -> None:
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._end, PLACE.size, 1)
            except (BlockingIOError, ConnectionError):
                return
            if not message:  # the supervisor has ended
                self._loop.remove_reader(self._end)
                return
            (place,) = PLACE.unpack(message)
            connection = socket.socket(fileno=descriptors[0])
            task = self._loop.create_task(self._serve(connection, place))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, place: int) -> None:
        server = self._server

        def protocol() -> WorkerProtocol:
            return WorkerProtocol(server.config, server.server_state, server.lifespan.state, self._loop,
                                  place=place, states=self._states, link=self)  # fmt: skip

        try:
            await self._loop.connect_accepted_socket(protocol, connection)
        except OSError:  # the client has left
            connection.close()
            self.over(place, given_back=False)


async def work(control: socket.socket, link: socket.socket, states: States) -> None:
    """Serve until the supervisor says stop, or ends."""
    make_room()
    channel = await Channel.opened(control)
    hello = await channel.first()
    if hello is None:  # the service stops already
        return
    settings = Settings(**hello["settings"])
    logs.set_up(settings, f"worker {hello['number']}")
    cores = Cores(hello["cores"], states.computing[: settings.workers], hello["number"])
    server: Server

    def on_fatal(error: AttentionError) -> None:
        channel.tell("fatal", str(error))
        server.should_exit = True

    def remote(metrics: Metrics) -> Remote:
        return Remote(bytes.fromhex(hello["engine"]), settings, metrics)

    changes = [tuple(change) for change in hello["changes"]]
    app = create_app(settings, on_fatal, RemotePeers(channel, cores), changes, remote if hello["engine"] else None)
    server = Server(configured(settings, app))
    loop = asyncio.get_running_loop()
    serving = loop.create_task(server.serve(sockets=[]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    connections = Link(link, server, states)

    app.runtime.complete = hello["complete"]

    async def complete(_: None) -> None:
        app.runtime.complete = True

    async def drain(_: None) -> None:
        app.runtime.begin_drain()

    async def give_back(_: None) -> None:
        connections.give_back()

    async def stop(_: None) -> None:
        server.should_exit = True

    async def at_once(_: None) -> None:
        server.force_exit = server.should_exit = True

    for handler in (complete, drain, give_back, stop, at_once):
        channel.on(handler.__name__, handler)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, channel.tell, "leave")
    rpc = await start_rpc(settings, app, hello["grpc_port"], shared=True)
    talking = loop.create_task(channel.run())
    talking.add_done_callback(lambda _: _orphaned(server, app))
    speaking = loop.create_task(speak(channel, app.runtime))
    await serving
    if rpc is not None:
        await rpc.stop()
    speaking.cancel()
    channel.close()


def _orphaned(server: Server, app: Service) -> None:
    """The supervisor has ended: answer what was accepted, and end too."""
    app.runtime.begin_drain()
    server.should_exit = True


def main() -> None:
    """Run the worker whose descriptors are the command's arguments: control, connections, states."""
    control, link, states = map(int, sys.argv[1:])
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work(socket.socket(fileno=control), socket.socket(fileno=link), States(states)))


if __name__ == "__main__":
    main()
