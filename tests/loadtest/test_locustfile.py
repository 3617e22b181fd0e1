import json
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from loadtest.payloads import MODELS

ROOT = Path(__file__).parents[2]


def locust(url, *arguments, seconds=2):
    """Run the locustfile for a moment, as a person would.

    As a process of its own: importing Locust replaces the sockets and threads of the process that does.
    """
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    command += ["-u", "4", "-r", "4", "-t", f"{seconds}s", "--host", url, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status = 200
    answer_headers: ClassVar[dict[str, str]] = {"Content-Type": "application/json"}

    def answer(self, request):
        raise NotImplementedError

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(self.answer(request)).encode()
        self.send_response(self.status)
        for name, value in (self.answer_headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


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


@contextmanager
def serving(handler):
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # Locust hangs up in the middle of an answer when its time is over
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.server
def test_a_right_service_passes(server, tmp_path):
    """All formats and models against the real thing, every answer checked."""
    result = locust(server.url, "--check-every", "1", "--json-file", str(tmp_path / "stats"), seconds=4)

    assert result.returncode == 0, result.stdout + result.stderr
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert sum(entry["num_requests"] for entry in stats) > 0
    assert sum(entry["num_failures"] for entry in stats) == 0
    names = {entry["name"] for entry in stats}
    assert names <= {f"{form} {model}" for form in ("json", "base64", "safetensors") for model in MODELS}
    assert {name.split()[0] for name in names} == {"json", "base64", "safetensors"}


def test_a_fast_wrong_answer_fails():
    """Otherwise the quickest service is the one that does not compute."""
    with serving(WrongWeights) as url:
        result = locust(url, "JsonUser", "--models", "lesson")

    assert result.returncode == 1, result.stdout + result.stderr
    assert "POST json lesson: wrong answer: weights[0] sum to 2, expected 1 within 0.0001" in (
        result.stdout + result.stderr
    )


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
    "arguments", [("--models", "no-such-model"), ("--seed", "-1"), ("--tokens", "0"), ("--check-every", "some")]
)
def test_a_setting_that_means_nothing_stops_before_the_start(arguments):
    """It is named with what it should have been; nothing is sent."""
    result = locust("http://127.0.0.1:9", *arguments)

    assert result.returncode == 2
    assert f"argument {arguments[0]}" in result.stderr
