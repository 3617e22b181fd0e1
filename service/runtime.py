"""The parts of one running service and their life: loading, ready, draining, stopped."""

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from models.errors import AttentionError
from service import tracing
from service.access import Access
from service.body import Intake
from service.catalog import Catalog, load_catalog
from service.engine import LocalEngine
from service.errors import ConfigurationError, Draining, NotReady, UnservableModel
from service.exchange import Exchange
from service.exposition import Family, merged, snapshot
from service.gpu import watch_gpus
from service.loader import Change, Loader
from service.metrics import Metrics
from service.peers import Alone, Peers
from service.records import Records
from service.settings import MIB, Settings
from service.shadow import Shadow
from service.statistics import Statistics

log = logging.getLogger(__name__)


def spare_collector() -> None:
    """Keep what has been loaded out of garbage collections; for a process that does nothing but serve.

    A full collection would look at hundreds of thousands of objects, and nobody is answered meanwhile.
    """
    gc.freeze()


class Compute(Protocol):
    """Where requests are computed, if that is another process."""

    async def engine(self) -> LocalEngine:
        """The engine, once it has loaded. Asked for once."""

    async def change(self, verb: str, wanted: str) -> Change:
        """Load or unload there; see `Loader`."""

    async def follow(self) -> None:
        """Know of a change that somebody else has made there."""

    def close(self) -> None:
        """Look for it no more."""


SHADOW_PART = 8
"""A sequence is computed again if it takes at most this part of the bytes that may be in flight; it is beside them."""


