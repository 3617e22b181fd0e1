"""Loading and unloading in this process, on made-up backends, with the loads held where a test wants them."""

import asyncio
import json
import shutil
import threading

import numpy as np
import pytest

from models import repository
from service import catalog as catalog_module
from service.backends.base import BackendInfo
from service.backends.reference import ReferenceRunner
from service.catalog import load_catalog
from service.errors import Conflict, NotFound, UnservableModel
from service.loader import Loader
from service.metrics import Metrics
from service.settings import Settings


class Backend:
    """Computes by the reference.

    Attributes:
        wrong, crashing: ids of layers that it computes wrongly, or not at all.
        gate: what a layer waits for, outside the event loop; open unless a test closes it.
        waiting: released by each layer that comes to the gate.
        loaded: ids of the layers it was asked for.
    """

    def __init__(self, name):
        self.info = BackendInfo(name, "cpu", "made up", "float32")
        self.wrong, self.crashing, self.loaded = set(), set(), []
        self.gate, self.waiting = threading.Event(), threading.Semaphore(0)
        self.gate.set()

    def layer(self, entry):
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        self.loaded.append(entry.spec.id)
        self.waiting.release()
        assert self.gate.wait(30), "nobody opened the gate"
        return Runner(entry, wrong=entry.spec.id in self.wrong, crashes=entry.spec.id in self.crashing)

    def projections(self):
        return Runner(None)


class Runner(ReferenceRunner):
    def __init__(self, entry, *, wrong=False, crashes=False):
        super().__init__(entry)
        self.wrong, self.crashes = wrong, crashes

    def run(self, batch):
        if self.crashes:
            raise RuntimeError("no kernel")
        factor = np.float32(1.01 if self.wrong else 1)
        return [{name: tensor * factor for name, tensor in tensors.items()} for tensors in super().run(batch)]

    def warm(self):
        pass


class Service:
    """A catalog of `lesson` and of a repository, and its loader."""

    def __init__(self, folder, **fields):
        self.folder = folder
        self.settings = Settings(**{"device": "cpu", "default_model": "lesson", "model_repository": folder, **fields})
        self.metrics = Metrics()
        self.loader = Loader(self.settings, self.metrics)
        self.catalog = None

    def start(self):
        self.catalog = load_catalog(self.settings, self.metrics)
        return self

    def put(self, place, seed=1, **fields):
        name, _, version = place.partition("/")
        (self.folder / place).mkdir(parents=True, exist_ok=True)
        spec = {"name": name, "version": version or "1", "embed_dim": 4, "head_dim": 2, "seed": seed, **fields}
        (self.folder / place / "spec.json").write_text(json.dumps(spec))

    def remove(self, place):
        shutil.rmtree(self.folder / place)

    def load(self, wanted):
        return asyncio.run(self.loader.load(self.catalog, wanted))

    def unload(self, wanted):
        return asyncio.run(self.loader.unload(self.catalog, wanted))

    @property
    def served(self):
        return [f"{name}@{version}" for name, versions in self.catalog.models.items() for version in versions]

    @property
    def broken(self):
        return [entry.origin for entry in self.catalog.broken]

    def parity(self, name, version):
        """What the metrics say; None if there is no such series."""
        labels = {"model": name, "version": version, "pair": "a-b"}
        return self.metrics.registry.get_sample_value("attention_parity_difference", labels)

    def shadow(self, name, version):
        """Likewise."""
        labels = {"model": name, "version": version, "pair": "eager-onnx"}
        return self.metrics.registry.get_sample_value("attention_shadow_difference", labels)


@pytest.fixture
def backends(monkeypatch):
    opened = {"a": Backend("a"), "b": Backend("b")}
    lesson = [entry for entry in repository.builtin() if entry.spec.name == "lesson"]
    monkeypatch.setattr(catalog_module, "BACKENDS", dict.fromkeys(opened))
    monkeypatch.setattr(catalog_module, "open_backend", lambda name, device, settings: opened[name])
    monkeypatch.setattr(repository, "builtin", lambda: lesson)
    return opened


@pytest.fixture
def service(backends, tmp_path):
    return Service(tmp_path)


def ids(change):
    return [model.entry.spec.id for model in change.loaded], change.unloaded


# ---- load


