"""The service on a real Ray cluster of two nodes: the same bytes, what ends is replaced, and it grows and shrinks."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from wire import JSON, NPY, NPZ, SAFETENSORS, call, http_request, npy, safetensors_file

from models.repository import EncoderEntry, write
from tests.encoders import draw_weights, make_spec, word_pieces
from tests.serving import start_server

pytest.importorskip("ray.serve", reason="Ray is not installed: `make test-ray` installs it")

import ray
from callers import URL, Load, Request

from deploy.ray import local
from deploy.ray.local import deploy, document, eventually, replicas, running

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.skipif(not local.lonely(), reason="there are other networks than loopback: run by `make test-ray`"),
]

TWO = {"num_replicas": 2, "max_replicas_per_node": 1, "autoscaling_config": None}
ONE = {"num_replicas": 1, "autoscaling_config": None}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    spec = make_spec(name="minilm-l6", description="A tiny one.")
    write(folder, EncoderEntry(spec, draw_weights(spec), word_pieces(), ""))
    return folder


@pytest.fixture(scope="module")
def own(artifacts, repository):
    """The settings that the replicas and the single process have in common."""
    return {"artifacts": str(artifacts), "model_repository": str(repository), "log_level": "warning"}


@pytest.fixture(scope="module")
def single(artifacts, repository):
    """The same service in one process."""
    server = start_server(artifacts, ATTENTION_MODEL_REPOSITORY=str(repository))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def requests(single):
    """Requests in every format, small and large, and the bytes that a single process answers."""
    random = np.random.RandomState(7)
    asked = []
    for n in (1, 3, 17, 128, 700):
        x = random.standard_normal((n, 64)).astype(np.float32)
        options = "?return=outputs" if n > 128 else ""
        asked.append((f"/v1/attention{options}", json.dumps({"inputs": x.tolist()}).encode(), JSON, JSON))
        asked.append((f"/v1/attention{options}", safetensors_file({"inputs": x}), SAFETENSORS, SAFETENSORS))
        asked.append((f"/v1/attention{options}", npy(x), NPY, NPZ))
        tensor = {"name": "inputs", "shape": [1, n, 64], "datatype": "FP32"}
        outputs = [{"name": "outputs"}]
        flat = {"inputs": [tensor | {"data": x.ravel().tolist()}], "outputs": outputs}
        asked.append(("/v2/models/single-head-64/infer", json.dumps(flat).encode(), JSON, "*/*"))
    ragged = [random.standard_normal((n, 5)).round(3).tolist() for n in (2, 5, 9)]
    asked.append(("/v1/attention", json.dumps({"model": "lesson", "inputs": ragged, "top_k": 2}).encode(), JSON, JSON))
    asked.append(("/v1/text/attention", json.dumps({"text": "the cat sat"}).encode(), JSON, JSON))
    asked.append(("/v1/explain", b"{}", JSON, JSON))
    asked.append(("/v1/explain", json.dumps({"model": "lesson"}).encode(), JSON, JSON))
    asked.append(("/v1/exercises", json.dumps({"seed": 7, "level": "causal"}).encode(), JSON, JSON))
    found = []
    for path, body, takes, gives in asked:
        headers = {"Content-Type": takes, "Accept": gives}
        reply = call(single.url, "POST", path, body, headers)
        assert reply.status == 200, reply.body
        found.append(Request(path, body, headers, reply.body))
    return found


@pytest.fixture(scope="module")
def slow(single):
    """A request that computes for half a second or so."""
    path, headers = "/v1/attention?return=outputs", {"Content-Type": NPY, "Accept": NPZ}
    body = npy(np.random.RandomState(1).standard_normal((1, 9_000, 64)).astype(np.float32))
    return Request(path, body, headers, call(single.url, "POST", path, body, headers).body)


def small(requests):
    """Those that take no time to speak of."""
    return [
        request for request in requests if request.path.startswith(("/v1/att", "/v2")) and len(request.body) < 99_000
    ]


FRONTS = {"proxy": {}, "haproxy": local.HAPROXY}
behind_proxy = pytest.mark.parametrize("front", ["proxy"], indirect=True)


@pytest.fixture(scope="module", params=FRONTS)
def front(request):
    """What is before the ingress."""
    return request.param


@pytest.fixture(scope="module")
def nodes(front, own, single, tmp_path_factory):
    """Two nodes, with an ingress and an engine on each."""
    with local.nodes(2, cpus=4, environment=FRONTS[front]) as nodes:
        deploy(document(own, Ingress=TWO, Engine=TWO), tmp_path_factory.mktemp("deployed"))
        yield nodes


def test_answers_are_those_of_a_single_process_bit_by_bit(nodes, requests):
    with ThreadPoolExecutor(8) as callers:
        replies = list(callers.map(lambda r: call(URL, "POST", r.path, r.body, r.headers), requests * 3))

    assert [reply.status for reply in replies] == [200] * len(replies)
    for request, reply in zip(requests * 3, replies, strict=True):
        assert reply.body == request.right, (request.path, request.headers)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/attention", {"model": "nobody", "inputs": [[1.0]]}),
        ("/v1/attention", {"inputs": [[1.0, 2.0]]}),
        ("/v1/attention", {"model": "lesson", "inputs": [[1e30] * 5] * 2, "dtype": "float16"}),
        ("/v2/models/lesson/infer", {"inputs": []}),
    ],
)
def test_errors_are_those_of_a_single_process(nodes, single, path, body):
    there, here = (
        call(url, "POST", path, json.dumps(body).encode(), {"Content-Type": JSON}) for url in (URL, single.url)
    )

    assert there.status == here.status != 200
    assert {**there.json(), "instance": ""} == {**here.json(), "instance": ""}


@behind_proxy
def test_ready_models_and_pages_are_served_and_metrics_say_where_they_are(nodes, single):
    for path in ("/healthz/ready", "/v1/models", "/v2", "/", "/docs", "/problems", "/v1/misconceptions"):
        there, here = call(URL, "GET", path), call(single.url, "GET", path)
        assert (path, there.status) == (path, here.status)
        assert there.headers["content-type"] == here.headers["content-type"]
        if path not in ("/v1/models", "/docs"):  # which have times and addresses
            assert there.body == here.body

    refused = call(URL, "GET", "/metrics")
    assert (refused.status, refused.json()["type"]) == (501, "/problems/not-offered")
    assert "metrics-export-port" in refused.json()["detail"]


def exported(name, *labels):
    """The samples of a name and labels that Ray's agents show to Prometheus, by series."""
    found = {}
    for node in ray.nodes():
        if node["Alive"]:
            page = call(f"http://127.0.0.1:{node['MetricsExportPort']}", "GET", "/metrics").body.decode()
            for line in page.splitlines():
                series, _, value = line.rpartition(" ")
                if series.startswith(f"ray_attention_{name}{{") and all(label in series for label in labels):
                    found[series] = float(value)
    return found


