"""The Deployment of `deploy/kubernetes`, played by podman: what it says of a pod is what a pod can run with.

No cluster: there are no probes of a kubelet, no Service and no policy here, and what podman does not know it ignores.
"""

import base64
import json

import pytest
import yaml
from engine import ROOT, answer, free_port, run, until
from kustomization import containers, render

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

SECRET, KEY = "attention-keys", "key-of-the-test-1234567890"


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
    (http,) = (published for published in container["ports"] if published["name"] == "http")
    container["ports"] = [http | {"hostPort": port, "hostIP": "127.0.0.1"}]  # podman publishes every port named
    file = tmp_path_factory.mktemp("kube") / "attention.yml"
    file.write_text(yaml.safe_dump_all([*(d for d in wanted if d is not deployment), deployment]))

    run("podman", "play", "kube", "--down", file, check=False)
    run("podman", "secret", "rm", SECRET, check=False)
    # As podman keeps a Secret of Kubernetes.
    keys = json.dumps({"ATTENTION_API_KEYS": base64.b64encode(KEY.encode()).decode()})
    run("podman", "secret", "create", SECRET, "-", input=keys)
    run("podman", "play", "kube", "--log-driver", "k8s-file", file)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answer(f"{url}/healthz/ready")[0] == 200)
        yield url
    finally:
        run("podman", "play", "kube", "--down", file, check=False)
        run("podman", "secret", "rm", SECRET, check=False)


def container_of_the_pod():
    pods = json.loads(run("podman", "ps", "--format", "json", "--filter", "name=attention").stdout)
    (container,) = (pod["Id"] for pod in pods if not pod["IsInfra"])
    return container


def test_the_pod_serves_with_the_key_of_its_secret(played):
    """Without the key no answer; health needs none."""
    body = json.dumps({"model": "lesson", "inputs": [[1.0, 0.0, 0.0, 0.0, 0.0]]}).encode()

    assert answer(f"{played}/healthz/live")[0] == 200
    assert answer(f"{played}/v1/attention", body)[0] == 401
    assert answer(f"{played}/v1/attention", body, {"Authorization": f"Bearer {KEY}"})[0] == 200


def test_the_pod_has_the_settings_of_its_config_map(played):
    """The generated ConfigMap reaches the process, and the service understands every line of it."""
    environment = run("podman", "exec", container_of_the_pod(), "env").stdout.splitlines()

    assert "ATTENTION_GRPC_PORT=8001" in environment
    assert "ATTENTION_SHUTDOWN_TIMEOUT_S=30" in environment


def test_the_pods_container_is_as_the_manifest_hardens_it(played):
    """Read-only root, no capability, no new privileges, the image's user."""
    container = container_of_the_pod()
    status = run("podman", "exec", container, "cat", "/proc/1/status").stdout
    facts = dict(line.split(":\t", 1) for line in status.splitlines())

    assert facts["Uid"].split() == ["10001"] * 4
    assert int(facts["CapEff"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    assert run("podman", "exec", container, "touch", "/app/mark", check=False).returncode != 0
    run("podman", "exec", container, "touch", "/tmp/mark")
