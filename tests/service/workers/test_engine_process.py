"""One process that computes for two workers, really started."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
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
    NPZ,
    SAFETENSORS,
    Reply,
    attend,
    call,
    connect,
    metrics_of,
    npy,
    safetensors_file,
    send,
    total,
    until,
)

from models.repository import EncoderEntry, write
from tests.encoders import draw_weights, make_spec, word_pieces

pytestmark = pytest.mark.server

ADMIN = {"Authorization": "Bearer root"}
BODY = json.dumps({"model": "lesson", "inputs": [[1, 0, 0, 0, 0.5], [0, 1, 0, 0, 0.5]]}).encode()
OUTPUTS = "/v1/attention?return=outputs"
BLOCKER = npy(np.zeros((3, 8_192, 64), np.float32))
"""A request that computes for a second or more, and some of which waits nearly as long."""
WAITER = npy(np.zeros((1_000, 64), np.float32))
"""One that is not so small that it would be computed at once."""


def workers_of(server: Server) -> list[psutil.Process]:
    return server.children("attn-worker")


def engine_of(server: Server) -> psutil.Process:
    (engine,) = server.children("attn-engine")
    return engine


@contextmanager
def service(artifacts: Path, **environment: str) -> Iterator[Server]:
    running = start_server(
        artifacts,
        **{"ATTENTION_WORKERS": "2", "ATTENTION_ENGINE": "process", "ATTENTION_COMPUTE_THREADS": "1"} | environment,
    )
    try:
        yield running
        if running.process.poll() is None:
            assert running.stop() == 0
    finally:
        if running.process.poll() is None:
            for child in psutil.Process(running.process.pid).children():
                child.kill()
            running.process.kill()
        running.process.wait(30)
        assert running.process.stdout is not None
        running.process.stdout.close()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    spec = make_spec(name="minilm-l6", description="A tiny one.")
    write(folder, EncoderEntry(spec, draw_weights(spec), word_pieces(), ""))
    return folder


@pytest.fixture(scope="module")
def apart(artifacts: Path, repository: Path) -> Iterator[Server]:
    """Two workers and an engine, for tests that kill nobody."""
    environment = {"ATTENTION_MODEL_REPOSITORY": str(repository), "ATTENTION_ADMIN_KEYS": "root"}
    with service(artifacts, **environment) as running:
        yield running


@pytest.fixture(scope="module")
def lone(artifacts: Path, repository: Path) -> Iterator[Server]:
    """The same as a single process."""
    running = start_server(artifacts, ATTENTION_MODEL_REPOSITORY=str(repository))
    yield running
    assert running.stop() == 0


def post(server: Server, body: bytes, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(server.url, "POST", OUTPUTS, body, {"Content-Type": NPY} | named, 100)


def queued(server: Server) -> float:
    return total(metrics_of(server), "attention_queue_requests")


def busy(server: Server) -> bool:
    return total(metrics_of(server), "attention_busy_slots") == 1


def whole(server: Server) -> bool:
    metrics = metrics_of(server)
    return total(metrics, "attention_workers") == total(metrics, "attention_workers_ready") == 2


def replaced(server: Server, what: str) -> None:
    """Wait until one has been started in the place of an `engine` or a `worker`, and all is well again."""
    name = f"attention_{what}_restarts_total"
    until(lambda: total(metrics_of(server), name) == 1 and whole(server), 100)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def document(**fields: object) -> bytes:
    return json.dumps(fields).encode()


FEW = [random(5, 5).tolist(), random(2, 5).tolist()]
EVERYTHING = ["outputs", "weights", "scores", "query", "key", "value"]
MASKS = [[[False] * 5, *[[True, False, True, True, True]] * 4], None]
OWN = {name: random(5, 3).tolist() for name in ("query", "key", "value")}
LARGE = random(700, 64)

REQUESTS: dict[str, tuple[str, bytes, str]] = {
    "plain": ("/v1/attention", document(model="lesson", inputs=FEW), JSON),
    "one": ("/v1/attention", document(model="lesson", inputs=FEW[0], **{"return": EVERYTHING}), JSON),
    "masked": ("/v1/attention", document(model="lesson", inputs=FEW, attn_mask=MASKS, **{"return": EVERYTHING}), JSON),
    "biased": ("/v1/attention", document(model="lesson", inputs=FEW[0], attn_bias=random(5, 5).tolist()), JSON),
    "causal": ("/v1/attention", document(model="lesson", inputs=FEW, is_causal=True, scale=0.3), JSON),
    "sparse": ("/v1/attention", document(model="lesson", inputs=FEW, top_k=2, decimals=3), JSON),
    "halved": ("/v1/attention", document(model="lesson", inputs=FEW, dtype="float16", encoding="base64"), JSON),
    "own": ("/v1/attention", document(inputs=FEW, projections=OWN, is_causal=True), JSON),
    "heads": ("/v1/attention?model=multi-head-384x12&average_heads=true", npy(random(4, 384)), NPY),
    "bertviz": ("/v1/attention?model=multi-head-384x12&format=bertviz", npy(random(4, 384)), NPY),
    "large": ("/v1/attention?return=outputs,weights", npy(LARGE), NPY),
    "stack": ("/v1/attention", safetensors_file({"inputs": random(3, 6, 64)}), SAFETENSORS),
    "text": ("/v1/text/attention", document(text=["the cat", "a dog"], **{"return": ["weights", "outputs"]}), JSON),
    "layers": ("/v1/text/attention?layers=0&average_heads=true", document(text="the cat"), JSON),
    "overflow": ("/v1/attention", document(model="lesson", inputs=[[1e30] * 5]), JSON),
    "large half": ("/v1/attention?dtype=float16", npy(random(3, 64) * np.float32(1e6)), NPY),
    "wrong width": ("/v1/attention", document(model="lesson", inputs=[[1, 2]]), JSON),
    "no such model": ("/v1/attention", document(model="lessen", inputs=[[1, 2]]), JSON),
    "too many": ("/v1/attention?return=scores", npy(np.zeros((16_000, 64), np.float32)), NPY),
    "no such layer": ("/v1/text/attention?layers=77", document(text="the cat"), JSON),
    "v2": ("/v2/models/lesson/infer", document(inputs=[
        {"name": "inputs", "shape": [2, 5], "datatype": "FP32", "data": random(10).tolist()}]), JSON),
    "v2 padded": ("/v2/models/lesson/infer", document(inputs=[
        {"name": "inputs", "shape": [2, 4, 5], "datatype": "FP32", "data": random(40).tolist()},
        {"name": "lengths", "shape": [2], "datatype": "INT64", "data": [2, 4]}], parameters={"top_k": 2}), JSON),
    "v2 own": ("/v2/models/projections/infer", document(inputs=[
        {"name": "inputs", "shape": [3, 5], "datatype": "FP32", "data": random(15).tolist()},
        *({"name": f"projections.{name}", "shape": [5, 3], "datatype": "FP32", "data": OWN[name]} for name in OWN),
    ]), JSON),
    "v2 text": ("/v2/models/minilm-l6/infer", document(inputs=[
        {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["the cat", "a"]}]), JSON),
    "v2 refused": ("/v2/models/lesson/infer", document(inputs=[
        {"name": "inputs", "shape": [1, 5], "datatype": "FP32", "data": [1e30] * 5}]), JSON),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_answers_and_refusals_are_those_of_a_lone_process_bit_by_bit(apart: Server, lone: Server, name: str):
    path, body, kind = REQUESTS[name]
    accepts = [JSON] if path.startswith("/v2") or "bertviz" in path or b"decimals" in body or b"base64" in body else [
        JSON, SAFETENSORS, NPZ]  # fmt: skip
    for accept in accepts:
        replies = [call(s.url, "POST", path, body, {"Content-Type": kind, "Accept": accept}) for s in (apart, lone)]
        found, expected = replies
        assert found.status == expected.status
        if found.status == 200:
            assert found.body == expected.body
        else:
            one, other = ({k: v for k, v in reply.json().items() if k != "instance"} for reply in replies)
            assert one == other
            assert found.headers.get("retry-after") == expected.headers.get("retry-after")


@pytest.mark.parametrize("backend", ["onnx", "eager", "reference"])
def test_every_backend_is_the_one_asked_for(apart: Server, lone: Server, backend: str):
    for name in ("one", "masked", "text"):
        path, body, kind = REQUESTS[name]
        found, expected = (
            call(s.url, "POST", f"{path}?backend={backend}", body, {"Content-Type": kind}) for s in (apart, lone)
        )
        assert found.json()["backend"]["name"] == backend
        assert found.body == expected.body


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v2/models/lesson", "/v2/models/multi-head-384x12/config", "/healthz/ready"]
)
def test_what_is_said_of_models_is_what_a_lone_process_says(apart: Server, lone: Server, path: str):
    assert call(apart.url, "GET", path).json() == call(lone.url, "GET", path).json()


def test_batches_form_of_requests_of_all_workers(artifacts: Path):
    """While one computes, what comes to either worker waits in one queue, and is computed together."""
    with service(artifacts, ATTENTION_MAX_BATCH_TOKENS="16384") as server, ThreadPoolExecutor(12) as threads:
        alone = post(server, WAITER).body
        blocked = threads.submit(post, server, BLOCKER)
        until(lambda: busy(server))
        before = metrics_of(server)
        replies = [threads.submit(post, server, WAITER) for _ in range(8)]
        until(lambda: total(metrics_of(server), "attention_inflight_tokens") == 3 * 8_192 + 8 * 1_000)
        connections = [len(worker.net_connections()) for worker in workers_of(server)]
        assert [reply.result().body for reply in replies] == [alone] * 8
        assert blocked.result().status == 200
        # The engine hears of an answer that has left after its client does.
        until(lambda: total(metrics_of(server), "attention_inflight_tokens") == 0)
        after = metrics_of(server)

    assert min(connections) >= 3, "both workers had requests"
    counted = [total(m, "attention_batch_sequences_count") for m in (before, after)]
    assert counted[1] - counted[0] <= 3 + 1
    assert total(after, "attention_batch_sequences_sum") == 1 + 3 + 8
    assert total(after, "attention_queue_requests") == 0


def test_metrics_count_everything_once(apart: Server):
    def delta(act: Callable[[], object]) -> Callable[..., float]:
        before = metrics_of(apart)
        act()
        after = metrics_of(apart)
        return lambda name, **labels: total(after, name, **labels) - total(before, name, **labels)

    def post() -> None:
        for _ in range(6):
            assert attend(apart.url, BODY).status == 200

    counted = delta(post)

    assert counted("attention_requests_total", route="/v1/attention", status="200") == 6
    assert counted("attention_batch_sequences_sum") == counted("attention_batch_tokens_sum") / 2 == 6
    for stage in ("decode", "queue", "compute", "encode"):
        assert counted("attention_stage_duration_seconds_count", stage=stage) == 6
    found = metrics_of(apart)
    received, ended = total(found, "attention_requests_received_total"), total(found, "attention_requests_total")
    assert received == ended + total(found, "attention_requests_in_progress")
    assert total(found, "attention_workers") == total(found, "attention_workers_ready") == 2
    assert total(found, "attention_ready") == total(found, "attention_slots") == 1
    assert total(found, "attention_backend_info") == 3
    assert total(found, "attention_inflight_bytes") == 0
    assert total(found, "attention_parity_difference", model="lesson", pair="eager-onnx") > 0


def test_statistics_are_those_of_workers_and_engine(artifacts: Path):
    with service(artifacts) as server:
        for _ in range(6):
            assert attend(server.url, BODY).status == 200
        assert call(server.url, "POST", "/v2/models/lesson/infer", REQUESTS["v2 refused"][1]).status == 400

        (found,) = call(server.url, "GET", "/v2/models/lesson/stats").json()["model_stats"]

    assert (found["inference_count"], found["execution_count"]) == (6, 7)
    assert found["inference_stats"]["success"]["count"] == 6
    assert found["inference_stats"]["fail"]["count"] == 1


def test_limits_hold_for_all_workers_together_and_what_ends_early_is_counted_once(artifacts: Path):
    """A full queue, a deadline that passes and a client that leaves."""
    with (
        service(artifacts, ATTENTION_MAX_INFLIGHT_REQUESTS="3") as server,
        ThreadPoolExecutor(8) as threads,
    ):
        blocked = threads.submit(post, server, BLOCKER)
        until(lambda: busy(server))
        expired = post(server, WAITER, x_request_timeout_ms="100")
        assert expired.status == 504
        assert "was still queued" in expired.json()["detail"]
        with closing(connect(server.url)) as leaver:
            leaver.request("POST", OUTPUTS, WAITER, {"Content-Type": NPY})
            until(lambda: queued(server) == 2)
        until(lambda: queued(server) == 1)

        waiting = [threads.submit(post, server, WAITER) for _ in range(2)]
        until(lambda: queued(server) == 3)
        for _ in range(2):  # one for each worker
            refused = post(server, WAITER)
            assert (refused.status, refused.json()["type"]) == (503, "/problems/queue-full")
            assert refused.json()["detail"].startswith("3 requests are in flight and 1 more")
            assert int(refused.headers["retry-after"]) >= 1

        assert [reply.result().status for reply in waiting] == [200] * 2
        assert blocked.result().status == 200
        metrics = metrics_of(server)
    assert total(metrics, "attention_expired_total") == 1
    assert total(metrics, "attention_cancelled_total") == 1
    assert (
        total(metrics, "attention_rejected_total") == total(metrics, "attention_rejected_total", reason="requests") == 2
    )
    for outcome, count in {"cancelled": 1, "expired": 1, "rejected": 2}.items():
        assert total(metrics, "attention_requests_total", outcome=outcome) == count


def test_an_engine_that_is_killed_is_replaced_and_what_it_held_is_answered(artifacts: Path):
    with service(artifacts) as server, ThreadPoolExecutor(8) as threads:
        alone = attend(server.url, BODY).body
        held = [threads.submit(post, server, BLOCKER) for _ in range(4)]
        until(lambda: queued(server) == 4)
        before = metrics_of(server)

        engine, workers = engine_of(server), {worker.pid for worker in workers_of(server)}
        engine.kill()

        for reply in (future.result() for future in held):
            assert (reply.status, reply.json()["type"]) == (503, "/problems/engine-lost")
            assert reply.headers["retry-after"] == "1"
        # Until the next one has loaded, nobody is ready, and whoever asks is told so at once.
        assert call(server.url, "GET", "/healthz/live").status == 200
        ready = call(server.url, "GET", "/healthz/ready")
        refused = attend(server.url, BODY)
        assert (ready.status, refused.status) == (503, 503)
        assert "another is being started" in refused.json()["detail"]
        assert total(metrics_of(server), "attention_workers_ready") == 0

        replaced(server, "engine")
        assert engine_of(server).pid != engine.pid
        assert {worker.pid for worker in workers_of(server)} == workers
        assert attend(server.url, BODY).body == alone
        until(lambda: total(metrics_of(server), "attention_inflight_tokens") == 0)  # the engine has heard of that too
        after = metrics_of(server)
    for name in ("attention_requests_received_total", "attention_requests_total", "attention_batch_tokens_sum"):
        assert total(after, name) >= total(before, name), name
    assert (total(after, "attention_engine_restarts_total"), total(after, "attention_worker_restarts_total")) == (1, 0)
    assert total(after, "attention_queue_requests") == 0
    assert total(after, "attention_slots") == 1


def test_nothing_is_left_without_an_answer_while_engine_and_workers_die(artifacts: Path):
    """Under load: every request is answered 200 or 503, in full."""
    replies: list[int] = []
    lost: list[str] = []
    done = threading.Event()

    def keep_posting(url: str) -> None:
        connection = connect(url, 100)
        while not done.is_set():
            try:
                reply = send(connection, "POST", "/v1/attention", BODY, {"Content-Type": JSON})
            except OSError as error:
                lost.append(repr(error))
                connection.close()
                continue
            replies.append(reply.status)
            if reply.status != 200:
                done.wait(0.05)
            if reply.headers.get("connection") == "close":
                connection.close()
        connection.close()

    with service(artifacts) as server:
        threads = [threading.Thread(target=keep_posting, args=[server.url]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for what, victim in (("engine", engine_of(server)), ("worker", workers_of(server)[0])):
            seen = replies.count(200)
            until(lambda seen=seen: replies.count(200) > seen + 50, 60)
            victim.kill()
            replaced(server, what)
        seen = replies.count(200)
        until(lambda seen=seen: replies.count(200) > seen + 50, 60)
        done.set()
        for thread in threads:
            thread.join(100)
        metrics = metrics_of(server)

    assert set(replies) <= {200, 503}
    assert len(lost) <= 1, lost  # an answer that was leaving is cut off
    assert total(metrics, "attention_engine_restarts_total") == total(metrics, "attention_worker_restarts_total") == 1
    assert total(metrics, "attention_inflight_tokens") == 0


def test_what_a_killed_worker_asked_for_is_dropped(artifacts: Path):
    """It no longer counts against the limits, and the other worker's requests are answered."""
    with service(artifacts) as server, ThreadPoolExecutor(8) as threads:
        blocked = [threads.submit(post, server, BLOCKER) for _ in range(4)]
        until(lambda: queued(server) == 4)
        workers_of(server)[0].kill()
        until(lambda: queued(server) < 4)

        statuses = [future.result().status for future in blocked]
        assert set(statuses) == {200, 503}, statuses
        until(lambda: whole(server), 60)
        assert total(metrics_of(server), "attention_inflight_bytes") == 0
        assert total(metrics_of(server), "attention_cancelled_total") == 0


