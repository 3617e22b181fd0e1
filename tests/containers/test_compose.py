"""`docker-compose.yml`, brought up by podman-compose: the service, Prometheus that finds it, and Locust that loads it.

Grafana's image comes from a registry alone and is left out; for `prom/prometheus` stands Debian's Prometheus, started
by the same command with the same files.
"""

import json
import sys
import urllib.parse
from pathlib import Path

import pytest
import yaml
from engine import ROOT, answer, ask, free_port, run, until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

COMPOSE = Path(sys.prefix) / "bin" / "podman-compose"
PROJECT = "attention-test"


@pytest.fixture(scope="module")
def ports():
    """Free ports of this machine in the place of those that the file publishes."""
    return {"attention": free_port(), "prometheus": free_port(), "locust": free_port()}


@pytest.fixture(scope="module")
def compose(build, ports, tmp_path_factory):
    """Run podman-compose with our file, of which the published ports and relative folders alone are others."""
    for target in ("cpu", "loadtest"):
        build(target)
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    run(
        "podman",
        "tag",
        "localhost/debian-prometheus:bookworm",
        f"docker.io/{document['services']['prometheus']['image']}",
    )
    for name, service in document["services"].items():
        service.pop("build", None)
        service["volumes"] = [v.replace("./", f"{ROOT}/", 1) for v in service.get("volumes", [])]
        if name in ports:
            service["ports"] = [f"127.0.0.1:{ports[name]}:{port.rpartition(':')[2]}" for port in service["ports"]]
    file = tmp_path_factory.mktemp("compose") / "docker-compose.yml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))

    def composed(*words, **more):
        return run(COMPOSE, "--profile", "loadtest", "-p", PROJECT, "-f", file, *words, **more)

    composed("down", "--volumes", check=False)
    yield composed
    composed("down", "--volumes", check=False)


@pytest.fixture(scope="module")
def up(compose, ports):
    """Everything but Grafana, up: where each is."""
    compose("up", "--detach", "--no-build", "attention", "prometheus")
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    until(lambda: answer(f"{urls['attention']}/healthz/ready")[0] == 200)
    until(lambda: answer(f"{urls['prometheus']}/-/ready")[0] == 200)
    return urls


def query(up, expression):
    """What Prometheus answers: values by their labels."""
    url = f"{up['prometheus']}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    status, found = ask(url)
    assert status == 200, found
    return [(sample["metric"], float(sample["value"][1])) for sample in found["data"]["result"]]


def test_the_service_is_healthy_by_the_files_own_check(compose, up):
    """No timer of systemd runs the check here, so it is run by hand; Locust waits for it."""
    (container,) = json.loads(run("podman", "ps", "--format", "json", "--filter", "name=attention_1").stdout)

    run("podman", "healthcheck", "run", container["Id"])


def test_prometheus_finds_the_service_by_its_name(up):
    """By DNS, as the scrape configuration has it; and it has read the rules."""
    until(lambda: [value for _, value in query(up, 'up{job="attention"}')] == [1.0])
    status, rules = ask(f"{up['prometheus']}/api/v1/rules")
    found = [rule for group in rules["data"]["groups"] for rule in group["rules"]]

    assert status == 200
    assert {rule["name"] for rule in found} >= {"NotReady", "QueueSaturated"}
    assert query(up, "attention_ready")[0][0]["service"] == "attention"


def test_locust_of_the_profile_loads_the_service_and_prometheus_counts_the_same(compose, up):
    """Three containers that speak with each other by name; what was sent, was counted and was stored is one number."""
    compose("up", "--detach", "--no-build", "--no-deps", "locust")
    until(lambda: answer(up["locust"])[0] == 200)
    form = urllib.parse.urlencode({"user_count": 4, "spawn_rate": 4, "host": "http://attention:8000", "run_time": "4s"})

    status, said = answer(f"{up['locust']}/swarm", form.encode(), {"Content-Type": "application/x-www-form-urlencoded"})
    assert status == 200, said
    until(lambda: ask(f"{up['locust']}/stats/requests")[1]["state"] == "stopped")
    stats = ask(f"{up['locust']}/stats/requests")[1]
    sent = {entry["name"]: entry for entry in stats["stats"]}["Aggregated"]

    assert sent["num_requests"] > 100
    assert sent["num_failures"] == 0, stats["errors"]

    def stored():
        return sum(value for _, value in query(up, 'attention_requests_total{route=~"/v1/.*|/v2/.*"}'))

    # What a user was asking when the time was over is counted by the service alone: one request each at most.
    until(lambda: sent["num_requests"] <= stored() <= sent["num_requests"] + 4)


def test_down_stops_every_container_and_the_service_ends_with_0(compose, up):
    """The grace period is long enough for the drain."""
    (container,) = json.loads(run("podman", "ps", "--format", "json", "--filter", "name=attention_1").stdout)
    compose("stop", "attention")
    (state,) = json.loads(run("podman", "inspect", container["Id"]).stdout)
    compose("down", "--volumes")

    assert state["State"]["ExitCode"] == 0
    assert json.loads(run("podman", "ps", "--all", "--format", "json", "--filter", f"name={PROJECT}").stdout) == []
