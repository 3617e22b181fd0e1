"""`attention loadtest` as a person and a pipeline run it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from serving import empty_repository
from typer.testing import CliRunner

from loadtest.bench.processes import family
from service.cli import app
from service.commands import loadtest as module

ROOT = Path(__file__).parents[3]
SHORT = ("--models", "multi-head-384x12", "--tokens", "128", "--connections", "4", "--seconds", "1", "--rounds", "1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slo", "20ms"], "--slo '20ms': give a percentile from p50 on and a latency, such as p99=20ms"),
        (["--compare", "onix"], "--compare 'onix': there are eager, onnx, reference"),
        (["--users", "me"], "--users 'me': there are app, json, base64, binary, v2, tutor, text"),
        (
            ["--models", "mine"],
            "--models 'mine': give one of lesson, single-head-64, multi-head-384x12, or name:embed_dim",
        ),
        (["--tokens", "many"], "--tokens 'many': give mixed, or positive whole numbers"),
        (["--arrivals", "all"], "--arrivals 'all': there are constant, poisson"),
        (["--connections", "0"], "give positive whole numbers"),
        (["--url", "localhost:8000"], "give an address such as http://"),
        (["--thresholds", "nowhere.toml"], "nowhere.toml: No such file"),
    ],
)
def test_what_makes_no_sense_is_said_with_exit_code_2(arguments, said):
    """1 is for what was measured and is not good enough."""
    done = CliRunner().invoke(app, ["loadtest", *arguments])

    assert done.exit_code == 2
    assert said in done.stderr


def test_a_service_that_is_not_there_is_said_so(tmp_path):
    """Nothing is written: there is nothing to report."""
    command = [
        sys.executable,
        "-m",
        "service",
        "loadtest",
        "--url",
        "http://127.0.0.1:1",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run([*command, *SHORT], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 2, done.stderr
    assert "Connection refused" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_its_packages_it_says_what_to_install(monkeypatch):
    """The service is installed without them."""
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "locust" else object())

    done = CliRunner().invoke(app, ["loadtest"])

    assert done.exit_code == 2
    assert "locust not installed. Run: pip install 'self-attention-service[loadtest]'" in done.stderr


@pytest.mark.server
def test_a_service_that_runs_is_measured_and_judged(server, tmp_path):
    """The whole way: closed loop, search, open loop, counts, files, and a threshold that nothing could reach."""
    wanted = tmp_path / "thresholds.toml"
    wanted.write_text("[service]\nrate = 1e6\nerror_share = 0\n")
    command = [sys.executable, "-m", "service", "loadtest", "--url", server.url, "--slo", "p99=250ms", *SHORT]
    command += ["--no-pin", "--precision", "0.5", "--thresholds", str(wanted), "--out", str(tmp_path / "out")]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    (subject,) = found["subjects"]
    assert {step["phase"] for step in found["steps"]} == {"warm-up", "closed", "search", "confirm", "open"}
    assert subject["knee"]["rate"] > 0
    assert subject["errors"].keys() <= {"search", "confirm"}  # where more was asked than it holds
    assert subject["stages"]["median"]["compute_ms"] > 0
    assert sum(subject["batches"]["open"]["counts"].values()) > 0
    assert subject["about"]["workers"] == "2"
    assert "Missed: service.rate: wanted at least 1e+06, got" in done.stdout
    assert "Missed: service.error_share" not in done.stdout
    assert done.stdout.startswith("The service holds ")
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.server
def test_ctrl_c_leaves_the_report_and_no_process(artifacts, tmp_path):
    """Neither a service nor a generator."""
    environment = os.environ | {
        "ATTENTION_ARTIFACTS": str(artifacts),
        "ATTENTION_MODEL_REPOSITORY": str(empty_repository(artifacts)),
        "ATTENTION_WORKERS": "1",
    }
    command = [sys.executable, "-m", "service", "loadtest", "--compare", "onnx", "--devices", "cpu", *SHORT]
    command += ["--out", str(tmp_path)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=not_ignored,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("onnx"):
                break
        leaders = children(run.pid)

        run.send_signal(signal.SIGINT)

        said = run.stdout.read()
        assert run.wait(60) == 130
    assert leaders != []
    assert [pid for leader in leaders for pid in family(leader)] == []
    assert "Broken off before it was known" in said
    assert json.loads((tmp_path / "report.json").read_text())["steps"][0]["phase"] == "warm-up"
    assert "The run was broken off" in (tmp_path / "report.html").read_text()


def not_ignored():
    """What a shell starts in the background ignores Ctrl-C, and so would what the tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def children(parent):
    """Processes that it has started."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
