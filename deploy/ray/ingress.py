"""An ingress replica: the service's own ASGI application, whose engine is whichever engine replica is free."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import grpc
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from deploy.ray.calls import Calls
from deploy.ray.exporting import Exporter
from deploy.ray.replica import assigned
from deploy.ray.replica_settings import settings_of
from models.errors import AttentionError
from service import logs
from service.app import create_app
from service.catalog import Loaded
from service.errors import EngineLost, InternalError, NotOffered, QueueFull
from service.exchange import Application, Message, Receive, Scope, Send
from service.loader import Change
from service.metrics import Metrics
from service.peers import Alone
from service.remote.engine import RemoteEngine, RemoteQueue
from service.remote.frames import Frame
from service.remote.wire import catalog_of
from service.settings import Settings

log = logging.getLogger(__name__)

LOSSES = (RayError, RayServeException, grpc.RpcError)
"""What a call raises where the replica, its node, or what it had computed is gone."""

LOOK_EVERY_S = 1.0
"""How often it is asked whether there are engines, and what they serve."""

SILENT_S = 10.0
"""If no engine says anything for so long, although asked, there is none: not ready, and requests get 503 at once."""


def named(error: Exception) -> AttentionError:
    """What an exception of a call is to the client."""
    if isinstance(error, BackPressureError):
        return QueueFull("all engine replicas are busy and as many requests wait for one as may")
    lost = isinstance(error, LOSSES)
    if isinstance(error, RayTaskError):  # it was raised there: by our code, or because what it needed is gone
        lost = isinstance(error.cause, RayError)
    if lost:
        log.warning("a request was lost: %s", error)
        return EngineLost("the engine replica that had the request has ended; others take its place", retry_after_s=1)
    log.error("a request could not be handed over", exc_info=error)
    return InternalError("something unforeseen went wrong on our side; it has been logged")


class Replica(Alone):
    """The service's workers are one here: what concerns other replicas is Ray's, or left out."""

    async def gather(self, question: str, argument: Any = None) -> list[Any]:
        """See `Peers.gather`.

        Raises:
            NotOffered: for metrics: this replica's are not the service's.
        """
        if question == "metrics":
            raise NotOffered(
                "behind Ray this would be one replica of many; the metrics of all are where Ray's are, on the port that"
                " `ray start --metrics-export-port` names, as ray_attention_…"
            )
        return await super().gather(question, argument)


class Engines:
    """The way to the engine replicas; see `runtime.Compute`."""

    def __init__(self, handle: DeploymentHandle, settings: Settings, metrics: Metrics) -> None:
        """Nothing is called yet."""
        self._handle, self._settings = handle, settings
        self._queue = RemoteQueue(metrics)
        self._calls = Calls(handle.infer.remote, self._queue.take, named)
        self._known: dict[str, Loaded] = {}
        self._served = ""
        self._watching: asyncio.Task[None] | None = None

    async def engine(self) -> RemoteEngine:
        """The engine, once a replica has loaded."""
        while True:
            try:
                self._served = await self._handle.state.remote()
                said = await self._handle.describe.remote()
                break
            except LOSSES as error:
                log.warning("no engine replica yet: %s", error)
                await asyncio.sleep(LOOK_EVERY_S)
        catalog, limits = catalog_of(Frame(*said), self._known)
        engine = RemoteEngine(self._settings, catalog, limits, self._queue)
        self._queue.connected(self._calls)
        self._watching = asyncio.get_running_loop().create_task(self._watch(engine))
        return engine

    async def change(self, verb: str, wanted: str) -> Change:
        """See `Compute.change`.

        Raises:
            NotOffered: always: replicas that start later would not know of it.
        """
        raise NotOffered("under Ray, what is served changes with `serve deploy`: put the model's folder in place first")

    async def follow(self) -> None:
        """See `Compute.follow`: nobody makes changes."""

    def close(self) -> None:
        """See `Compute.close`."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, engine: RemoteEngine) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                async with asyncio.timeout(SILENT_S):
                    served = await self._handle.state.remote()
                    if served != self._served:
                        said = await self._handle.describe.remote()
                        engine.learn(*catalog_of(Frame(*said), self._known))
                        self._served = served
                self._calls.heard = time.monotonic()
                engine.gone = False
            except (TimeoutError, *LOSSES) as error:
                if not engine.gone and time.monotonic() - self._calls.heard > SILENT_S:
                    log.error("no engine replica answers: %r", error)
                    engine.gone = True


def picklable(app: Application) -> Application:
    """`app`, which sends no memoryviews: Serve pickles what is sent."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_bytes(message: Message) -> None:
            if isinstance(message.get("body"), memoryview):
                message = {**message, "body": bytes(message["body"])}
            await send(message)

        await app(scope, receive, send_bytes)

    return application


class Ingress:
    """The deployment, for `serve.ingress()`."""

    def __init__(self, engines: DeploymentHandle, overrides: Mapping[str, object]) -> None:
        """Answer requests by `engines`, with settings as of `settings_of`."""
        self._engines, self._settings = engines, settings_of(overrides, assigned())
        self._exporter: Exporter | None = None
        logs.set_up(self._settings)

    def __serve_build_asgi_app__(self) -> Application:
        """Serve calls this once, on the event loop that requests are served on."""
        app = create_app(
            self._settings,
            peers=Replica(self._settings.rate_limit),
            compute=lambda metrics: Engines(self._engines, self._settings, metrics),
        )
        self._exporter = Exporter(app.runtime.metrics.registry)
        self._exporter.start()
        return picklable(app)

    async def __del__(self) -> None:
        """Serve calls this, after the application's own end."""
        if self._exporter is not None:
            self._exporter.stop()
