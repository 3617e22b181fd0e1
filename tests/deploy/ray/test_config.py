"""The files of deploy/ray: what can be told without Ray, and what its schemas tell where it is installed."""

import importlib
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from deploy.ray.replica_settings import settings_of
from service.settings import Settings

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "ray"


@pytest.fixture
def document():
    """The file that is deployed."""
    return yaml.safe_load((FOLDER / "serve.yml").read_text())


def test_its_settings_are_settings(document):
    (application,) = document["applications"]

    settings_of(application["args"]["settings"], {})


def test_its_names_are_those_of_the_code(document):
    (application,) = document["applications"]
    module, _, function = application["import_path"].partition(":")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()

    assert f"def {function}(" in source
    for deployment in application["deployments"]:
        assert f'name="{deployment["name"]}"' in source


def test_the_proxy_waits_longer_than_the_service(document):
    longest = Settings().request_timeout_ms / 1e3

    assert document["http_options"]["request_timeout_s"] > longest
    for deployment in document["applications"][0]["deployments"]:
        assert deployment["graceful_shutdown_timeout_s"] > longest


def test_the_manifest_of_kuberay_deploys_the_same(document):
    """Structure only: there is no schema of it here."""
    manifest = yaml.safe_load((FOLDER / "ray-service.yml").read_text())

    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    deployed = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    assert deployed["applications"] == document["applications"]
    cluster = manifest["spec"]["rayClusterConfig"]
    version = cluster["rayVersion"]
    assert f"ray=={version}" in (ROOT / "constraints.txt").read_text().splitlines()
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        for variable in container["env"]:
            if variable["name"].endswith("IMPORT_PATH"):
                module, _, function = variable["value"].rpartition(".")
                assert callable(getattr(importlib.import_module(module), function))


# ---- by Ray's schemas


@pytest.fixture
def faults():
    pytest.importorskip("ray.serve", reason="Ray is not installed: `make test-ray` installs it")
    from deploy.ray.config import faults

    return faults


def test_the_file_is_right(document, faults):
    assert faults(document) == []


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d.update(aplications=[]), "/aplications"),
        (lambda d: d["http_options"].update(request_timeouts=1), "/http_options/request_timeouts"),
        (lambda d: d["applications"][0].update(route="/"), "/applications/0/route"),
        (
            lambda d: d["applications"][0]["deployments"][1].update(num_replicaz=1),
            "/applications/0/deployments/1/num_replicaz",
        ),
        (
            lambda d: d["applications"][0]["deployments"][1]["autoscaling_config"].update(max_replica=1),
            "/applications/0/deployments/1/autoscaling_config/max_replica",
        ),
        (
            lambda d: d["applications"][0]["deployments"][1]["autoscaling_config"].update(max_replicas=-1),
            "/applications/0/deployments/1/autoscaling_config/max_replicas",
        ),
        (
            lambda d: d["applications"][0]["deployments"][0]["ray_actor_options"].update(cpus=1),
            "/applications/0/deployments/0/ray_actor_options/cpus",
        ),
        (lambda d: d["applications"][0]["args"]["settings"].update(log_levle="info"), "/applications/0/args/settings"),
        (
            lambda d: d["applications"][0]["deployments"][0].update(max_ongoing_requests="many"),
            "/applications/0/deployments/0/max_ongoing_requests",
        ),
    ],
)
def test_a_misspelt_field_or_a_wrong_value_is_found_where_it_is(document, faults, change, place):
    wrong = deepcopy(document)
    change(wrong)

    found = faults(wrong)

    assert [fault.partition(":")[0] for fault in found] == [place], found
