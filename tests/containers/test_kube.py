"""The Deployment of `deploy/kubernetes`, played by podman: what it says of a pod is what a pod can run with.

No cluster: there are no probes of a kubelet, no Service and no policy here, and what podman does not know it ignores.
"""

import json

import pytest
import yaml
from engine import ROOT, answer, ask, free_port, run, until
from kustomization import containers, render

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def played(build, tmp_path_factory):
    """The base and the overlay for CPUs, with a port of this machine: where the service is."""
    image, port = build("cpu"), free_port()
    wanted = [d for d in render(ROOT / "deploy/kubernetes/overlays/cpu") if d["kind"] in ("Deployment", "ConfigMap")]
    (deployment,) = (document for document in wanted if document["kind"] == "Deployment")
    deployment["spec"]["replicas"] = 1  # podman plays one pod of a Deployment
    (container,) = containers(deployment)
    assert image == f"localhost/{container['image']}"
    container["image"] = image
    for published in container["ports"]:
        if published["name"] == "http":
            published |= {"hostPort": port, "hostIP": "127.0.0.1"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "attention-keys"}}
    secret["data"] = {"ATTENTION_API_KEYS": "a2V5LW9mLXRoZS10ZXN0LTEyMzQ1Njc4OTA="}
    file = tmp_path_factory.mktemp("kube") / "attention.yml"
    file.write_text(yaml.safe_dump_all([secret, *(d for d in wanted if d is not deployment), deployment]))

    run("podman", "play", "kube", "--down", file, check=False)
    run("podman", "play", "kube", "--log-driver", "k8s-file", file)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answer(f"{url}/healthz/ready")[0] == 200)
        yield url
    except BaseException:
        print(run("podman", "ps", "--all", check=False).stdout)
        raise
    finally:
        run("podman", "play", "kube", "--down", file, check=False)


def test_the_pod_serves_with_the_key_of_its_secret_and_its_settings(played):
    """Without the key no answer; health needs none."""
    x = {"model": "lesson", "inputs": [[1.0, 0.0, 0.0, 0.0, 0.0]]}
    refused, problem = ask(f"{played}/v1/attention", x)
    status, body = answer(f"{played}/healthz/live")

    assert refused == 401, problem
    assert status == 200, body


def test_the_pods_container_is_as_the_manifest_hardens_it(played):
    """Read-only root, no capability, no new privileges, the image's user."""
    pods = json.loads(run("podman", "ps", "--format", "json", "--filter", "name=attention").stdout)
    (container,) = (pod for pod in pods if not pod["IsInfra"])
    status = run("podman", "exec", container["Id"], "cat", "/proc/1/status").stdout
    facts = dict(line.split(":\t", 1) for line in status.splitlines())

    assert facts["Uid"].split() == ["10001"] * 4
    assert int(facts["CapEff"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    assert run("podman", "exec", container["Id"], "touch", "/app/mark", check=False).returncode != 0
    run("podman", "exec", container["Id"], "touch", "/tmp/mark")
