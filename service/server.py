"""uvicorn, taught to drain, and to exit with 0."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn

from models.errors import AttentionError
from service.app import Service, create_app
from service.descriptors import make_room
from service.http import Protocol
from service.listen import bind, url_of
from service.runtime import spare_collector
from service.settings import Settings

if TYPE_CHECKING:
    from service.rpc.server import RpcServer

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Leaves signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the signals are taken already."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn's."""
        await super().shutdown(sockets)
        if self.force_exit:  # the lifespan will be cancelled, and all that could be said of it is a traceback of that
            logging.getLogger("uvicorn.error").disabled = True


def serve(settings: Settings, on_ready: Callable[[str, str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain: refuse new work, answer what was accepted, close.

    A second signal stops at once.

    Args:
        settings: how to serve.
        on_ready: called once, when it is ready, with its URL and its address for gRPC, empty where that is not served.

    Raises:
        ConfigurationError: if it cannot start as configured.
    """
    make_room()
    listener = bind(settings)
    url = url_of(listener, settings)
    fatal: list[AttentionError] = []
    server: Server

    def on_fatal(error: AttentionError) -> None:
        fatal.append(error)
        server.should_exit = True

    app = create_app(settings, on_fatal)
    server = Server(configured(settings, app))
    runner = asyncio.Runner(loop_factory=loop_factory())
    with listener, runner:
        runner.run(_run(server, app, listener, settings, lambda rpc: on_ready(url, rpc)))
    if fatal:
        raise fatal[0]


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop that uvicorn would choose."""
    return uvicorn.Config("", log_config=None).get_loop_factory()


def configured(settings: Settings, app: Any) -> uvicorn.Config:
    """How uvicorn serves an application."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=int(settings.shutdown_timeout_s),
    )


async def _run(
    server: Server, app: Service, listener: socket.socket, settings: Settings, on_ready: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    rpc = await start_rpc(settings, app, settings.grpc_port)
    stopping: asyncio.Task[None] | None = None

    def stop() -> None:
        nonlocal stopping
        if stopping is not None:
            server.force_exit = server.should_exit = True
            return
        log.info("stopping: answering what was accepted, refusing new work; signal again to stop at once")
        stopping = loop.create_task(_drain(server, app, settings))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    announcing = loop.create_task(_announce(app, lambda: on_ready(rpc.address if rpc else "")))
    await server.serve(sockets=[listener])
    announcing.cancel()
    if rpc is not None:
        await rpc.stop()
    if stopping is not None:
        stopping.cancel()
    log.info("stopped")


async def start_rpc(settings: Settings, app: Service, port: int | None, *, shared: bool = False) -> "RpcServer | None":
    """Serve gRPC too, if there is a port for it; `shared` with other processes of this service."""
    if port is None:
        return None
    from service.rpc.server import RpcServer  # noqa: PLC0415 - only where it is served

    rpc = RpcServer(settings, app.runtime, port, shared=shared)
    await rpc.start()
    return rpc


async def _announce(app: Service, on_ready: Callable[[], None]) -> None:
    while not app.runtime.started:
        await asyncio.sleep(0.01)
    await app.runtime.loaded()
    spare_collector()
    if not app.runtime.obstacle():
        on_ready()


async def _drain(server: Server, app: Service, settings: Settings) -> None:
    """Go on listening for a while and say no, so that clients and load balancers notice, then close."""
    app.runtime.begin_drain()
    if server.server_state.connections or settings.grpc_port is not None:
        await asyncio.sleep(settings.drain_grace_s)
    server.should_exit = True