def test_a_new_entry_is_served_once_it_is_loaded(service):
    """On every backend, with its parity published, in the order of names."""
    service.put("zebra")
    service.start()
    service.put("mine")

    assert ids(service.load("mine")) == (["mine@1"], [])

    assert service.served == ["lesson@1", "mine@1", "zebra@1"]
    assert set(service.catalog.find("mine").runners) == {"a", "b"}
    assert service.catalog.find("mine").digest == service.catalog.find("mine").entry.weights.digest()
    assert service.parity("mine", "1") == service.catalog.find("mine").parity["a-b"] == 0


def test_a_changed_entry_is_loaded_again_and_others_are_left_alone(service):
    service.put("mine")
    service.put("other")
    service.start()
    old, other = service.catalog.find("mine"), service.catalog.find("other")
    service.put("mine", seed=2)

    assert ids(service.load("mine")) == (["mine@1"], [])

    new = service.catalog.find("mine")
    assert new.digest != old.digest
    assert new.runners["a"] is not old.runners["a"]
    assert service.catalog.find("other") is other


def test_loading_twice_is_as_loading_once(service):
    service.put("mine")
    service.start()

    assert ids(service.load("mine")) == ids(service.load("mine")) == (["mine@1"], [])
    assert service.served == ["lesson@1", "mine@1"]


def test_a_name_is_all_its_versions_and_the_newest_is_what_it_means(service):
    service.put("mine/9")
    service.start()
    service.put("mine/10")

    assert ids(service.load("mine")) == (["mine@9", "mine@10"], [])
    assert service.catalog.find("mine").entry.spec.version == "10"


def test_one_version_is_loaded_without_the_others(service, backends):
    service.put("mine/9")
    service.start()
    nine = service.catalog.find("mine@9")
    service.put("mine/9", seed=2)
    service.put("mine/10")

    assert ids(service.load("mine@10")) == (["mine@10"], [])

    assert service.served == ["lesson@1", "mine@9", "mine@10"]
    assert service.catalog.find("mine@9") is nine
    assert backends["a"].loaded.count("mine@9") == 1


def test_a_version_whose_folder_is_gone_is_unloaded(service):
    service.put("mine/1")
    service.put("mine/2")
    service.start()
    service.remove("mine/2")

    assert ids(service.load("mine")) == (["mine@1"], ["mine@2"])
    assert service.parity("mine", "2") is None

    service.remove("mine")
    assert ids(service.load("mine@1")) == ([], ["mine@1"])
    assert service.served == ["lesson@1"]
    with pytest.raises(NotFound):
        service.load("mine")


def test_an_entry_without_a_folder_of_versions_may_change_its_version(service):
    service.put("mine", version="1")
    service.start()
    service.put("mine", version="2")

    assert ids(service.load("mine")) == (["mine@2"], ["mine@1"])


def test_a_users_entry_replaces_a_built_in_one_and_gives_way_to_it_again(service):
    service.start()
    service.put("lesson")
    assert ids(service.load("lesson")) == (["lesson@1"], [])
    assert service.catalog.find("lesson").entry.origin == "lesson"

    service.remove("lesson")
    assert ids(service.load("lesson")) == (["lesson@1"], [])
    assert service.catalog.find("lesson").entry.origin == "built-in"


def test_while_a_layer_is_loaded_the_one_before_is_served_and_the_loop_goes_on(service, backends):
    service.put("mine")
    service.start()
    old = service.catalog.find("mine")
    service.put("mine", seed=2)

    async def scenario():
        backends["b"].gate.clear()
        loading = asyncio.create_task(service.loader.load(service.catalog, "mine"))
        for _ in ("lesson", "mine", "mine again"):
            await asyncio.to_thread(backends["b"].waiting.acquire, timeout=30)
        assert service.catalog.find("mine") is old
        assert not loading.done()
        backends["b"].gate.set()
        await loading
        assert service.catalog.find("mine") is not old

    asyncio.run(scenario())


