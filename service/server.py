"""uvicorn, taught to drain, to give up on clients that never finish their headers, and to exit with 0."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from models.errors import AttentionError
from service.app import Service, create_app
from service.errors import ConfigurationError
from service.settings import Settings

if TYPE_CHECKING:
    from service.rpc.server import RpcServer

log = logging.getLogger(__name__)

HEADER_TIMEOUT_S = 20.0
"""Longest time a client may take to send the headers of a request it has begun, or its first one."""

KEEP_ALIVE_S = 75
"""Idle connections are kept this long: longer than the pools of usual clients and proxies, which close at 60 s."""


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's own, with a deadline for headers."""

    _headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: its first request must come."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left."""
        self._disarm()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        if self._headers_timer is None:
            self._arm()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Headers are complete; the body has a deadline of its own."""
        self._disarm()
        super().on_headers_complete()

    def _arm(self) -> None:
        self._headers_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _disarm(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None


class _Server(uvicorn.Server):
    """Leaves signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the signals are taken already."""
        yield


def bind(settings: Settings) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigurationError: if the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another with --port or PORT=…"
        ) from error
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def serve(settings: Settings, on_ready: Callable[[str, str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain: refuse new work, answer what was accepted, close.

    A second signal stops at once.

    Args:
        settings: how to serve.
        on_ready: called once, when it is ready, with its URL and its address for gRPC, empty where that is not served.

    Raises:
        ConfigurationError: if it cannot start as configured.
    """
    listener = bind(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    fatal: list[AttentionError] = []
    server: _Server

    def on_fatal(error: AttentionError) -> None:
        fatal.append(error)
        server.should_exit = True

    app = create_app(settings, on_fatal)
    server = _Server(_config(settings, app))
    runner = asyncio.Runner(loop_factory=server.config.get_loop_factory())
    with listener, runner:
        runner.run(_run(server, app, listener, settings, lambda rpc: on_ready(url, rpc)))
    if fatal:
        raise fatal[0]


def _config(settings: Settings, app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=True,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(settings.shutdown_timeout_s),
    )


async def _run(
    server: _Server, app: Service, listener: socket.socket, settings: Settings, on_ready: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    rpc = await _start_rpc(settings, app)
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


async def _start_rpc(settings: Settings, app: Service) -> "RpcServer | None":
    if settings.grpc_port is None:
        return None
    from service.rpc.server import RpcServer  # noqa: PLC0415 - only where it is served

    rpc = RpcServer(settings, app.runtime, settings.grpc_port)
    await rpc.start()
    return rpc


async def _announce(app: Service, on_ready: Callable[[], None]) -> None:
    while not app.runtime.started:
        await asyncio.sleep(0.01)
    await app.runtime.loaded()
    if not app.runtime.obstacle():
        on_ready()


async def _drain(server: _Server, app: Service, settings: Settings) -> None:
    """Go on listening for a while and say no, so that clients and load balancers notice, then close."""
    app.runtime.begin_drain()
    if server.server_state.connections or settings.grpc_port is not None:
        await asyncio.sleep(settings.drain_grace_s)
    server.should_exit = True
