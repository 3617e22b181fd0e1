import json
import re
import socket
from typing import ClassVar

import numpy as np
import pytest

from loadtest.samples import Samples
from tests.loadtest.running import ROOT, Handler, locust, serving


class WrongWeights(Handler):
    """Everything in shape, but each row of weights sums to 2."""

    def answer(self, request):
        n = len(request["inputs"])
        weights = np.zeros((n, n))
        weights[:, 0] = 2
        return {"outputs": np.zeros((n, 3)).tolist(), "weights": weights.tolist()}


class Full(Handler):
    """A queue that is always full."""

    status = 503
    answer_headers: ClassVar = {"Content-Type": "application/problem+json", "Retry-After": "2"}

    def answer(self, request):
        return {"type": "/problems/queue-full", "title": "Queue full", "status": 503}


@pytest.mark.server
def test_a_right_service_passes(server, tmp_path):
    """Every kind of user against the real thing, every answer checked."""
    users = ["JsonUser", "Base64User", "BinaryUser", "V2BinaryUser", "TutorUser", "TextUser"]
    files = ["--json-file", str(tmp_path / "stats"), "--samples", str(tmp_path / "run.npz")]
    result = locust(server.url, *users, "-u", "12", "-r", "12", "--check-every", "1", *files, seconds=6)

    assert result.returncode == 0, result.stdout + result.stderr
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert sum(entry["num_failures"] for entry in stats) == 0
    samples = Samples.load(tmp_path / "run.npz")
    assert {entry["name"]: entry["num_requests"] for entry in stats} == {
        name: (samples.name == i).sum() for i, name in enumerate(samples.names)
    }
    assert samples.ok.all()
    kinds = {name.split()[0] for name in samples.names}
    assert kinds >= {"json", "base64", "safetensors", "v2", "text", "explain", "exercise", "grade"}
    computed = [kind in ("json", "v2", "text") for kind in np.char.partition(samples.names, " ")[:, 0][samples.name]]
    assert not np.isnan(samples.compute_ms[computed]).any()


@pytest.mark.server
def test_users_that_not_every_service_can_serve_come_only_where_they_are_named(server):
    """A service without an encoder is not a broken service."""
    result = locust(server.url, "-u", "10", "-r", "10")

    assert result.returncode == 0, result.stdout + result.stderr
    assert '"TutorUser": 2' in result.stderr
    assert "TextUser" not in result.stderr


def test_a_fast_wrong_answer_fails():
    """Otherwise the quickest service is the one that does not compute."""
    with serving(WrongWeights) as url:
        result = locust(url, "JsonUser", "--models", "lesson")

    assert result.returncode == 1, result.stdout + result.stderr
    assert "POST json lesson: wrong answer: weights[0] sum to 2, expected 1 within 0.0001" in (
        result.stdout + result.stderr
    )


def test_a_fast_wrong_answer_fails_an_open_loop_too(tmp_path):
    """Its answers are checked when it is over, so that reading them delays nobody."""
    file = tmp_path / "run.npz"
    with serving(WrongWeights) as url:
        result = locust(url, "JsonUser", "--models", "lesson", "--rate", "50", "--samples", str(file))

    assert result.returncode == 1, result.stdout + result.stderr
    assert "POST json lesson: wrong answer: weights[0] sum to 2, expected 1 within 0.0001" in (
        result.stdout + result.stderr
    )
    samples = Samples.load(file)
    assert 4 <= (~samples.ok).sum() < len(samples)
    assert list(samples.errors) == ["wrong answer: weights[0] sum to 2, expected 1 within 0.0001"]


def test_checks_can_be_turned_off_by_the_environment(monkeypatch):
    """For the last percent of speed, after a run that checked."""
    monkeypatch.setenv("LOADTEST_CHECK_EVERY", "0")

    with serving(WrongWeights) as url:
        result = locust(url, "JsonUser", "--models", "lesson")

    assert result.returncode == 0, result.stdout + result.stderr


def test_a_refusal_is_counted_under_its_own_text():
    """A full queue is the service's answer to load, not the same thing as a bug."""
    with serving(Full) as url:
        result = locust(url, "JsonUser", "--models", "lesson")

    assert result.returncode == 1
    assert "503 queue full, retry after 2 s" in result.stdout + result.stderr


def test_a_run_without_answers_does_not_pass():
    """A service that hangs fails no request while the run lasts; the gate must not call that a success."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = locust(f"http://127.0.0.1:{silent.getsockname()[1]}", "BinaryUser")

    assert result.returncode == 2
    assert "no request was answered or refused" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--models", "no-such-model"),
        ("--seed", "-1"),
        ("--tokens", "0"),
        ("--check-every", "some"),
        ("--rate", "-1"),
        ("--samples", "no/such/folder/run.npz"),
    ],
)
def test_a_setting_that_means_nothing_stops_before_the_start(arguments):
    """It is named with what it should have been; nothing is sent."""
    result = locust("http://127.0.0.1:9", *arguments)

    assert result.returncode == 2
    assert f"argument {arguments[0]}" in result.stderr


def test_the_documentation_lists_every_setting():
    """Locust's own `--help` does not: it answers before it reads the file."""
    settings = dict(
        re.findall(r'"(--[a-z0-9-]+)",\s*env_var="(LOADTEST_\w+)"', (ROOT / "loadtest/options.py").read_text())
    )
    rows = re.findall(r"^\| `(--[a-z0-9-]+)` \| `(LOADTEST_\w+)` \|", (ROOT / "docs/loadtest.md").read_text(), re.M)

    assert len(settings) > 10
    assert dict(rows) == settings
