"""Changing what is served while it is served: layers loaded, loaded again and unloaded."""

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from models import repository
from models.errors import InvalidModel
from models.repository import BrokenEntry, Entry
from models.spec import NAME
from service.backends.base import Backend
from service.catalog import Catalog, Loaded, nearest, open_model, repository_folder, with_builtin
from service.errors import Conflict, NotFound, UnservableModel
from service.metrics import Metrics
from service.settings import MIB, Settings

log = logging.getLogger(__name__)

WANTED = re.compile(rf"({NAME.pattern})(?:@({NAME.pattern}))?")
"""`name`, for all its versions, or `name@version`."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is served otherwise than before.

    Attributes:
        loaded: layers that are new or were loaded again.
        unloaded: `name@version` of layers that are gone.
    """

    loaded: list[Loaded]
    unloaded: list[str]


class Loader:
    """Changes what a catalog serves, one change at a time.

    Files are read, and layers loaded and compared, in a thread, while what was served still is. Then the catalog
    changes on the event loop in one step. Requests that are queued or computed keep the runner they were given.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Load from the repository of `settings`."""
        self._settings, self._metrics = settings, metrics
        self._lock = asyncio.Lock()

    async def load(self, catalog: Catalog, wanted: str) -> Change:
        """Serve `name` or `name@version` as its folder is now, or as it is built in.

        Versions whose folder is gone are unloaded. Either all of that is done, or nothing.

        Raises:
            NotFound: if there is no such folder and nothing built in, and nothing of that name is served.
            UnservableModel: if an entry is broken, or the backends disagree about it.
            Conflict: if the folder of the default model is gone.
        """
        name, version = _parsed(wanted)
        async with self._lock:
            loaded, broken = await asyncio.to_thread(self._prepare, catalog.backends, name, version)
            places = [entry for entry in broken if entry.origin != repository.BUILT_IN]
            catalog.broken = [entry for entry in catalog.broken if not _is_of(entry, name, version)] + places
            if broken:
                raise UnservableModel("; ".join(f"{entry.origin}: {entry.reason}" for entry in broken))
            served = catalog.models.get(name, {})
            if not loaded and not (version in served if version else served):
                raise await self._unknown(catalog, name, version)
            others = {key: model for key, model in served.items() if version and key != version}
            return self._serve(catalog, name, others | {model.entry.spec.version: model for model in loaded})

    async def unload(self, catalog: Catalog, wanted: str) -> Change:
        """Do not serve `name`, or `name@version`, any more, until it is loaded again or the service is started again.

        Raises:
            NotFound: if it is not served.
            Conflict: if requests that name no model would be left without one.
        """
        name, version = _parsed(wanted)
        async with self._lock:
            catalog.find(wanted)
            rest = {key: model for key, model in catalog.models[name].items() if version and key != version}
            return self._serve(catalog, name, rest)

    def _prepare(
        self, backends: Mapping[str, Backend], name: str, version: str
    ) -> tuple[list[Loaded], list[BrokenEntry]]:
        """Everything that takes time: read, load, compare."""
        own: list[Entry] = []
        broken: list[BrokenEntry] = []
        folder = repository_folder(self._settings)
        if folder is not None:
            try:
                own, broken = repository.read(folder, name, version, self._settings.max_model_mib * MIB)
            except InvalidModel as error:
                raise UnservableModel(f"ATTENTION_MODEL_REPOSITORY: {error}") from error
        loaded = []
        for entry in with_builtin(own):
            if entry.spec.name == name and version in ("", entry.spec.version):
                try:
                    loaded.append(open_model(backends, entry))
                except Exception as error:  # noqa: BLE001 - whatever a runtime raises, it cannot serve this
                    broken.append(BrokenEntry(entry.origin, str(error)))
        return loaded, broken

    def _serve(self, catalog: Catalog, name: str, versions: Mapping[str, Loaded]) -> Change:
        """From now on, serve these versions of `name` and no others."""
        default, _, fixed = self._settings.default_model.partition("@")
        if name == default and not (fixed in versions if fixed else versions):
            raise Conflict(
                f"{self._settings.default_model} is the model of requests that name none, and the service cannot be "
                "without it; ATTENTION_DEFAULT_MODEL names another at the next start"
            )
        before = catalog.models.get(name, {})
        gone = {version: model for version, model in before.items() if version not in versions}
        catalog.replace(name, versions)
        now = catalog.models.get(name, {})
        loaded = [model for version, model in now.items() if before.get(version) is not model]
        for version, model in gone.items():
            log.info("unloaded %s@%s", name, version)
            for pair in model.parity:
                self._metrics.parity.remove(name, version, pair)
            self._metrics.forget_shadow(name, version)
        for model in loaded:
            log.info("loaded %s: %s", model.entry.spec.id, model.entry.origin)
            self._metrics.set_parity(name, model.entry.spec.version, model.parity)
            self._metrics.forget_shadow(name, model.entry.spec.version)
        return Change(loaded, [f"{name}@{version}" for version in gone])

    async def _unknown(self, catalog: Catalog, name: str, version: str) -> NotFound:
        """The error for what is neither in the repository nor built in."""
        known = {*catalog.models, *await asyncio.to_thread(self.names)}
        if version and name in known:
            return NotFound(f"{name!r} has no version {version!r}, neither in the model repository nor built in")
        return NotFound(f"there is no model {name!r}; {nearest(name, known)}")

    def names(self) -> list[str]:
        """Every name that could be loaded: in the repository, served or not, and built in."""
        folder = repository_folder(self._settings)
        own = [] if folder is None else repository.names(folder)
        return own + [entry.spec.name for entry in repository.builtin()]


def _parsed(wanted: str) -> tuple[str, str]:
    """Name and version, the latter empty for all versions."""
    match = WANTED.fullmatch(wanted)
    if match is None:
        raise NotFound(f"there is no model {wanted!r}; names and versions match {NAME.pattern}")
    return match[1], match[2] or ""


def _is_of(entry: BrokenEntry, name: str, version: str) -> bool:
    """Whether a broken folder is one of those that a load of this name and version reads."""
    first, _, second = entry.origin.partition("/")
    return first == name and (not version or second in ("", version))
