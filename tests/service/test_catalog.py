import json
import logging

import numpy as np
import pytest
from fakes import FakeRunner

from models import repository
from models.errors import ArtifactError, InvalidModel
from service import catalog as catalog_module
from service.backends.base import BackendInfo
from service.backends.reference import ReferenceRunner
from service.catalog import Catalog, load_catalog
from service.devices import Device
from service.errors import ConfigurationError, NotFound
from service.metrics import Metrics
from service.settings import Settings

SPEC = {"embed_dim": 4, "head_dim": 2, "seed": 1}


class Backend:
    """A runtime that computes by the reference, and can be made to fail."""

    def __init__(self, name, wrong=(), refuses=None, error=InvalidModel):
        self.info = BackendInfo(name, "cpu", "made up", "float32")
        self.wrong, self.refuses, self.error, self.warmed = set(wrong), refuses, error, []

    def layer(self, entry):
        if entry.spec.id == self.refuses:
            raise self.error("this runtime cannot serve it")
        return Runner(self, entry.spec.id, entry)

    def projections(self):
        return Runner(self, "projections", None)


class Runner(ReferenceRunner):
    def __init__(self, backend, name, entry):
        super().__init__(entry)
        self.backend, self.name = backend, name

    def run(self, batch):
        if self.name == "crashes@1" and self.backend.info.name == "b":
            raise RuntimeError("no kernel")
        found = super().run(batch)
        if self.name in self.backend.wrong:
            return [{name: tensor * np.float32(1.01) for name, tensor in tensors.items()} for tensors in found]
        return found

    def warm(self):
        self.backend.warmed.append(self.name)


@pytest.fixture
def backends(monkeypatch):
    """Two backends in place of the real ones, of which the second may be changed; and one small built-in, `lesson`."""
    opened = {"a": Backend("a"), "b": Backend("b")}
    lesson = [entry for entry in repository.builtin() if entry.spec.name == "lesson"]
    monkeypatch.setattr(catalog_module, "BACKENDS", dict.fromkeys(opened))
    monkeypatch.setattr(catalog_module, "open_backend", lambda name, device, settings: opened[name])
    monkeypatch.setattr(repository, "builtin", lambda: lesson)
    return opened


@pytest.fixture
def folder(tmp_path):
    """A repository of one's own: `folder(place, **fields)` adds an entry."""

    def add(place, **fields):
        name, _, version = place.partition("/")
        (add.path / place).mkdir(parents=True, exist_ok=True)
        spec = {"name": name, "version": version or "1", **SPEC, **fields}
        (add.path / place / "spec.json").write_text(json.dumps(spec))

    add.path = tmp_path / "repository"
    add.path.mkdir()
    return add


@pytest.fixture(autouse=True)
def default_repository(tmp_path, monkeypatch):
    """The default one, in a place where nobody's own models are; it does not exist unless a test makes it."""
    place = tmp_path / "installed"
    monkeypatch.setattr(catalog_module, "DEFAULT_REPOSITORY", place)
    return place


def load(folder=None, **fields):
    metrics = Metrics()
    path = catalog_module.DEFAULT_REPOSITORY if folder is None else folder.path
    fields = {"device": "cpu", "default_model": "lesson", "model_repository": path, **fields}
    return load_catalog(Settings(**fields), metrics), metrics


def test_a_catalog_serves_what_is_built_in_and_the_users_own(backends, folder):
    folder("mine")

    catalog, metrics = load(folder)

    assert list(catalog.models) == ["lesson", "mine"]
    assert catalog.find("mine").entry.origin == "mine"
    assert set(catalog.find("mine").runners) == set(catalog.projections) == {"a", "b"}
    assert (catalog.broken, catalog.failures) == ([], [])
    assert str(catalog.device) == "cpu"
    for name, backend in backends.items():
        assert backend.warmed == ["lesson@1", "mine@1"], "the first request must not wait for what could be done now"
        labels = {"backend": name, "device": "cpu", "provider": "made up", "dtype": "float32"}
        assert metrics.registry.get_sample_value("attention_backend_info", labels) == 1


def test_parity_is_measured_at_load_and_published(backends):
    catalog, metrics = load()

    assert catalog.find("lesson").parity == {"a-b": 0.0}
    for model, version in (("lesson", "1"), ("projections", "")):
        labels = {"model": model, "version": version, "pair": "a-b"}
        assert metrics.registry.get_sample_value("attention_parity_difference", labels) == 0


