"""Models loaded and unloaded over HTTP, in a service that really runs."""

import json
import select
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Server, start_server
from wire import JSON, NPY, PROBLEM, Reply, attend, bits, call, connect, npy, send

pytestmark = pytest.mark.server

ADMIN = {"X-API-Key": "root"}
INPUTS = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
BACKENDS = ("onnx", "eager")
THREADS = 4


class Service:
    """A running service and its model repository."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder, self.url = server, folder, server.url

    def put(self, place: str, seed: int = 1, **fields: Any) -> None:
        """An entry of the repository, as if it had been there for ever: the spec is moved into its place."""
        name, _, version = place.partition("/")
        (self.folder / place).mkdir(parents=True, exist_ok=True)
        spec = {
            "name": name, "version": version or "1", "embed_dim": 8, "num_heads": 2, "head_dim": 4, "seed": seed,
            "source": "made by a test", **fields,
        }  # fmt: skip
        (self.folder / place / ".new").write_text(json.dumps(spec))
        (self.folder / place / ".new").replace(self.folder / place / "spec.json")

    def remove(self, place: str) -> None:
        shutil.rmtree(self.folder / place)

    def post(self, action: str, name: str, headers: dict[str, str] | None = None) -> Reply:
        return call(self.url, "POST", f"/v1/models/{name}/{action}", headers=ADMIN if headers is None else headers)

    def load(self, name: str) -> Reply:
        return self.post("load", name)

    def unload(self, name: str) -> Reply:
        return self.post("unload", name)

    def ask(self, name: str, **headers: str) -> Reply:
        return attend(self.url, {"model": name, "inputs": INPUTS.tolist()}, **headers)

    def ids(self, headers: dict[str, str] = ADMIN) -> list[str]:
        models = call(self.url, "GET", "/v1/models", headers=headers).json()["models"]
        return [f"{model['name']}@{model['version']}" for model in models]

    def broken(self) -> dict[str, str]:
        entries = call(self.url, "GET", "/v1/models", headers=ADMIN).json()["broken"]
        return {entry["origin"]: entry["reason"] for entry in entries}

    def ready(self) -> int:
        return call(self.url, "GET", "/healthz/ready").status

    def parity_series(self, name: str) -> list[str]:
        text = call(self.url, "GET", "/metrics").body.decode()
        return [line for line in text.splitlines() if f'attention_parity_difference{{model="{name}"' in line]


@contextmanager
def running(artifacts: Path, folder: Path, **environment: str) -> Iterator[Service]:
    server = start_server(
        artifacts,
        ATTENTION_MODEL_REPOSITORY=str(folder),
        ATTENTION_DEFAULT_MODEL="lesson",
        **({"ATTENTION_WORKERS": "2"} | environment),
    )
    try:
        yield Service(server, folder)
    finally:
        assert server.stop() == 0


@pytest.fixture(scope="module")
def service(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service; each test uses names of its own."""
    with running(artifacts, tmp_path_factory.mktemp("repository"), ATTENTION_ADMIN_KEYS="root") as found:
        yield found


def changes(reply: Reply) -> tuple[list[str], list[str]]:
    assert reply.status == 200, reply.body
    return [f"{model['name']}@{model['version']}" for model in reply.json()["loaded"]], reply.json()["unloaded"]


def refused(reply: Reply, status: int, kind: str) -> str:
    assert (reply.status, reply.headers["content-type"]) == (status, PROBLEM), reply.body
    assert reply.json()["type"] == f"/problems/{kind}"
    detail: str = reply.json()["detail"]
    return detail


# ---- load and unload


def test_a_new_entry_is_described_and_answers_then_goes_again(service: Service):
    service.put("new")
    assert service.ask("new").status == 404

    reply = service.load("new")

    assert changes(reply) == (["new@1"], [])
    described = call(service.url, "GET", "/v1/models/new").json()
    assert reply.json()["loaded"] == [described]
    assert (described["origin"], described["source"], described["provenance"]) == ("new", "made by a test", None)
    assert set(described["parity"]) == {"eager-onnx", "eager-reference", "onnx-reference"}
    assert max(described["parity"].values()) < 1e-5
    assert len(service.parity_series("new")) == 3
    assert service.ask("new").status == 200

    assert changes(service.unload("new")) == ([], ["new@1"])

    assert service.ask("new").status == 404
    assert call(service.url, "GET", "/v1/models/new").status == 404
    assert service.parity_series("new") == []
    refused(service.unload("new"), 404, "not-found")