def counted(name, *labels):
    return sum(exported(name, *labels).values())


@behind_proxy
def test_prometheus_sees_every_replica_by_rays_agents(nodes, requests):
    before = counted("requests_received_total")
    for _ in range(20):
        call(URL, "POST", requests[0].path, requests[0].body, requests[0].headers)

    eventually(lambda: counted("requests_received_total") >= before + 20, 40)
    eventually(lambda: counted("request_duration_seconds_count", 'deployment="Ingress"') > 0, 40)
    eventually(lambda: len({series.partition('replica="')[2][:8] for series in exported("ready")}) == 4, 40)
    eventually(lambda: counted("batch_sequences_count", 'deployment="Engine"') > 0, 40)


def killed(requests, slow, deployment, count):
    """Kill replicas while they compute, and wait until there are two again; what became of small and slow requests."""
    with Load(small(requests), callers=3) as load, Load([slow], callers=4) as heavy:
        load.all_right_again()
        before = replicas(deployment)
        for process in before[:count]:
            process.kill()
        eventually(lambda: running(deployment) == 2 and len(set(replicas(deployment)) - set(before)) == count, 120)
        load.all_right_again()
    return load, heavy


def test_when_every_engine_is_killed_each_request_is_told_to_come_again_and_others_take_over(nodes, requests, slow):
    load, heavy = killed(requests, slow, "Engine", count=2)

    load.nothing_lost()
    heavy.nothing_lost()
    assert heavy.kinds["503 engine-lost"] >= 1
    assert set(load.kinds + heavy.kinds) <= {"right", "503 engine-lost", "503 not-ready"}