def test_what_was_accepted_is_answered_when_the_service_stops(artifacts: Path):
    with service(artifacts, ATTENTION_DRAIN_GRACE_S="0.5") as server, ThreadPoolExecutor(8) as threads:
        held = [threads.submit(post, server, BLOCKER) for _ in range(3)]
        until(lambda: queued(server) == 3)
        children = psutil.Process(server.process.pid).children()

        assert server.stop() == 0

        assert [future.result().status for future in held] == [200] * 3
        assert not [child for child in children if child.is_running()]


def test_engine_and_workers_end_when_their_supervisor_is_killed(artifacts: Path):
    """And answer what they had accepted."""
    with service(artifacts) as server, ThreadPoolExecutor(2) as threads:
        children = psutil.Process(server.process.pid).children()
        held = [threads.submit(post, server, BLOCKER) for _ in range(2)]
        until(lambda: queued(server) == 2)
        server.process.kill()

        assert [future.result().status for future in held] == [200] * 2
        gone, alive = psutil.wait_procs(children, 60)
        assert not alive, gone


def put(folder: Path, name: str) -> None:
    (folder / name).mkdir(exist_ok=True)
    spec = {"name": name, "version": "1", "embed_dim": 5, "num_heads": 1, "head_dim": 2, "seed": 1, "source": "a test"}
    (folder / name / "spec.json").write_text(json.dumps(spec))