def test_versions_stand_side_by_side_and_the_name_is_the_newest(service: Service):
    service.put("sided/9", seed=9)
    service.put("sided/10", seed=10)

    assert changes(service.load("sided@9")) == (["sided@9"], [])
    nine = service.ask("sided").json()
    assert changes(service.load("sided@10")) == (["sided@10"], [])
    ten = service.ask("sided").json()

    assert (nine["model"]["version"], ten["model"]["version"]) == ("9", "10")
    assert nine["outputs"] != ten["outputs"]
    assert service.ask("sided@9").json()["outputs"] == nine["outputs"]
    assert call(service.url, "GET", "/v1/models/sided").json()["versions"] == ["9", "10"]

    service.remove("sided/10")
    assert changes(service.load("sided")) == (["sided@9"], ["sided@10"])
    assert service.ask("sided").json()["outputs"] == nine["outputs"]


def test_a_broken_entry_is_refused_with_its_reason_until_it_is_mended(service: Service):
    """What was served goes on, and so does readiness."""
    service.put("mended")
    assert service.load("mended").status == 200
    before = service.ask("mended").json()
    service.put("mended", head_dim=0)

    detail = refused(service.load("mended"), 422, "unservable-model")

    assert "mended/spec.json: head_dim" in detail
    assert "head_dim" in service.broken()["mended"]
    assert service.ask("mended").json() == before
    assert service.ready() == 200

    service.put("mended", seed=2)
    assert changes(service.load("mended")) == (["mended@1"], [])
    assert "mended" not in service.broken()
    assert service.ask("mended").json()["outputs"] != before["outputs"]


def test_a_built_in_model_can_be_unloaded_and_loaded_again(service: Service):
    assert changes(service.unload("multi-head-384x12")) == ([], ["multi-head-384x12@1"])
    assert "multi-head-384x12@1" not in service.ids()

    assert changes(service.load("multi-head-384x12")) == (["multi-head-384x12@1"], [])
    assert call(service.url, "GET", "/v1/models/multi-head-384x12").json()["origin"] == "built-in"


@pytest.mark.parametrize("name", ["lesson", "lesson@1"])
def test_the_default_model_is_not_unloaded(service: Service, name: str):
    detail = refused(service.unload(name), 409, "conflict")

    assert detail.startswith("lesson is the model of requests that name none")
    assert attend(service.url, {"inputs": [[1, 0, 0, 0, 0.5]]}).json()["model"]["name"] == "lesson"


@pytest.mark.parametrize("action", ["load", "unload"])
def test_what_is_nowhere_is_not_found_with_the_nearest_name(service: Service, action: str):
    detail = refused(service.post(action, "lessen"), 404, "not-found")

    assert "did you mean 'lesson'?" in detail


# ---- without dropping a request


