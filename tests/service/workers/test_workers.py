"""Several processes that serve as one, really started."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from serving import ROOT, Server, start_server
from wire import (
    JSON,
    NPY,
    Reply,
    attend,
    call,
    connect,
    http_request,
    metrics_of,
    npy,
    raw,
    read_reply,
    send,
    total,
    until,
)

pytestmark = pytest.mark.server

ADMIN = {"Authorization": "Bearer root"}
BODY = json.dumps({"model": "lesson", "inputs": [[1, 0, 0, 0, 0.5], [0, 1, 0, 0, 0.5]]}).encode()
BLOCKER, BLOCKING = npy(np.zeros((8_192, 64), np.float32)), "/v1/attention?return=outputs"
"""A request that computes for seconds."""


def workers_of(server: Server) -> list[psutil.Process]:
    return server.children("attn-worker")


@contextmanager
def service(artifacts: Path, **environment: str) -> Iterator[Server]:
    running = start_server(artifacts, ATTENTION_WORKERS="2", **environment)
    try:
        yield running
        if running.process.poll() is None:
            assert running.stop() == 0
    finally:
        for child in workers_of(running) if running.process.poll() is None else []:
            child.kill()
        running.process.kill()
        running.process.wait(30)
        assert running.process.stdout is not None
        running.process.stdout.close()


def one_to_each(server: Server) -> list[http.client.HTTPConnection]:
    """A connection to each of two workers that have equally many."""
    found = [connect(server.url, timeout=60) for _ in range(2)]
    for connection in found:
        connection.connect()
    time.sleep(0.2)  # so that they are handed out before anything else connects
    return found


def block(connection: http.client.HTTPConnection) -> Reply:
    with closing(connection):
        return send(connection, "POST", BLOCKING, BLOCKER, {"Content-Type": NPY})


def whole(server: Server) -> bool:
    metrics = metrics_of(server)
    return total(metrics, "attention_workers") == total(metrics, "attention_workers_ready") == 2


def test_a_worker_that_is_killed_costs_what_it_was_computing_and_nothing_else(artifacts: Path):
    """Idle connections go on as if nothing had been; the request it held is answered 503; another worker comes."""
    with service(artifacts) as server, ThreadPoolExecutor(8) as threads:
        alone = attend(server.url, BODY).body
        idle = [connect(server.url) for _ in range(6)]
        for connection in idle:
            assert send(connection, "POST", "/v1/attention", BODY, {"Content-Type": JSON}).body == alone
        held = [threads.submit(block, connection) for connection in one_to_each(server)]
        until(lambda: total(metrics_of(server), "attention_busy_slots") == 2)
        before = metrics_of(server)

        victim = workers_of(server)[0]
        victim.kill()

        statuses = sorted(future.result().status for future in held)
        assert statuses == [200, 503]
        refused = next(future.result() for future in held if future.result().status == 503)
        assert refused.json()["type"] == "/problems/worker-lost"
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        for connection in idle:
            reply = send(connection, "POST", "/v1/attention", BODY, {"Content-Type": JSON})
            assert (reply.status, reply.body) == (200, alone)
            connection.close()

        until(lambda: whole(server), 60)
        after = metrics_of(server)
        assert victim.pid not in [worker.pid for worker in workers_of(server)]
        assert total(after, "attention_worker_restarts_total") == 1
        for name in ("attention_requests_received_total", "attention_requests_total", "attention_batch_tokens_sum"):
            assert total(after, name) >= total(before, name), name
        lost = total(after, "attention_requests_total", outcome="failed")
        # What the victim said last: the request that it computed, and the scrape itself, if that was its own to answer.
        assert lost in (1, 2)


def test_nothing_that_arrives_while_a_worker_dies_is_left_without_an_answer(artifacts: Path):
    """Under load, one after the other killed: every request is answered 200 or 503, in full."""
    replies: list[int] = []
    lost: list[str] = []
    done = threading.Event()

    def keep_posting(url: str) -> None:
        with closing(connect(url)) as connection:
            while not done.is_set():
                try:
                    reply = send(connection, "POST", "/v1/attention", BODY, {"Content-Type": JSON})
                except (OSError, http.client.HTTPException) as error:
                    lost.append(repr(error))
                    connection.close()
                    continue
                replies.append(reply.status)
                if reply.headers.get("connection") == "close":
                    connection.close()

    with service(artifacts) as server:
        threads = [threading.Thread(target=keep_posting, args=[server.url]) for _ in range(6)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            seen = len(replies)
            until(lambda seen=seen: len(replies) > seen + 200, 60)
            workers_of(server)[0].kill()
            until(lambda: whole(server), 60)
        done.set()
        for thread in threads:
            thread.join(30)

    assert set(replies) <= {200, 503}
    assert replies.count(503) <= 2 * len(threads)
    # An answer that was leaving is cut off; each connection can lose one each time.
    assert len(lost) <= 2, lost


def test_a_worker_that_is_told_to_end_leaves_in_good_order(artifacts: Path):
    """SIGTERM to one of them: what it computes is answered, its idle connections move, another takes its place."""
    with service(artifacts, ATTENTION_DRAIN_GRACE_S="0.2") as server, ThreadPoolExecutor(8) as threads:
        idle = [connect(server.url) for _ in range(4)]
        for connection in idle:
            assert send(connection, "POST", "/v1/attention", BODY, {"Content-Type": JSON}).status == 200
        held = [threads.submit(block, connection) for connection in one_to_each(server)]
        until(lambda: total(metrics_of(server), "attention_busy_slots") == 2)

        leaver = workers_of(server)[0]
        leaver.send_signal(signal.SIGTERM)
        leaver.wait(60)

        assert [future.result().status for future in held] == [200, 200]
        for connection in idle:
            assert send(connection, "POST", "/v1/attention", BODY, {"Content-Type": JSON}).status == 200
            connection.close()
        until(lambda: whole(server), 60)


def test_metrics_are_those_of_all_workers(server: Server):
    """Whoever answers the scrape: what was sent over many connections is what was counted."""
    before = metrics_of(server)
    for _ in range(7):  # each on a connection of its own
        assert attend(server.url, BODY).status == 200
    after = metrics_of(server)

    labels = {"route": "/v1/attention", "status": "200"}
    counted = total(after, "attention_requests_total", **labels) - total(before, "attention_requests_total", **labels)
    assert counted == 7
    assert total(after, "attention_workers") == total(after, "attention_workers_ready") == 2
    assert total(after, "attention_ready") == 1
    received, ended = total(after, "attention_requests_received_total"), total(after, "attention_requests_total")
    assert received == ended + total(after, "attention_requests_in_progress")


def test_a_service_is_ready_once_all_its_workers_are(artifacts: Path):
    """A worker that starts takes a core; whoever sends it work by then would find half a service."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTENTION_")}
    environment |= {"ATTENTION_ARTIFACTS": str(artifacts), "ATTENTION_WORKERS": "2", "ATTENTION_DEVICE": "cpu"}
    command = [sys.executable, "-m", "service", "serve", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"

    def status() -> int:
        try:
            return call(url, "GET", "/healthz/ready").status
        except OSError:
            return 0

    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: status() == 200, 100)
            text = call(url, "GET", "/metrics").body.decode()
        finally:
            process.terminate()

    assert "attention_workers_ready 2.0" in text.splitlines()


