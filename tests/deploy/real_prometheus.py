"""A real Prometheus with the files of deploy/prometheus, and a client that counts what it sends to the service."""

import json
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import tritonclient.grpc as triton
import yaml
from wire import JSON, NPY, call, http_request, metrics_of, npy, raw, total, until

from service.settings import PREFIX
from tests.serving import ROOT, Server

FILES = ROOT / "deploy/prometheus"
INFER = "/inference.GRPCInferenceService/ModelInfer"
LONG, BLOCKER = "/v1/attention?model=lesson&return=outputs", npy(np.zeros((64, 4_096, 5), np.float32))
"""A request that computes for the better part of a second, of which most is queued meanwhile."""


class Prometheus:
    """Its API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def api(self, path: str, **parameters: Any) -> Any:
        """What `/api/v1/…` answers."""
        reply = call(self.url, "GET", f"/api/v1/{path}?{urlencode(parameters)}")
        assert reply.status == 200, reply.body
        document = reply.json()
        assert document["status"] == "success"
        return document["data"]

    def ask(self, expr: str, **when: float) -> list[tuple[dict[str, str], float]]:
        """The samples of an instant vector: labels and values."""
        data = self.api("query", query=expr, **when)
        assert data["resultType"] == "vector"
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def counts(self, expr: str) -> dict[tuple[str, ...], float]:
        """The samples by the values of their labels, in the order of `by (…)`; those that are 0 are left out."""
        order = [name.strip() for name in expr.partition("by (")[2].partition(")")[0].split(",") if name]
        return {tuple(labels[name] for name in order): value for labels, value in self.ask(expr) if value}

    def scraped(self) -> None:
        """Wait for a scrape that begins from now on: what has been counted is stored."""
        now = time.time()
        until(lambda: self.ask('up{job="attention"} == 1') and self.last_scrape() > now)

    def last_scrape(self) -> float:
        """When the service was asked last, by the clock of the wall, s."""
        return max((at for _, at in self.ask('timestamp(up{job="attention"})')), default=0.0)


def configured(server: Server, port: int) -> dict[str, Any]:
    """prometheus.yml, with other targets and a shorter interval."""
    config = yaml.safe_load((FILES / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        if found := job.pop("dns_sd_configs", None):
            # What the discovery would have said, so that the relabelling has something to do.
            job["static_configs"] = [
                {"targets": [server.url.removeprefix("http://")], "labels": {"__meta_dns_name": found[0]["names"][0]}}
            ]
        else:
            job["static_configs"][0]["targets"] = [f"127.0.0.1:{port}"]
    return config


@contextmanager
def watching(server: Server, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus of its own for a running service."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rules = yaml.safe_load((FILES / "rules.yml").read_text())
    for group in rules["groups"]:
        group.pop("interval", None)
    (folder / "rules.yml").write_text(json.dumps(rules))
    (folder / "prometheus.yml").write_text(json.dumps(configured(server, port)))
    log = (folder / "prometheus.log").open("w")
    process = subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
        stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")

        def ready() -> bool:
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            try:
                return call(found.url, "GET", "/-/ready").status == 200
            except ConnectionError:
                return False

        until(ready)
        yield found
    finally:
        process.terminate()
        process.wait(30)
        log.close()


@dataclass
class Client:
    """Sends requests, and counts what came of them.

    Attributes:
        ended: requests by route, method, status and outcome.
        inferences, sequences, tokens: of the answered ones that were computed.
    """

    server: Server
    ended: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    inferences: int = 0
    sequences: int = 0
    tokens: int = 0

    def send(
        self,
        wanted: tuple[int, str],
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        route: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """One request over HTTP, which has to be answered with a status, and so to count as an outcome."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        reply = call(self.server.url, method, path, content, {"Content-Type": JSON} | dict(headers or {}), timeout=60)
        assert reply.status == wanted[0], (reply.status, reply.body[:300])
        self._ended(route or path.partition("?")[0], method, str(wanted[0]), wanted[1])

    def attend(self, *lengths: int, query: str = "") -> None:
        """Attention for sequences of these lengths."""
        inputs = [np.full((length, 5), 0.25).tolist() for length in lengths]
        body = {"model": "lesson", "inputs": inputs}
        self.send((200, "ok"), f"/v1/attention{query}", body)
        self._computed(*lengths)

    def infer(self, length: int) -> None:
        """The same by the Open Inference Protocol, over REST and over gRPC."""
        inputs = {"name": "inputs", "shape": [length, 5], "datatype": "FP32", "data": [0.5] * (5 * length)}
        self.send((200, "ok"), "/v2/models/lesson/infer", {"inputs": [inputs]}, route="/v2/models/{name}/infer")
        given = triton.InferInput("inputs", [length, 5], "FP32")
        given.set_data_from_numpy(np.full((length, 5), 0.5, np.float32))
        with triton.InferenceServerClient(self.server.grpc) as client:
            client.infer("lesson", [given])
        self._ended(INFER, "GRPC", "OK", "ok")
        self._computed(length, length)
        self.inferences += 1

    def burst(self) -> None:
        """Some of everything that is answered at once."""
        for length in (1, 3, 8):
            self.attend(length)
        self.attend(2, 2, 5)
        self.attend(4, query="?backend=eager")
        self.infer(6)
        self.send((422, "invalid"), "/v1/attention", {"model": "lesson", "inputs": [[1, 2]]})
        self.send((404, "invalid"), "/v1/attention", {"model": "nobody", "inputs": [[1, 2]]})
        self.send((415, "invalid"), "/v1/attention", b"x", headers={"Content-Type": "text/csv"})
        self.send((413, "rejected"), "/v1/attention", b"x" * ((6 << 20) + 1))
        self.send((404, "invalid"), "/nowhere", method="GET", route="unmatched")
        self.send((200, "ok"), "/v1/models", method="GET")
        self.send((200, "ok"), "/docs", method="GET")

    def crowd(self) -> None:
        """More long requests than may be in flight, one that cannot wait, and one that leaves."""
        statuses = Counter[int]()
        while not statuses[503]:
            with ThreadPoolExecutor(6) as threads:
                asked = [threads.submit(self._block) for _ in range(6)]
                statuses.update(one.result() for one in asked)
        assert statuses.keys() == {200, 503}, statuses
        for status, outcome in ((200, "ok"), (503, "rejected")):
            self.ended["/v1/attention", "POST", str(status), outcome] += statuses[status]
        self.inferences += statuses[200]
        headers = {"Content-Type": NPY, "X-Request-Timeout-Ms": "100"}
        self.send((504, "expired"), LONG, BLOCKER, headers=headers)
        with raw(self.server) as connection:
            connection.sendall(http_request(BLOCKER, LONG).replace(JSON.encode(), NPY.encode(), 1))
            until(lambda: total(metrics_of(self.server), "attention_queue_sequences") > 0)
        self._ended("/v1/attention", "POST", "499", "cancelled")

    def _block(self) -> int:
        return call(self.server.url, "POST", LONG, BLOCKER, {"Content-Type": NPY}, timeout=60).status

    def _ended(self, route: str, method: str, status: str, outcome: str) -> None:
        self.ended[route, method, status, outcome] += 1

    def _computed(self, *lengths: int) -> None:
        self.inferences += 1
        self.sequences += len(lengths)
        self.tokens += sum(lengths)


def settings() -> dict[str, str]:
    """Of the service that is watched: little room, so that it is soon full, and all that is measured."""
    found = {
        "workers": "2",
        "compute_threads": "2",
        "grpc_port": "0",
        "max_inflight_requests": "4",
        "max_body_mib": "6",
        "shadow_share": "1",
        "drain_grace_s": "0",
    }
    return {PREFIX + name.upper(): value for name, value in found.items()}