@pytest.mark.parametrize("as_declared", [False, True])
def test_a_backend_may_compute_as_coarsely_as_a_model_declares(as_declared, backends, folder):
    """Only where the backend goes by it, which it then says of that model and of no other."""
    backends["b"].info = BackendInfo("b", "cuda:0", "made up", "float32", as_declared)
    backends["b"].wrong = {"half@1"}
    folder("half", compute_dtype="float16")
    folder("mine")

    catalog, _ = load(folder)

    if not as_declared:
        assert "half@1: a-b differ" in catalog.failures[0]
        return
    assert catalog.failures == []
    assert catalog.info("b", "half", "1").dtype == "float16"
    assert {catalog.info("a", "half", "1").dtype, catalog.info("b", "mine", "1").dtype} == {"float32"}
    assert catalog.info("b", "projections", "").dtype == "float32"


def test_versions_are_in_natural_order(backends, folder):
    """10 follows 9, not 1; the newest is what a bare name means."""
    for version in ("10", "9", "1.10", "1.9", "2-beta"):
        folder(f"mine/{version}")

    catalog, _ = load(folder)

    assert list(catalog.models["mine"]) == ["1.9", "1.10", "2-beta", "9", "10"]
    assert catalog.find("mine").entry.spec.version == "10"
    assert catalog.find("mine@1.9").entry.spec.version == "1.9"


def test_a_users_entry_replaces_a_built_in_one_of_the_same_id(backends, folder):
    folder("lesson")

    catalog, _ = load(folder)

    assert list(catalog.models) == ["lesson"]
    assert catalog.find("lesson").entry.origin == "lesson"
    assert catalog.find("lesson").entry.spec.embed_dim == 4
    assert backends["a"].warmed == ["lesson@1"], "what is replaced is not even loaded"


def test_another_version_of_a_built_in_model_stands_beside_it(backends, folder):
    folder("lesson/2")

    catalog, _ = load(folder)

    assert [model.entry.origin for model in catalog.models["lesson"].values()] == ["built-in", "lesson/2"]
    assert catalog.find("lesson").entry.spec.version == "2"


def test_a_broken_entry_is_reported_and_the_others_are_served(backends, folder, caplog):
    """One bad folder must not keep a service from starting, nor be passed over in silence."""
    folder("good")
    folder("bad", embed_dim=0)
    folder("twisted", name="straight")
    (folder.path / "empty").mkdir()

    catalog, _ = load(folder)

    assert list(catalog.models) == ["good", "lesson"]
    assert [broken.origin for broken in catalog.broken] == ["bad", "empty", "twisted"]
    assert "embed_dim" in catalog.broken[0].reason
    assert "spec.json is missing" in catalog.broken[1].reason
    assert "calls itself straight@1" in catalog.broken[2].reason
    assert catalog.failures == []
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [warning.partition(" is not served")[0] for warning in warnings] == [
        f"model repository: {name}" for name in ("bad", "empty", "twisted")
    ]


def test_a_broken_entry_does_not_replace_a_built_in_one(backends, folder):
    folder("lesson", embed_dim=0)

    catalog, _ = load(folder)

    assert catalog.find("lesson").entry.origin == "built-in"
    assert [broken.origin for broken in catalog.broken] == ["lesson"]


@pytest.mark.parametrize("error", [InvalidModel, ArtifactError])
def test_a_model_that_one_backend_cannot_serve_is_broken_not_a_failure(error, backends, folder):
    """A caller could not know on which backend it is missing; the rest is served."""
    folder("odd")
    backends["b"].refuses, backends["b"].error = "odd@1", error

    catalog, _ = load(folder)

    assert [(broken.origin, broken.reason) for broken in catalog.broken] == [("odd", "this runtime cannot serve it")]
    assert "odd" not in catalog.models
    assert catalog.failures == []


def test_backends_that_disagree_are_a_failure(backends, folder, caplog):
    """The service must not become ready, and must not offer the model."""
    folder("mine")
    backends["b"].wrong = {"mine@1"}

    catalog, _ = load(folder)

    (failure,) = catalog.failures
    assert failure.startswith("mine@1: a-b differ by ")
    assert "mine" not in catalog.models
    assert list(catalog.models) == ["lesson"]
    assert [r.levelname for r in caplog.records] == ["ERROR"]


