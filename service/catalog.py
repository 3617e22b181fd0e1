"""The layers being served: each loaded on every backend and compared before anyone may ask for it."""

import difflib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from models import repository
from models.checkpoints import CHECKPOINTS
from models.errors import ArtifactError, FieldError, InvalidModel
from models.repository import BrokenEntry, EncoderEntry, Entry, ModelEntry
from models.tokenizer import Tokenizer
from models.types import Projections
from service import parity
from service.backends import BACKENDS, open_backend
from service.backends.base import Backend, BackendInfo, Runner
from service.devices import Device, choose_device
from service.errors import ConfigurationError, NotFound, NotInstalled
from service.metrics import Metrics
from service.settings import DEFAULT_REPOSITORY, MIB, Settings
from service.statistics import Statistics

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A layer on every backend.

    Attributes:
        entry: its spec and numbers.
        runners: by backend name.
        parity: largest relative difference by pair of backends, as measured at load.
        digest: SHA-256 of the numbers.
        statistics: of its requests; they begin anew when it is loaded again.
        remembered: what the engine has found of its requests; gone with it.
    """

    entry: ModelEntry
    runners: Mapping[str, Runner]
    parity: Mapping[str, float]
    digest: str
    statistics: Statistics = field(default_factory=Statistics)
    remembered: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """An encoder on every backend.

    Attributes:
        tokenizer: what makes token ids of a text.
        others: see `LoadedModel`.
    """

    entry: EncoderEntry
    tokenizer: Tokenizer
    runners: Mapping[str, Runner]
    parity: Mapping[str, float]
    digest: str
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def layers(self) -> int:
        """How many it has."""
        return self.entry.spec.num_layers


Loaded = LoadedModel | LoadedEncoder
"""Layers and encoders share one space of names."""


@dataclass(slots=True)
class Catalog:
    """Every layer and encoder by name and version.

    Attributes:
        device: what was chosen.
        backends: the opened runtimes, by name.
        models: by name, then by version, oldest first.
        projections: runners of requests that bring their own matrices, by backend name.
        broken: folders of the repository that cannot be served, and why.
        failures: layers whose backends disagree; while there is one, the service is not ready.
    """

    device: Device
    backends: dict[str, Backend]
    models: dict[str, dict[str, Loaded]] = field(default_factory=dict)
    projections: dict[str, Runner] = field(default_factory=dict)
    broken: list[BrokenEntry] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def layer(self, name: str) -> LoadedModel:
        """The layer called `name` (its newest version) or `name@version`.

        Raises:
            NotFound, NotInstalled: see `find`; also where it is an encoder.
        """
        found = named(name, self.models)
        if isinstance(found, LoadedModel):
            return found
        raise NotFound.at(
            "/model",
            f"{found.entry.spec.id} is an encoder, which takes text: POST it to /v1/text/attention. "
            "A single layer of a checkpoint is served once `attention import` has made a model of it",
        )

    def encoder(self, name: str) -> LoadedEncoder:
        """The encoder called `name` (its newest version) or `name@version`.

        Raises:
            NotFound, NotInstalled: see `find`; also where it is a layer.
        """
        found = self.find(name)
        if isinstance(found, LoadedEncoder):
            return found
        raise NotFound.at("/model", f"{found.entry.spec.id} takes embeddings, not text: POST them to /v1/attention")

    def find(self, name: str) -> Loaded:
        """What is called `name` (its newest version) or `name@version`.

        Raises:
            NotFound: naming what there is.
            NotInstalled: if it is one of `CHECKPOINTS`; the error says how to install it.
        """
        return named(name, self.models)

    def info(self, backend: str, name: str, version: str) -> BackendInfo:
        """What answers as `name` and `version` are computed with on a backend."""
        found, model = self.backends[backend].info, self.models.get(name, {}).get(version)
        return found if model is None else found.of(model.entry.spec.compute_dtype)

    def runners(self, name: str, version: str) -> Mapping[str, Runner]:
        """Those that answer as `name` and `version` now, by backend name; none where nothing does any more."""
        if not version:  # only the caller's own matrices have none
            return self.projections
        model = self.models.get(name, {}).get(version)
        return {} if model is None else model.runners

    def replace(self, name: str, versions: Mapping[str, Loaded]) -> None:
        """Serve these versions of `name` and no others; the change is one assignment, so that none is seen half."""
        found = {other: served for other, served in self.models.items() if other != name}
        if versions:
            found[name] = {version: versions[version] for version in sorted(versions, key=_natural)}
        self.models = dict(sorted(found.items()))


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not known."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"


def repository_folder(settings: Settings) -> Path | None:
    """The model repository, or None where that is the default one and nobody has made it."""
    folder = settings.model_repository
    return None if folder == DEFAULT_REPOSITORY and not folder.exists() else folder


def named(name: str, there: Mapping[str, Mapping[str, T]]) -> T:
    """Of entries or models by name and version, the one called `name` or `name@version`; see `Catalog.find`."""
    base, _, version = name.partition("@")
    versions = there.get(base)
    if versions is None and base in CHECKPOINTS:
        command = f"attention models get {base}"
        detail = f"{base} is not installed. Run `{command}`, then restart the service, or load the model into it"
        raise NotInstalled(detail, FieldError("/model", detail), retry_after_s=60)
    if versions is None:
        raise NotFound.at("/model", f"there is no model {base!r}; {nearest(base, there)}")
    if version and version not in versions:
        raise NotFound.at("/model", f"{base!r} has no version {version!r}; it has {', '.join(versions)}")
    return versions[version or [*versions][-1]]


def available(settings: Settings) -> tuple[list[Entry], list[BrokenEntry]]:
    """Every layer that would be served, built-in or from the repository, and what is broken there.

    Raises:
        ConfigurationError: if the repository is no folder.
    """
    folder = repository_folder(settings)
    if folder is None:
        return with_builtin([]), []
    try:
        own, broken = repository.scan(folder, settings.max_model_mib * MIB)
    except InvalidModel as error:
        raise ConfigurationError(f"ATTENTION_MODEL_REPOSITORY: {error}") from error
    return with_builtin(own), broken


def with_builtin(own: Sequence[Entry]) -> list[Entry]:
    """The layers of a repository, and those built-in ones that none of them replaces."""
    mine = {entry.spec.id for entry in own}
    return [entry for entry in repository.builtin() if entry.spec.id not in mine] + [*own]


def load_catalog(settings: Settings, metrics: Metrics) -> Catalog:
    """Open every backend, load every layer, compare. Takes seconds: the first start of a layer exports its graph.

    Raises:
        ConfigurationError: if the device does not work, the repository is no folder, or the default model is missing.
    """
    device = choose_device(settings.device)
    if device.note:
        log.info("computing on %s: %s", device, device.note)
    backends = {name: open_backend(name, device, settings) for name in BACKENDS}
    for backend in backends.values():
        info = backend.info
        metrics.backend_info.labels(info.name, info.device, info.provider, info.dtype).set(1)
    catalog = Catalog(device, backends)
    entries, catalog.broken = available(settings)
    entries.sort(key=lambda e: (e.spec.name, _natural(e.spec.version)))
    there: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        there.setdefault(entry.spec.name, {})[entry.spec.version] = entry
    _require_default(settings, there, catalog)  # before the seconds that loading takes
    for entry in entries:
        _load(catalog, entry, metrics)
    _load_projections(catalog, metrics)
    for broken in catalog.broken:
        log.warning("model repository: %s is not served: %s", broken.origin, broken.reason)
    _require_default(settings, catalog.models, catalog)
    return catalog


def _require_default(settings: Settings, there: Mapping[str, Mapping[str, object]], catalog: Catalog) -> None:
    """Of entries or models by name and version, the default one must be there."""
    try:
        named(settings.default_model, there)
    except NotFound as error:
        unserved = [*catalog.failures, *(f"{broken.origin}: {broken.reason}" for broken in catalog.broken)]
        why = f" (not served: {'; '.join(unserved)})" if unserved else ""
        raise ConfigurationError(f"ATTENTION_DEFAULT_MODEL={settings.default_model}: {error}{why}") from error


def _natural(version: str) -> list[tuple[int, str]]:
    """Sort key in which 10 follows 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", version) if part]


