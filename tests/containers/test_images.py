"""The images, built from the Dockerfile and run as deploy/README.md says: alone, hardened, stopped while they work."""

import http.client
import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest
from engine import answer, ask, free_port, run, until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

HARDENED = (
    "--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp",
    "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
)  # fmt: skip
GIB = 1 << 30


@pytest.fixture(scope="module")
def cpu(build):
    """The image of the service."""
    return build("cpu")


@pytest.fixture(scope="module")
def loadtest(build):
    """The image of the load test."""
    return build("loadtest")


@contextmanager
def running(image, *options, command=()):
    """A container that runs until the block ends: its id."""
    container = run("podman", "run", "--detach", "--pull=never", *HARDENED, *options, image, *command).stdout.strip()
    try:
        yield container
    finally:
        run("podman", "rm", "--force", "--time", "5", container, check=False)


@contextmanager
def serving(image):
    """A container of the service, ready: its id, and where it is."""
    port = free_port()
    with running(image, "--publish", f"127.0.0.1:{port}:8000") as container:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answer(f"{url}/healthz/ready")[0] == 200)
        yield container, url


@pytest.fixture(scope="module")
def service(cpu):
    """A service for all tests that only talk to it."""
    with serving(cpu) as found:
        yield found


def within(service, *command, check=True):
    """What a program says in the container of the service."""
    return run("podman", "exec", service[0], *command, check=check)


def configuration(image):
    (found,) = json.loads(run("podman", "image", "inspect", image).stdout)
    return found


def test_the_service_in_its_image_computes_what_numpy_does(service):
    """The packages of the image are other builds than those of this machine."""
    rng = np.random.default_rng(7)
    x, query, key, value = rng.standard_normal((5, 4)), *rng.standard_normal((3, 4, 3))
    projections = {"query": query.tolist(), "key": key.tolist(), "value": value.tolist()}

    status, body = ask(f"{service[1]}/v1/attention", {"inputs": x.tolist(), "projections": projections})

    scores = (x @ query) @ (x @ key).T / np.sqrt(3)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert status == 200, body
    np.testing.assert_allclose(np.squeeze(body["weights"]), weights, atol=1e-5)
    np.testing.assert_allclose(np.squeeze(body["outputs"]), weights @ (x @ value), atol=1e-5)


def test_every_built_in_model_is_served_from_both_backends(service):
    """The build compared them; here they are loaded again, from the graphs of the image."""
    status, body = ask(f"{service[1]}/v1/models")

    assert status == 200
    assert {model["name"] for model in body["models"]} == {"lesson", "single-head-64", "multi-head-384x12"}
    assert all({"eager", "onnx"} <= set(model["backends"]) for model in body["models"]), body


def test_the_container_has_no_rights(service):
    """Not root, no capability, none to be had, and no file it could change but in /tmp."""
    status = dict(line.split(":\t", 1) for line in within(service, "cat", "/proc/1/status").stdout.splitlines())

    assert status["Uid"].split() == status["Gid"].split() == ["10001"] * 4
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    for place in ("/app", "/opt/attention/artifacts", "/etc", "/var/tmp"):
        assert within(service, "touch", f"{place}/mark", check=False).returncode != 0, place
    within(service, "touch", "/tmp/mark")


def test_nothing_in_the_image_belongs_to_the_user_it_runs_as(cpu):
    """Also where nobody asks for a read-only root, the service cannot change itself."""
    find = ("find", "/app", "/opt/attention", "(", "-user", "10001", "-o", "-perm", "-o+w", "!", "-type", "l", ")")

    assert run("podman", "run", "--rm", "--pull=never", "--entrypoint", find[0], cpu, *find[1:]).stdout == ""


def test_the_environment_of_the_image_has_no_installer_and_no_tests(service):
    """What is not there needs no update."""
    assert within(service, "ls", "/opt/attention/venv/bin/pip", check=False).returncode != 0
    code = "import importlib.util as u; print([n for n in ('pytest', 'locust', 'mypy', 'pip') if u.find_spec(n)])"
    found = within(service, "/opt/attention/venv/bin/python", "-c", code).stdout

    assert found.strip() == "[]"


def test_the_health_check_of_the_image_passes_in_it(service, cpu):
    """Run as the engine would, by what the image says."""
    check = configuration(cpu)["Healthcheck"]["Test"]

    assert check[0] == "CMD"
    within(service, *check[1:])


def test_an_image_says_of_which_revision_it_is(cpu):
    """A build without --build-arg REVISION says `unknown`; this one was told."""
    labels = configuration(cpu)["Config"]["Labels"]

    assert labels["org.opencontainers.image.revision"] == "test"
    assert labels["org.opencontainers.image.version"]


def test_the_images_are_no_larger_than_they_have_to_be(cpu, loadtest):
    """A forgotten cache or a CUDA build of torch shows here: over what Debian takes, 2 GiB and half of one."""
    base = configuration("localhost/debian-python:bookworm")["Size"]
    sizes = {image: configuration(image)["Size"] - base for image in (cpu, loadtest)}

    assert sizes[cpu] < 2 * GIB, sizes
    assert sizes[loadtest] < GIB // 2, sizes


def test_a_stopped_container_answers_what_it_accepted_and_ends_with_0(cpu):
    """SIGTERM reaches the service, and it drains: no answer is cut off, no request is lost without a word."""
    with serving(cpu) as (container, url):
        stopping, ended, wrong, answered = threading.Event(), threading.Event(), [], []

        def call():
            body = json.dumps({"model": "single-head-64", "inputs": [[0.1] * 64] * 128}).encode()
            while not ended.is_set():
                request = urllib.request.Request(
                    f"{url}/v1/attention", body, {"Content-Type": "application/json", "Connection": "close"}
                )
                try:
                    with urllib.request.urlopen(request, timeout=30) as got:
                        answered.append(len(json.load(got)["outputs"]))
                except urllib.error.HTTPError as error:
                    if error.code != 503 or "Retry-After" not in error.headers:
                        wrong.append(f"{error.code} {error.read()!r}")
                except (urllib.error.URLError, ConnectionError) as error:
                    # Once it stops there is nobody to connect to; before, and in the midst of an answer, it is wrong.
                    if not stopping.is_set():
                        wrong.append(repr(error))
                except (http.client.HTTPException, ValueError) as error:  # an answer that was cut off
                    wrong.append(repr(error))

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        until(lambda: len(answered) > 20)
        stopping.set()
        run("podman", "stop", "--time", "40", container)
        ended.set()
        for caller in callers:
            caller.join(60)
        (state,) = json.loads(run("podman", "inspect", container).stdout)

    assert wrong == []
    assert state["State"]["ExitCode"] == 0


def test_the_load_test_in_its_image_finds_the_service_right(service, loadtest):
    """It has Locust, NumPy and orjson alone, and checks answers with them; nothing failed is status 0."""
    url = service[1]
    options = ("--network", "host")
    command = ("--headless", "-u", "4", "-r", "4", "-t", "3s", "--host", url, "--check-every", "1")
    done = run("podman", "run", "--rm", "--pull=never", *HARDENED, *options, loadtest, *command, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert configuration(loadtest)["Config"]["User"] == "10001:10001"