def test_a_backend_that_cannot_compute_the_check_is_a_failure(backends, folder):
    """It could not serve either."""
    folder("crashes")

    catalog, _ = load(folder)

    assert catalog.failures == ["crashes@1: no kernel"]
    assert list(catalog.models) == ["lesson"]


def test_backends_that_disagree_about_callers_matrices_are_a_failure(backends):
    backends["b"].wrong = {"projections"}

    catalog, _ = load()

    (failure,) = catalog.failures
    assert failure.startswith("projections: a-b differ by ")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lessen", "there is no model 'lessen'; did you mean 'lesson'?"),
        ("x", "there is no model 'x'; there are lesson"),
        ("lesson@2", "'lesson' has no version '2'; it has 1"),
    ],
)
def test_a_missing_default_model_stops_the_start(name, why, backends):
    """Every request that names no model would fail."""
    with pytest.raises(ConfigurationError) as error:
        load(default_model=name)

    assert str(error.value) == f"ATTENTION_DEFAULT_MODEL={name}: /model: {why}"


@pytest.mark.parametrize(
    ("wrong", "fields", "reason"),
    [
        ({"mine@1"}, {}, "(not served: mine@1: a-b differ by "),
        ((), {"embed_dim": 0}, "(not served: mine: mine/spec.json"),
    ],
)
def test_a_default_model_that_is_not_served_says_why(wrong, fields, reason, backends, folder):
    """ "There is no such model" would be a riddle to somebody who sees its folder."""
    folder("mine", **fields)
    backends["b"].wrong = set(wrong)

    with pytest.raises(ConfigurationError) as error:
        load(folder, default_model="mine")

    assert str(error.value).startswith("ATTENTION_DEFAULT_MODEL=mine: /model: there is no model 'mine'")
    assert reason in str(error.value)


def test_a_default_model_may_name_its_version(backends, folder):
    folder("mine/7")

    catalog, _ = load(folder, default_model="mine@7")

    assert catalog.find("mine@7").entry.spec.id == "mine@7"


def test_a_repository_that_is_no_folder_stops_the_start(backends, folder):
    folder.path /= "nowhere"

    with pytest.raises(ConfigurationError, match=r"^ATTENTION_MODEL_REPOSITORY: .*nowhere is not a folder$"):
        load(folder)


def test_the_default_repository_need_not_exist(backends, folder, default_repository):
    """Most people have no models of their own; who has puts them there and sets nothing."""
    assert list(load()[0].models) == ["lesson"]
    folder.path = default_repository
    folder("mine")

    assert list(load()[0].models) == ["lesson", "mine"]


def test_weights_over_the_limit_are_broken(backends, folder):
    folder("mine", embed_dim=4096, head_dim=64)

    assert "mine" in load(folder, max_model_mib=3)[0].models
    catalog, _ = load(folder, max_model_mib=2)

    assert [(broken.origin, broken.reason) for broken in catalog.broken] == [
        ("mine", "the weights would take 3 MiB; 2 MiB are allowed")
    ]


def test_an_empty_repository_is_none(backends, folder):
    catalog, _ = load(folder)

    assert list(catalog.models) == ["lesson"]
    assert catalog.broken == []


def test_why_this_device_is_logged(backends, monkeypatch, caplog):
    """Falling back in silence is how GPUs stay idle for weeks."""
    caplog.set_level(logging.INFO, "service.catalog")
    monkeypatch.setattr(catalog_module, "choose_device", lambda asked: Device("cpu", note=f"{asked}: no driver"))

    load(device="auto")

    assert "computing on cpu: auto: no driver" in caplog.text


def test_unknown_names_are_answered_with_the_nearest_or_with_all():
    catalog = Catalog(Device("cpu"), {}, models={"alpha": {"1": FakeRunner()}, "beta": {"1": None}})

    with pytest.raises(NotFound, match=r"there is no model 'alpa'; did you mean 'alpha'\?"):
        catalog.find("alpa")
    with pytest.raises(NotFound, match="there is no model 'zzz'; there are alpha, beta") as error:
        catalog.find("zzz")
    assert error.value.fields[0].pointer == "/model"