def test_changes_are_made_one_after_the_other(service, backends):
    """An unload that comes while the same model is loaded finds it loaded."""
    service.start()
    service.put("mine")

    async def scenario():
        backends["a"].gate.clear()
        loading = asyncio.create_task(service.loader.load(service.catalog, "mine"))
        while "mine@1" not in backends["a"].loaded:
            await asyncio.to_thread(backends["a"].waiting.acquire, timeout=30)
        unloading = asyncio.create_task(service.loader.unload(service.catalog, "mine"))
        await asyncio.sleep(0)
        assert not unloading.done()
        backends["a"].gate.set()
        return ids(await loading), ids(await unloading)

    assert asyncio.run(scenario()) == ((["mine@1"], []), ([], ["mine@1"]))
    assert service.served == ["lesson@1"]


# ---- what cannot be loaded


def test_a_broken_entry_leaves_what_was_served_and_is_reported_until_it_is_mended(service):
    service.put("mine")
    service.start()
    old = service.catalog.find("mine")
    service.put("mine", embed_dim=0)

    with pytest.raises(UnservableModel, match=r"^mine: mine/spec.json: embed_dim"):
        service.load("mine")

    assert service.catalog.find("mine") is old
    assert service.broken == ["mine"]
    assert service.catalog.failures == []

    service.put("mine", seed=2)
    service.load("mine")
    assert service.catalog.find("mine").digest != old.digest
    assert service.broken == []


@pytest.mark.parametrize(("fault", "why"), [("wrong", "a-b differ by "), ("crashing", "no kernel")])
def test_an_entry_whose_backends_disagree_is_broken_and_the_service_stays_ready(service, backends, fault, why):
    """At the start it would not become ready; now it serves others, and goes on."""
    service.put("mine")
    service.start()
    old = service.catalog.find("mine")
    setattr(backends["b"], fault, {"mine@1"})

    with pytest.raises(UnservableModel, match=f"^mine: {why}"):
        service.load("mine")

    assert service.catalog.find("mine") is old
    assert (service.broken, service.catalog.failures) == (["mine"], [])


def test_a_built_in_layer_that_fails_is_told_and_no_broken_folder(service, backends):
    service.start()
    backends["b"].wrong = {"lesson@1"}

    with pytest.raises(UnservableModel, match=r"^built-in: a-b differ by "):
        service.load("lesson")

    assert service.broken == []


def test_of_several_versions_all_are_loaded_or_none(service):
    """The answer is one status; half a change would be neither."""
    service.put("mine/1")
    service.start()
    old = service.catalog.find("mine@1")
    service.put("mine/1", seed=2)
    service.put("mine/2", embed_dim=0)
    service.put("mine/3")

    with pytest.raises(UnservableModel, match=r"^mine/2: "):
        service.load("mine")

    assert service.served == ["lesson@1", "mine@1"]
    assert service.catalog.find("mine") is old
    service.load("mine@3")
    assert service.served == ["lesson@1", "mine@1", "mine@3"]
    assert service.broken == ["mine/2"], "another version says nothing of it"


def test_a_broken_entry_that_is_gone_is_reported_no_more(service):
    service.put("mine", embed_dim=0)
    service.put("other", embed_dim=0)
    service.start()
    service.remove("mine")

    with pytest.raises(NotFound):
        service.load("mine")

    assert service.broken == ["other"]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("lessen", "there is no model 'lessen'; did you mean 'lesson'?"),
        ("minf", "there is no model 'minf'; did you mean 'mine'?"),
        ("zzz", "there is no model 'zzz'; there are lesson, mine"),
        ("mine@2", "'mine' has no version '2', neither in the model repository nor built in"),
        ("..", "there is no model '..'; names and versions match"),
        ("mine@", "there is no model 'mine@'; names"),
        ("mine@..", "there is no model 'mine@..'; names"),
        ("mine@1@1", "there is no model 'mine@1@1'; names"),
    ],
)
def test_what_is_nowhere_is_not_found(service, wanted, why):
    """A folder that was never loaded is a good guess too."""
    service.start()
    service.put("mine")

    with pytest.raises(NotFound) as error:
        service.load(wanted)

    assert str(error.value).startswith(why)


def test_a_repository_that_is_gone_unloads_nothing(service):
    """A volume that is not mounted is no decision of anybody's."""
    service.put("mine")
    service.start()
    service.remove(".")

    with pytest.raises(UnservableModel, match=r"^ATTENTION_MODEL_REPOSITORY: .* is not a folder$"):
        service.load("mine")

    assert service.served == ["lesson@1", "mine@1"]