def test_what_is_loaded_and_unloaded_is_so_in_every_worker_and_in_engines_to_come(artifacts: Path, tmp_path: Path):
    put(tmp_path, "there")

    def statuses(server: Server, name: str) -> set[int]:
        body = {"model": name, "inputs": [[1, 0, 0, 0, 0.5]]}
        return {attend(server.url, body).status for _ in range(4)}

    with service(artifacts, ATTENTION_MODEL_REPOSITORY=str(tmp_path), ATTENTION_ADMIN_KEYS="root") as server:
        assert statuses(server, "there") == {200}
        assert call(server.url, "POST", "/v1/models/there/unload", headers=ADMIN).json()["unloaded"] == ["there@1"]
        assert statuses(server, "there") == {404}

        put(tmp_path, "new")
        loaded = call(server.url, "POST", "/v1/models/new/load", headers=ADMIN)
        assert [model["name"] for model in loaded.json()["loaded"]] == ["new"]
        assert statuses(server, "new") == {200}
        assert total(metrics_of(server), "attention_parity_difference", model="there") == 0
        (tmp_path / "new" / "spec.json").write_text("{}")
        assert call(server.url, "POST", "/v1/models/new/load", headers=ADMIN).status == 422
        for _ in range(4):
            (broken,) = call(server.url, "GET", "/v1/models").json()["broken"]
            assert broken["origin"] == "new"
        assert statuses(server, "new") == {200}, "what was served still is"
        put(tmp_path, "new")
        assert call(server.url, "POST", "/v1/models/new/load", headers=ADMIN).status == 200
        assert call(server.url, "POST", "/v1/models/nobody/load", headers=ADMIN).status == 404
        assert call(server.url, "POST", "/v1/models/single-head-64/unload", headers=ADMIN).status == 409

        engine_of(server).kill()
        replaced(server, "engine")
        workers_of(server)[0].kill()
        replaced(server, "worker")
        assert statuses(server, "there") == {404}
        assert statuses(server, "new") == {200}


