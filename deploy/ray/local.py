"""A Ray cluster of several nodes on this machine, and the service deployed on it: for tests and measurements.

Only where there is no network but loopback, `scripts/alone COMMAND`: elsewhere Ray binds to another address and waits
for itself there.
"""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psutil
import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.schema import ReplicaState

ROOT: Final = Path(__file__).parents[2]
FILE: Final = Path(__file__).parent / "serve.yml"
PORT: Final = 8000
DASHBOARD_PORT: Final = 8265

ENVIRONMENT: Final = {
    "PYTHONPATH": str(ROOT),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deploy.ray.proxy.middlewares",
}
"""What every node is started with, in front of whose replicas is Serve's own proxy."""

HAPROXY: Final = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(1 << 20),
}
"""What is added for HAProxy in its place: a request that a lost replica has left unanswered, up to 1 MiB, is sent to
another. Nothing here is changed by a request, so it may be sent twice."""

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

DEPLOYED_S: Final = 120.0
"""How long a deployment may take."""


class NotDone(Exception):
    """The cluster did not do what was waited for. The message has what it says instead."""


def lonely() -> bool:
    """Whether this process has no network but loopback."""
    return list(psutil.net_if_addrs()) == ["lo"]


class Nodes:
    """The nodes of a cluster: a head, and others that may come and go.

    Attributes:
        others: what `kill` takes.
        logs: where the replicas write what they were called for.
    """

    def __init__(self, cpus: int) -> None:
        """A head with so many processors, as Ray counts them: it asks nobody whether they are there."""
        self._node = {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": 256 << 20}
        head = {**self._node, "include_dashboard": True, "dashboard_port": DASHBOARD_PORT}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self.logs = Path(self._cluster.head_node.get_session_dir_path()) / "logs" / "serve"
        self.others: list[Any] = []

    def start(self) -> None:
        """Another node."""
        self.others.append(self._cluster.add_node(**self._node))

    def kill(self) -> None:
        """The node that was started last, as if its power had gone."""
        self._cluster.remove_node(self.others.pop(), allow_graceful=False)

    def stop(self) -> None:
        """All of them."""
        self._cluster.shutdown()


@contextmanager
def nodes(count: int, cpus: int, environment: Mapping[str, str] = NOTHING) -> Iterator[Nodes]:
    """Start a cluster, and connect to it until the block ends.

    Args:
        count: of nodes, the head among them.
        cpus: of each.
        environment: more variables of each, such as `HAPROXY`.
    """
    before = dict(os.environ)
    os.environ |= ENVIRONMENT | dict(environment)
    started = Nodes(cpus)
    try:
        for _ in range(count - 1):
            started.start()
        ray.init(address=started.address, log_to_driver=False)
        yield started
    finally:
        ray.shutdown()
        serve.context._set_global_client(None)  # this process may go on to another cluster
        started.stop()
        os.environ.clear()
        os.environ.update(before)


def document(settings: Mapping[str, object], **deployments: Mapping[str, object]) -> dict[str, Any]:
    """`serve.yml` with other settings, and other fields of deployments; a field that is None is taken away."""
    found: dict[str, Any] = deepcopy(yaml.safe_load(FILE.read_text()))
    found["proxy_location"] = "HeadOnly"  # of several proxies on one machine, one port would be everybody's
    (application,) = found["applications"]
    application["args"] = {"settings": dict(settings)}
    for deployment in application["deployments"]:
        deployment.update(deployments.get(deployment["name"], {}))
        for name in [name for name, value in deployment.items() if value is None]:
            del deployment[name]
    return found


def deploy(wanted: Mapping[str, Any], folder: Path) -> None:
    """`serve deploy`, and wait until everything is as it says.

    Raises:
        NotDone: if it cannot be deployed.
    """
    file = folder / "serve.yml"
    file.write_text(yaml.safe_dump(dict(wanted)))
    before = deployed_s()
    cli = (sys.executable, "-c", "from ray.serve.scripts import cli; cli()")
    done = subprocess.run(
        [*cli, "deploy", "-a", f"http://127.0.0.1:{DASHBOARD_PORT}", str(file)],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    if done.returncode:
        raise NotDone(done.stdout + done.stderr)
    # The controller begins a moment later; until then all is as the file before wanted it.
    eventually(lambda: deployed_s() > before and settled() and answers(), DEPLOYED_S, lambda: str(status()))


def status() -> Any:
    """What Serve says of the application; None if there is none."""
    return serve.status().applications.get("attention")


def deployed_s() -> float:
    """When the controller took the application's last file, seconds since the epoch; 0 if it has none."""
    found = status()
    return 0.0 if found is None else float(found.last_deployed_time_s)


def settled() -> bool:
    """Whether everything is as the file wants it."""
    found = status()
    if found is None or found.status != "RUNNING":
        return False
    return all(deployment.status == "HEALTHY" for deployment in found.deployments.values())


def running(deployment: str) -> int:
    """How many replicas of a deployment take requests."""
    count: int = status().deployments[deployment].replica_states.get(ReplicaState.RUNNING, 0)
    return count


def processes(title: str) -> list[psutil.Process]:
    """Processes by how their command line begins, oldest first; Ray calls its own `ray::ServeController` and so on."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        line = process.info["cmdline"]
        if line and line[0].rpartition("/")[2].startswith(title):
            found.append(process)
    return sorted(found, key=lambda process: float(process.info["create_time"]))


def replicas(deployment: str) -> list[psutil.Process]:
    """The processes of a deployment's replicas, oldest first."""
    return processes(f"ray::ServeReplica:attention:{deployment}")


def answers(path: str = "/healthz/ready") -> bool:
    """Whether the service answers 200 there."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def eventually(condition: Callable[[], object], timeout_s: float, said: Callable[[], str] = lambda: "nothing") -> None:
    """Wait for the cluster.

    Raises:
        NotDone: if `condition` has not come true in that time, with what is `said` by then.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise NotDone(f"it did not happen in {timeout_s:g} s; the cluster says {said()}")
        time.sleep(0.2)