def open_model(backends: Mapping[str, Backend], entry: Entry) -> Loaded:
    """Load a layer or an encoder on every backend, and compare them.

    Raises:
        InvalidModel, ArtifactError: if a backend cannot serve it.
        ParityError: if backends disagree.
    """
    spec = entry.spec
    runners: dict[str, Runner]
    dtypes = {name: backend.info.of(spec.compute_dtype).dtype for name, backend in backends.items()}
    if isinstance(entry, EncoderEntry):
        runners = {name: backend.encoder(entry) for name, backend in backends.items()}
        differences = parity.check(parity.Stack(entry.spec), runners, dtypes)
    else:
        layer = parity.Layer(spec.embed_dim, spec.num_heads, entry.spec.effective_scale, entry.weights.tensor_names)
        runners = {name: backend.layer(entry) for name, backend in backends.items()}
        differences = parity.check(layer, runners, dtypes)
    for runner in runners.values():
        runner.warm()
    digest = entry.weights.digest()
    if isinstance(entry, EncoderEntry):
        tokenizer = Tokenizer(entry.tokenizer, entry.spec.vocab_size)
        return LoadedEncoder(entry, tokenizer, runners, differences, digest)
    return LoadedModel(entry, runners, differences, digest)


def _load(catalog: Catalog, entry: Entry, metrics: Metrics) -> None:
    spec = entry.spec
    try:
        model = open_model(catalog.backends, entry)
    except (InvalidModel, ArtifactError) as error:
        catalog.broken.append(BrokenEntry(entry.origin, str(error)))
        return
    except Exception as error:  # noqa: BLE001 - a runtime that cannot compute the check cannot serve either
        log.error("%s: %s", spec.id, error)
        catalog.failures.append(f"{spec.id}: {error}")
        return
    metrics.set_parity(spec.name, spec.version, model.parity)
    catalog.models.setdefault(spec.name, {})[spec.version] = model


def _load_projections(catalog: Catalog, metrics: Metrics) -> None:
    random = np.random.default_rng(0)
    shapes = ((7, 5), (7, 5), (7, 3))
    query, key, value = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    layer = parity.Layer(7, 1, 5**-0.5, projections=Projections(query, key, value))
    catalog.projections = {name: backend.projections() for name, backend in catalog.backends.items()}
    dtypes = {name: backend.info.dtype for name, backend in catalog.backends.items()}
    try:
        metrics.set_parity("projections", "", parity.check(layer, catalog.projections, dtypes))
    except Exception as error:  # noqa: BLE001 - as above
        log.error("projections: %s", error)
        catalog.failures.append(f"projections: {error}")