def test_only_the_engine_loads_a_runtime(apart: Server):
    """Torch is imported where all of them come from, so that it tells nothing."""

    def libraries(process: psutil.Process) -> str:
        return " ".join(part.path for part in process.memory_maps())

    assert "onnxruntime" in libraries(engine_of(apart))
    for process in (psutil.Process(apart.process.pid), *workers_of(apart)):
        assert "onnxruntime" not in libraries(process)


def test_an_answer_is_compared_in_the_shadow_of_the_engine(artifacts: Path):
    with service(artifacts, ATTENTION_SHADOW_SHARE="1") as server:
        assert attend(server.url, BODY).status == 200
        until(lambda: total(metrics_of(server), "attention_shadow_sequences_total") == 1)

        assert total(metrics_of(server), "attention_shadow_sequences_total", outcome="compared") == 1


def test_grpc_is_answered_by_the_engine_too(artifacts: Path):
    import tritonclient.grpc

    with service(artifacts, ATTENTION_GRPC_PORT="0") as server:
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            tensor = tritonclient.grpc.InferInput("inputs", [2, 5], "FP32")
            tensor.set_data_from_numpy(np.eye(2, 5, dtype=np.float32))
            assert client.infer("lesson", [tensor]).as_numpy("outputs").shape == (2, 3)
        assert total(metrics_of(server), "attention_batch_sequences_sum") == 1