class Callers:
    """Threads that ask for a model all the time, each on one connection.

    Attributes:
        answers: status, and bytes of the outputs where there are any, by backend.
        late: the same, of requests that were sent after the last `mark`.
    """

    def __init__(self, service: Service, name: str) -> None:
        self.answers: dict[str, list[tuple[int, bytes]]] = {backend: [] for backend in BACKENDS}
        self.late: dict[str, list[tuple[int, bytes]]] = {backend: [] for backend in BACKENDS}
        self._marks = 0
        self._service, self._name = service, name
        self._stop = threading.Event()
        self._seen = threading.Condition()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(THREADS)]

    def _run(self, number: int) -> None:
        backend = BACKENDS[number % len(BACKENDS)]
        connection = connect(self._service.url)
        path = f"/v1/attention?model={self._name}&backend={backend}&return=outputs"
        while not self._stop.is_set():
            sent_after = self._marks
            reply = send(connection, "POST", path, npy(INPUTS), {"Content-Type": NPY})
            outputs = bits(reply.decoded().tensors["outputs"][0]) if reply.status == 200 else b""
            with self._seen:
                self.answers[backend].append((reply.status, outputs))
                if sent_after == self._marks:
                    self.late[backend].append((reply.status, outputs))
                self._seen.notify_all()
        connection.close()

    def wait(self, enough: Callable[[], bool]) -> None:
        with self._seen:
            assert self._seen.wait_for(enough, timeout=60)

    def mark(self) -> None:
        with self._seen:
            self._marks += 1
            for answers in self.late.values():
                answers.clear()

    def count(self) -> int:
        return min(map(len, self.answers.values()))

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        self.wait(lambda: self.count() >= 5)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def test_a_changed_entry_is_loaded_under_load_without_a_failure_or_a_mixture(service: Service):
    """Every answer is bit by bit that of the old numbers or of the new ones; after the load, of the new ones."""
    service.put("changing", seed=1)
    assert service.load("changing").status == 200

    def outputs(backend: str) -> bytes:
        query = f"?model=changing&backend={backend}&return=outputs"
        return bits(call(service.url, "POST", f"/v1/attention{query}", npy(INPUTS), {"Content-Type": NPY})
                    .decoded().tensors["outputs"][0])  # fmt: skip

    known = {backend: [outputs(backend)] for backend in BACKENDS}
    with Callers(service, "changing") as callers:
        for seed in (2, 3):
            service.put("changing", seed=seed)
            assert changes(service.load("changing")) == (["changing@1"], [])
            callers.mark()
            for backend in BACKENDS:
                known[backend].append(outputs(backend))
            callers.wait(lambda: all(len(late) >= THREADS for late in callers.late.values()))
            for backend in BACKENDS:
                assert set(callers.late[backend]) == {(200, known[backend][-1])}

    for backend in BACKENDS:
        assert {status for status, _ in callers.answers[backend]} == {200}
        assert len(set(known[backend])) == 3
        found = [known[backend].index(answer) for _, answer in callers.answers[backend]]
        assert set(found) == {0, 1, 2}


def test_a_model_is_unloaded_under_load_and_what_was_accepted_is_answered(service: Service):
    """Each caller is answered 200, then 404, and nothing else."""
    service.put("leaving")
    assert service.load("leaving").status == 200

    with Callers(service, "leaving") as callers:
        assert changes(service.unload("leaving")) == ([], ["leaving@1"])
        callers.mark()
        callers.wait(lambda: all(len(late) >= THREADS for late in callers.late.values()))

    for backend in BACKENDS:
        statuses = [status for status, _ in callers.answers[backend]]
        assert set(statuses) == {200, 404}
        assert {status for status, _ in callers.late[backend]} == {404}
        assert len({outputs for status, outputs in callers.answers[backend] if status == 200}) == 1


def test_a_load_under_way_is_finished_before_the_service_stops(artifacts: Path, tmp_path: Path):
    """SIGTERM answers what was accepted."""
    with running(artifacts, tmp_path, ATTENTION_ADMIN_KEYS="root") as service:
        service.put("late")
        connection = connect(service.url)
        connection.request("POST", "/v1/models/late/load", headers=ADMIN)
        while not select.select([connection.sock], [], [], 0)[0]:  # an answer already? Then there is nothing to see
            if b"\nattention_requests_in_progress 2.0\n" in call(service.url, "GET", "/metrics").body:
                break
        service.server.process.terminate()
        response = connection.getresponse()
        assert response.status == 200
        response.read()
        connection.close()


# ---- paths