class Runtime:
    """What routes share. Made once per application.

    Attributes:
        records: of the requests.
        complete: whether all workers have been started; a service is not ready before that.
        draining: whether the service is shutting down.
    """

    def __init__(
        self,
        settings: Settings,
        on_fatal: Callable[[AttentionError], None] | None = None,
        peers: Peers | None = None,
        changes: Sequence[tuple[str, str]] = (),
        compute: Callable[[Metrics], Compute] | None = None,
    ) -> None:
        """Nothing is loaded yet.

        Args:
            settings: how to serve.
            on_fatal: called if the service turns out not to be able to start.
            peers: the workers of the service of which this is one; None if it is the only one.
            changes: `load` or `unload`, and of what, to be repeated once the models are loaded.
            compute: makes what leads to the engine; None for an engine in this process.
        """
        self.settings = settings
        self.metrics = Metrics()
        self._tracing = tracing.opened(settings)
        self.records = Records(self.metrics, self._tracing, access_log=settings.access_log)
        self.peers = Alone(settings.rate_limit) if peers is None else peers
        self.intake = Intake(settings, self.metrics)
        self.access = Access(settings, self.metrics, self.peers)
        self.loader = Loader(settings, self.metrics)
        self._on_fatal, self._changes = on_fatal, changes
        self._compute = None if compute is None else compute(self.metrics)
        self._engine: LocalEngine | None = None
        self._loading: asyncio.Task[None] | None = None
        self._fatal: AttentionError | None = None
        self.draining = False
        self.complete = True
        self.metrics.watch(self.metrics.ready, lambda: float(not self.obstacle()))
        self.metrics.watch(self.metrics.workers_ready, lambda: float(not self.own_obstacle()))
        self.metrics.workers.set(max(1, settings.workers))
        self.peers.answer("metrics", self._snapshot)
        self.peers.answer("statistics", self._statistics)
        self.peers.answer("load", partial(self._follow, "load"))
        self.peers.answer("unload", partial(self._follow, "unload"))
        self.peers.answer("look", self._look)

    @property
    def engine(self) -> LocalEngine:
        """The engine.

        Raises:
            NotReady: while it loads, and for good if it could not be loaded or its backends disagree.
        """
        if self._engine is None or not self._engine.usable:
            raise NotReady(self.obstacle(), retry_after_s=5)
        return self._engine

    def changeable(self, exchange: Exchange) -> Catalog:
        """The catalog, for a caller who may change it.

        Raises:
            Unauthorized, Forbidden: if the caller may not.
            Draining, NotReady: if nothing can be changed now.
        """
        self.access.check_admin(exchange)
        if self.draining:
            raise Draining("the service is shutting down")
        return self.engine.catalog

    async def load(self, catalog: Catalog, wanted: str) -> Change:
        """Serve a model as its folder is now, in every worker; see `Loader.load`."""
        return await self._change("load", catalog, wanted)

    async def unload(self, catalog: Catalog, wanted: str) -> Change:
        """Do not serve a model any more, in any worker; see `Loader.unload`."""
        return await self._change("unload", catalog, wanted)

    async def _change(self, verb: str, catalog: Catalog, wanted: str) -> Change:
        async with self.peers.turn():
            try:
                change = await self.changed(verb, catalog, wanted)
            except UnservableModel:
                await self.peers.tell("look", wanted)
                raise
            await self.peers.tell(verb, wanted)
            return change

    async def changed(self, verb: str, catalog: Catalog, wanted: str) -> Change:
        """Load or unload where requests are computed; other workers are not told."""
        if self._compute is not None:
            return await self._compute.change(verb, wanted)
        return await (self.loader.load if verb == "load" else self.loader.unload)(catalog, wanted)

    async def _follow(self, verb: str, wanted: str) -> None:
        """Another worker has made a change."""
        await self.loaded()
        if self._compute is not None:
            await self._compute.follow()
        else:
            await self.changed(verb, self.engine.catalog, wanted)

    async def _look(self, wanted: str) -> None:
        """Another worker could not load something: list it as broken here too."""
        await self.loaded()
        if self._compute is not None:
            await self._compute.follow()
            return
        with suppress(UnservableModel):
            await self.loader.load(self.engine.catalog, wanted)
            raise RuntimeError(f"{wanted} could be loaded here, but not by another worker")

    async def families(self) -> list[Family]:
        """The metrics of all workers, put together."""
        return merged(await self.peers.gather("metrics"))

    async def _snapshot(self, _: None) -> list[Family]:
        return snapshot(self.metrics.registry)

    async def statistics(self, name: str) -> Statistics:
        """What became of the requests of a model, in all workers; see `LocalEngine.statistics`."""
        return Statistics.total(await self.peers.gather("statistics", name))

    async def _statistics(self, wanted: str) -> dict[str, Any]:
        return asdict(self.engine.statistics(wanted))

    def obstacle(self) -> str:
        """Why the service is not ready; empty if it is."""
        return self.own_obstacle() or ("" if self.complete else "other workers are still being started")

    def own_obstacle(self) -> str:
        """The same of this worker alone."""
        if self.draining:
            return "the service is shutting down"
        if self._fatal is not None:
            return f"the service could not start: {self._fatal}"
        if self._engine is None:
            return "models are still being loaded and checked"
        return self._engine.obstacle()

    def start(self) -> None:
        """Begin to load, in the background: liveness and metrics are served meanwhile."""
        self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._engine = engine = await (self._opened(loop) if self._compute is None else self._compute.engine())
        except Exception as error:
            self._fatal = error if isinstance(error, AttentionError) else ConfigurationError(f"start failed: {error}")
            if not isinstance(error, AttentionError):
                log.exception("the service could not start")
            if self._on_fatal is not None:
                self._on_fatal(self._fatal)
            return
        if obstacle := self.own_obstacle():
            log.error("not ready: %s", obstacle)
        else:
            log.info("ready: %s on %s", ", ".join(sorted(engine.catalog.models)), engine.catalog.device)

    async def _opened(self, loop: asyncio.AbstractEventLoop) -> LocalEngine:
        """An engine in this process."""
        catalog = await asyncio.to_thread(load_catalog, self.settings, self.metrics)
        for verb, wanted in self._changes:
            await self._repeat(verb, catalog, wanted)
        watch_gpus(self.metrics)
        shadow = self._shadow(catalog, loop) if self.settings.shadow_share else None
        return LocalEngine(self.settings, catalog, self.metrics, loop, shadow, self.peers.cores)

    async def _repeat(self, verb: str, catalog: Catalog, wanted: str) -> None:
        try:
            await self.changed(verb, catalog, wanted)
        except AttentionError as error:  # its folder is gone by now, or broken: what is served is listed
            log.warning("%s %s: %s", verb, wanted, error)

    def _shadow(self, catalog: Catalog, loop: asyncio.AbstractEventLoop) -> Shadow:
        most_bytes = self.settings.max_inflight_mib * MIB // SHADOW_PART
        return Shadow(catalog, self.metrics, loop, self.settings.shadow_share, most_bytes)

    @property
    def started(self) -> bool:
        """Whether loading has begun."""
        return self._loading is not None

    async def loaded(self) -> LocalEngine | None:
        """Wait until loading has ended, well or badly; the engine, if there is one."""
        if self._loading is not None:
            await asyncio.shield(self._loading)
        return self._engine

    def begin_drain(self) -> None:
        """From now on the service says that it is not ready, and refuses new work."""
        self.draining = True
        if self._engine is not None:
            self._engine.batcher.refuse()
            if self._engine.shadow is not None:
                self._engine.shadow.stop()

    async def stop(self) -> None:
        """Answer what was accepted, `shutdown_timeout_s` at most, then close."""
        await self._stop()
        self.intake.lane.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    async def _stop(self) -> None:
        self.begin_drain()
        if self._engine is None:
            self._part()
            return
        try:
            async with asyncio.timeout(self.settings.shutdown_timeout_s):
                await self._engine.batcher.drain()
                if self._engine.shadow is not None:
                    await self._engine.shadow.drain()
        except TimeoutError:
            log.error("stopped with work unfinished after %g s", self.settings.shutdown_timeout_s)
        self._part()
        self._engine.batcher.close()

    def _part(self) -> None:
        if self._compute is not None:
            self._compute.close()
