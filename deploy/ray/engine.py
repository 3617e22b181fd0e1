"""An engine replica: has the models and the queue, and computes what ingress replicas have read and checked."""

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence

import orjson

from deploy.ray.calls import Said
from deploy.ray.exporting import Exporter
from deploy.ray.replica import assigned
from deploy.ray.replica_settings import settings_of
from models.errors import AttentionError
from models.types import Array
from service import logs
from service.engine import LocalEngine
from service.errors import ConfigurationError, InternalError
from service.remote.engine import submitted
from service.remote.frames import Frame
from service.remote.wire import Head, answer_frame, catalog_frame, error_head, request_of
from service.runtime import Runtime

log = logging.getLogger(__name__)


class Engine:
    """The deployment. Its methods run on one event loop, as all of an engine does."""

    async def __init__(self, overrides: Mapping[str, object]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Load the models; a replica that raises here never gets a request, and `serve status` says why.

        Raises:
            ConfigurationError: if they cannot be loaded.
            ParityError, AttentionError: as `Runtime` finds them.
        """
        settings = settings_of(overrides, assigned()).model_copy(update={"tracing": False})  # the ingress makes spans
        logs.set_up(settings)
        self._runtime = Runtime(settings)
        self._runtime.metrics.workers.set(0)  # it is none: callers are answered by the ingress
        self._runtime.start()
        engine = await self._runtime.loaded()
        if engine is None or self._runtime.obstacle():
            raise ConfigurationError(self._runtime.obstacle())
        self._engine: LocalEngine = engine
        self._catalog = self._told()
        self._state = hashlib.sha256(orjson.dumps(self._catalog[0])).hexdigest()
        self._exporter = Exporter(self._runtime.metrics.registry)
        self._exporter.start()

    async def check_health(self) -> None:
        """Asked by Serve, which replaces a replica that raises.

        Raises:
            RuntimeError: if a compute slot has died, or a batch hangs.
        """
        if obstacle := self._runtime.own_obstacle():
            raise RuntimeError(obstacle)

    async def state(self) -> str:
        """What tells what is served here from what is served elsewhere."""
        return self._state

    async def describe(self) -> Said:
        """What is served, as `catalog_frame` has it."""
        return self._catalog

    async def infer(self, head: Head, arrays: Sequence[Array]) -> Said:
        """Compute a request.

        Args:
            head: of `request_frame`, with `left`, seconds until its deadline.
            arrays: of the same.

        Returns:
            What `answer_frame` makes of the answer, with times since the request came, or the `error_head` of why there
            is none.
        """
        came = time.monotonic()
        try:
            asked = request_of(Frame({**head, "deadline": came + head["left"]}, list(arrays)))
            submission = submitted(self._engine, asked)
        except AttentionError as error:
            return error_head(error), []
        ticket = submission.ticket
        try:
            verdicts = await ticket.future
        except AttentionError as error:
            return error_head(error), []
        except Exception:
            log.exception("a request could not be computed")
            return error_head(InternalError("something unforeseen went wrong on our side; it has been logged")), []
        finally:  # also when Ray cancels this call, because nobody wants its answer
            self._engine.batcher.release(ticket)
        return answer_frame(verdicts, (ticket.started - came, ticket.finished - came, ticket.tokens, ticket.batch))

    def _told(self) -> Said:
        catalog = self._engine.catalog
        served = [model for versions in catalog.models.values() for model in versions.values()]
        # The same of all replicas that serve the same, so that statistics go on when another one describes it.
        serials = {id(model): f"{model.entry.spec.id} {model.digest}" for model in served}
        return catalog_frame(catalog, self._engine.limits, serials)

    async def __del__(self) -> None:
        """Serve calls this when what was accepted has been answered, or has had its time."""
        if hasattr(self, "_exporter"):
            self._exporter.stop()
            await self._runtime.stop()