def test_a_lone_worker_may_have_an_engine_apart(artifacts: Path):
    with service(artifacts, ATTENTION_WORKERS="1") as server:
        assert attend(server.url, BODY).status == 200
        assert len(workers_of(server)) == 1
        assert engine_of(server).is_running()


def test_what_keeps_the_engine_from_starting_is_said_in_one_line(artifacts: Path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTENTION_")}
    environment |= {
        "ATTENTION_ARTIFACTS": str(artifacts),
        "ATTENTION_WORKERS": "2",
        "ATTENTION_ENGINE": "process",
        "ATTENTION_DEVICE": "cpu",
        "ATTENTION_DEFAULT_MODEL": "nobody",
    }
    command = [sys.executable, "-m", "service", "serve", "--port", "0"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)

    assert ended.returncode == 1
    assert "there is no model 'nobody'; there are lesson" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_signal_ends_the_engine_at_once_too(artifacts: Path):
    with service(artifacts, ATTENTION_DRAIN_GRACE_S="20") as server, ThreadPoolExecutor(2) as threads:
        children = psutil.Process(server.process.pid).children()
        held = threads.submit(post, server, BLOCKER)
        until(lambda: busy(server))
        server.process.send_signal(signal.SIGTERM)
        until(lambda: call(server.url, "GET", "/healthz/ready").status == 503)

        assert server.stop() == 0
        held.exception()
        assert not [child for child in children if child.is_running()]