def test_an_ingress_that_is_killed_loses_no_request_and_is_replaced(nodes, front, requests, slow):
    load, heavy = killed(requests, slow, "Ingress", count=1)

    load.nothing_lost()
    if front == "proxy":
        heavy.nothing_lost()
        assert set(load.kinds + heavy.kinds) <= {"right", "503 worker-lost"}  # if it had any in hand
    else:  # HAProxy sends on what fits into its memory
        assert set(load.kinds) == {"right"}
        assert set(heavy.kinds) <= {"right", "500 plain"}


@behind_proxy
def test_a_node_that_is_killed_under_load_loses_no_request_and_one_that_joins_takes_its_part(nodes, requests):
    with Load(small(requests), callers=6) as load:
        load.all_right_again()
        nodes.kill()
        eventually(lambda: running("Engine") == running("Ingress") == 1, 60)
        load.all_right_again()
        nodes.start()
        eventually(lambda: running("Engine") == running("Ingress") == 2, 90)
        load.all_right_again()

    load.nothing_lost()


@behind_proxy
def test_what_a_client_does_not_wait_for_is_not_computed(nodes):
    def cancelled(deployment, call):
        logs = nodes.logs.glob(f"replica_attention_{deployment}_*.log")
        return sum(log.read_text().count(f"{call} CANCELLED") for log in logs)

    before = cancelled("Ingress", "POST /"), cancelled("Engine", "CALL infer")
    with socket.create_connection(("127.0.0.1", 8000), 10) as connection:
        body = npy(np.zeros((12, 12_000, 64), np.float32))
        connection.sendall(http_request(body, "/v1/attention?return=outputs").replace(JSON.encode(), NPY.encode(), 1))
        time.sleep(1)

    eventually(lambda: cancelled("Ingress", "POST /") == before[0] + 1, 30)
    eventually(lambda: cancelled("Engine", "CALL infer") == before[1] + 1, 30)


@behind_proxy
def test_what_is_too_much_is_refused_and_what_is_new_takes_over_without_a_loss(nodes, own, requests, slow, tmp_path):
    """Fewer may wait from now on, and the settings are others: a roll-out, under load."""
    narrow = ONE | {"max_ongoing_requests": 1, "max_queued_requests": 2}
    with Load(small(requests), callers=2) as load:
        load.all_right_again()
        deploy(document(own | {"max_sequences": 64}, Ingress=ONE, Engine=narrow), tmp_path)
        load.all_right_again()
    load.nothing_lost()

    with ThreadPoolExecutor(12) as callers:
        replies = list(callers.map(lambda _: call(URL, "POST", slow.path, slow.body, slow.headers), range(12)))
    refused = [reply for reply in replies if reply.status != 200]
    assert len(refused) < len(replies)
    assert {(reply.status, reply.json()["type"]) for reply in refused} == {(503, "/problems/queue-full")}
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)


@behind_proxy
def test_engines_come_with_the_load_and_go_with_it_and_lose_nothing(nodes, own, requests, slow, tmp_path):
    scaled = {
        "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 1,
        "upscale_delay_s": 1, "downscale_delay_s": 2, "metrics_interval_s": 0.5, "look_back_period_s": 2,
    }  # fmt: skip
    deploy(document(own, Ingress=ONE, Engine={"autoscaling_config": scaled}), tmp_path)
    assert running("Engine") == 1

    with Load(small(requests), callers=1) as load:
        with Load([slow], callers=4) as heavy:
            eventually(lambda: running("Engine") == 2, 60)
        eventually(lambda: running("Engine") == 1 and len(replicas("Engine")) == 1, 90)
        load.all_right_again()

    load.nothing_lost()
    assert set(heavy.kinds) == {"right"}