def test_without_a_repository_there_are_the_built_in_ones(backends, tmp_path, monkeypatch):
    """The default one need not exist; and it may be made later."""
    monkeypatch.setattr(catalog_module, "DEFAULT_REPOSITORY", tmp_path / "installed")
    service = Service(tmp_path / "installed").start()

    assert ids(service.load("lesson")) == (["lesson@1"], [])
    with pytest.raises(NotFound):
        service.load("mine")
    service.put("mine")
    assert ids(service.load("mine")) == (["mine@1"], [])


def test_the_limit_holds_at_run_time_too(service, tmp_path):
    service = Service(tmp_path, max_model_mib=1).start()
    service.put("mine", embed_dim=4096, head_dim=64)

    with pytest.raises(UnservableModel, match=r"^mine: the weights would take 3 MiB; 1 MiB are allowed$"):
        service.load("mine")


# ---- unload


def test_an_unloaded_model_is_gone_with_its_metrics_and_can_be_loaded_again(service):
    service.put("mine/1")
    service.put("mine/2")
    service.start()

    assert ids(service.unload("mine@2")) == ([], ["mine@2"])
    assert service.served == ["lesson@1", "mine@1"]
    assert (service.parity("mine", "1"), service.parity("mine", "2")) == (0, None)

    service.load("mine")
    assert ids(service.unload("mine")) == ([], ["mine@1", "mine@2"])
    assert service.served == ["lesson@1"]
    assert service.parity("mine", "1") is None


def test_what_a_shadow_has_measured_goes_with_the_layer_it_was_measured_on(service):
    """Of another layer of that name it would not be true, and series of those that are gone would add up."""
    service.put("mine/1")
    service.put("mine/2")
    service.put("other")
    service.start()
    for name, version in (("mine", "1"), ("mine", "2"), ("other", "1")):
        service.metrics.add_shadow(name, version, "eager-onnx", 0.5)

    service.load("mine@1")
    assert [service.shadow("mine", "1"), service.shadow("mine", "2"), service.shadow("other", "1")] == [None, 0.5, 0.5]
    service.unload("mine")
    assert [service.shadow("mine", "2"), service.shadow("other", "1")] == [None, 0.5]
    service.metrics.add_shadow("mine", "2", "eager-onnx", 0.25)
    assert service.shadow("mine", "2") == 0.25


def test_a_built_in_model_can_be_unloaded_and_loaded_again(service, tmp_path):
    service.put("mine")
    service = Service(tmp_path, default_model="mine").start()

    assert ids(service.unload("lesson")) == ([], ["lesson@1"])
    assert service.served == ["mine@1"]
    assert ids(service.load("lesson")) == (["lesson@1"], [])


@pytest.mark.parametrize("wanted", ["lessen", "mine@2", "..", "mine@", "projections"])
def test_what_is_not_served_cannot_be_unloaded(service, wanted):
    service.put("mine")
    service.start()

    with pytest.raises(NotFound):
        service.unload(wanted)


@pytest.mark.parametrize(
    ("default", "wanted"), [("mine", "mine"), ("mine@1", "mine"), ("mine@1", "mine@1"), ("lesson", "lesson@1")]
)
def test_requests_that_name_no_model_are_not_left_without_one(service, tmp_path, default, wanted):
    service.put("mine/1")
    service.put("mine/2")
    service = Service(tmp_path, default_model=default).start()

    with pytest.raises(Conflict, match=r"the model of requests that name none"):
        service.unload(wanted)

    assert service.served == ["lesson@1", "mine@1", "mine@2"]


def test_one_version_of_the_default_model_may_go_while_another_stays(service, tmp_path):
    """A newer version that proves bad is taken back so."""
    service.put("mine/1")
    service.put("mine/2")
    service = Service(tmp_path, default_model="mine").start()

    assert ids(service.unload("mine@2")) == ([], ["mine@2"])
    assert service.catalog.find("mine").entry.spec.version == "1"


def test_the_folder_of_the_default_model_may_go_but_the_model_stays(service, tmp_path):
    service.put("mine")
    service = Service(tmp_path, default_model="mine").start()
    service.remove("mine")

    with pytest.raises(Conflict):
        service.load("mine")

    assert service.served == ["lesson@1", "mine@1"]