@pytest.mark.parametrize(
    "name",
    [
        "..", "%2e%2e", "%2E%2E%2Foutside", "../outside", "..%2foutside", "a%2fb", "a/b", "%2fetc%2fpasswd", "/etc",
        "a%00", "%00", "a%00b", "traversed%2f1", "traversed%2f..%2f..%2foutside", "traversed@..", "traversed@%2e%2e",
        "traversed@..%2f..%2foutside", "traversed@1%2f..", "traversed@%00", "Traversed", ".hidden", "%2ehidden", "%20",
        "a%0a", "a\\b", "..%5coutside", "%ff", "%c0%ae%c0%ae", "~root", "C%3a", "x" * 65,
    ],
)  # fmt: skip
@pytest.mark.parametrize("action", ["load", "unload"])
def test_no_name_leads_out_of_the_repository(service: Service, action: str, name: str):
    """404 and nothing learnt, though there is an entry that would be served if it could be reached."""
    service.put("traversed/1")
    service.put("../outside", name="outside")
    service.put(".hidden", name="hidden")

    refused(service.post(action, name), 404, "not-found")

    assert not {"outside@1", "hidden@1"} & set(service.ids())
    assert service.broken().keys() <= {"mended"}


@pytest.mark.parametrize("link", ["linked", "linked/1", "linked/1/spec.json"])
def test_a_link_out_of_the_repository_is_broken(service: Service, link: str, tmp_path: Path):
    service.put("linked/1")
    place = service.folder / link
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")

    detail = refused(service.load("linked"), 422, "unservable-model")

    assert "leads out of the repository" in detail
    place.unlink()
    shutil.rmtree(service.folder / "linked", ignore_errors=True)
    refused(service.load("linked"), 404, "not-found")


# ---- who may


KEYS = {"none": {}, "api": {"X-API-Key": "one"}, "admin": {"Authorization": "Bearer root"}, "odd": {"X-API-Key": "odd"}}


@pytest.mark.parametrize(
    ("environment", "statuses"),
    [
        ({}, {"none": 403, "api": 403, "admin": 403, "odd": 403}),
        ({"ATTENTION_API_KEYS": "one"}, {"none": 401, "api": 403, "admin": 403, "odd": 403}),
        ({"ATTENTION_ADMIN_KEYS": "root"}, {"none": 401, "api": 403, "admin": 200, "odd": 403}),
        ({"ATTENTION_ADMIN_KEYS": "root", "ATTENTION_API_KEYS": "one"},
         {"none": 401, "api": 403, "admin": 200, "odd": 403}),
    ],
    ids=str,
)  # fmt: skip
def test_admins_alone_may_change_what_is_served(
    artifacts: Path, tmp_path: Path, environment: dict[str, str], statuses: dict[str, int]
):
    with running(artifacts, tmp_path, **environment) as service:
        for who, status in statuses.items():
            replies = [service.post("load", "lesson", KEYS[who]), service.post("load", "..", KEYS[who]),
                       service.post("unload", "single-head-64", KEYS[who])]  # fmt: skip
            assert [reply.status for reply in replies] == [status, 404 if status == 200 else status, status]
            for reply in replies:
                assert ("www-authenticate" in reply.headers) is (status == 401)
            if "ATTENTION_ADMIN_KEYS" not in environment and who == "api":
                assert "set ATTENTION_ADMIN_KEYS" in replies[0].json()["detail"]
        assert ("single-head-64@1" in service.ids(KEYS["api"])) is (200 not in statuses.values())
        listed = call(service.url, "GET", "/v1/models", headers=KEYS["admin"])
        known = "ATTENTION_API_KEYS" not in environment or "ATTENTION_ADMIN_KEYS" in environment
        assert listed.status == (200 if known else 403)


def test_only_post_changes_anything(service: Service):
    reply = call(service.url, "GET", "/v1/models/lesson/load", headers=ADMIN)

    refused(reply, 405, "method-not-allowed")
    assert reply.headers["allow"] == "POST"


def test_the_document_says_that_a_key_is_needed(service: Service):
    """With or without keys for the other operations."""
    document = call(service.url, "GET", "/openapi.json").json()

    for action in ("load", "unload"):
        operation = document["paths"][f"/v1/models/{{name}}/{action}"]["post"]
        assert operation["security"] == [{"bearer": []}, {"basic": []}, {"key": []}]
        assert operation["responses"]["200"]["content"].keys() == {JSON}
    assert "security" not in document["paths"]["/v1/models"]["get"]
    assert document["components"]["securitySchemes"].keys() == {"bearer", "basic", "key"}