def put(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    spec = {"name": name, "version": "1", "embed_dim": 5, "num_heads": 1, "head_dim": 2, "seed": 1, "source": "a test"}
    (folder / name / "spec.json").write_text(json.dumps(spec))


def test_what_is_loaded_and_unloaded_is_so_in_every_worker_and_in_those_to_come(artifacts: Path, tmp_path: Path):
    put(tmp_path, "there")

    def statuses(server: Server, name: str) -> set[int]:
        body = {"model": name, "inputs": [[1, 0, 0, 0, 0.5]]}
        return {attend(server.url, body).status for _ in range(6)}

    with service(artifacts, ATTENTION_MODEL_REPOSITORY=str(tmp_path), ATTENTION_ADMIN_KEYS="root") as server:
        assert statuses(server, "there") == {200}
        assert call(server.url, "POST", "/v1/models/there/unload", headers=ADMIN).status == 200
        assert statuses(server, "there") == {404}

        put(tmp_path, "new")
        assert statuses(server, "new") == {404}
        assert call(server.url, "POST", "/v1/models/new/load", headers=ADMIN).status == 200
        assert statuses(server, "new") == {200}

        workers_of(server)[0].kill()
        until(lambda: whole(server), 60)
        assert statuses(server, "there") == {404}
        assert statuses(server, "new") == {200}

        with ThreadPoolExecutor(8) as threads:  # in whatever order, all workers end up with the same
            verbs = ["load", "unload"] * 4
            changed = threads.map(
                lambda verb: call(server.url, "POST", f"/v1/models/new/{verb}", headers=ADMIN).status, verbs
            )
            assert set(changed) <= {200, 404}
        assert len(statuses(server, "new")) == 1


def test_statistics_are_those_of_all_workers(artifacts: Path):
    with service(artifacts) as server:
        for _ in range(6):
            assert attend(server.url, BODY).status == 200

        (found,) = call(server.url, "GET", "/v2/models/lesson/stats").json()["model_stats"]

    assert found["inference_count"] == 12 // 2
    assert found["inference_stats"]["success"]["count"] == 6
    assert found["inference_stats"]["success"]["ns"] > 0
    assert found["last_inference"] > 0


def test_a_rate_holds_over_all_workers(artifacts: Path):
    """Whether a caller keeps one connection or opens many."""
    with service(artifacts, ATTENTION_RATE_LIMIT="5/hour", ATTENTION_API_KEYS="a,b") as server:
        many = [attend(server.url, BODY, x_api_key="a").status for _ in range(8)]
        with closing(connect(server.url)) as connection:
            headers = {"Content-Type": JSON, "X-API-Key": "b"}
            one = [send(connection, "POST", "/v1/attention", BODY, headers).status for _ in range(8)]

    assert many == one == [200] * 5 + [429] * 3


def test_a_second_signal_ends_it_at_once(artifacts: Path):
    with service(artifacts, ATTENTION_DRAIN_GRACE_S="20") as server, contextlib.ExitStack() as stack:
        stack.enter_context(raw(server))
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        started = time.monotonic()

        assert server.stop() == 0
        assert time.monotonic() - started < 10
    assert "Traceback" not in "".join(server.log), "it was asked to end so"


def test_a_worker_is_replaced_without_the_nursery_too(artifacts: Path):
    with service(artifacts) as server:
        (nursery,) = server.children("attn-nursery")
        nursery.kill()
        workers_of(server)[0].kill()
        until(lambda: total(metrics_of(server), "attention_worker_restarts_total") == 1 and whole(server), 100)

        assert any("the nursery has ended" in line for line in server.log)
        assert len(workers_of(server)) == 1  # the other was started as a program
        assert attend(server.url, BODY).status == 200


def test_workers_end_when_their_supervisor_is_killed(artifacts: Path):
    """And answer what they had accepted."""
    with service(artifacts) as server, ThreadPoolExecutor(1) as threads:
        workers = workers_of(server)
        held = threads.submit(call, server.url, "POST", BLOCKING, BLOCKER, {"Content-Type": NPY})
        until(lambda: total(metrics_of(server), "attention_busy_slots") == 1)
        server.process.kill()

        assert held.result().status == 200
        gone, alive = psutil.wait_procs(workers, 30)
        assert not alive, gone


def test_connections_are_spread_over_the_workers(artifacts: Path):
    with service(artifacts) as server, contextlib.ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(raw(server))
            connection.sendall(http_request(BODY))
            assert read_reply(stack.enter_context(connection.makefile("rb")))[0] == 200

        port = int(server.url.rpartition(":")[2])
        open_ones = [
            sum(c.laddr.port == port and c.status == psutil.CONN_ESTABLISHED for c in worker.net_connections())
            for worker in workers_of(server)
        ]
        assert open_ones == [4, 4]


def test_what_keeps_a_worker_from_starting_is_said_in_one_line(artifacts: Path):
    """And the exit code is 1, as with one process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTENTION_")}
    environment |= {
        "ATTENTION_ARTIFACTS": str(artifacts),
        "ATTENTION_WORKERS": "2",
        "ATTENTION_DEVICE": "cpu",
        "ATTENTION_DEFAULT_MODEL": "nobody",
    }
    command = [sys.executable, "-m", "service", "serve", "--port", "0"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)

    assert ended.returncode == 1
    assert "there is no model 'nobody'; there are lesson" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_grpc_is_served_by_all_workers_on_one_port(artifacts: Path):
    import tritonclient.grpc

    with service(artifacts, ATTENTION_GRPC_PORT="0") as server:
        for _ in range(6):
            with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
                tensor = tritonclient.grpc.InferInput("inputs", [2, 5], "FP32")
                tensor.set_data_from_numpy(np.eye(2, 5, dtype=np.float32))
                assert client.infer("lesson", [tensor]).as_numpy("outputs").shape == (2, 3)
        labels = {"route": "/inference.GRPCInferenceService/ModelInfer", "status": "OK"}

        assert total(metrics_of(server), "attention_requests_total", **labels) == 6
