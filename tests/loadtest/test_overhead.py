import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loadtest.overhead import STAGES, MeasurementFailed, medians, parse_answer, parse_server_timing, summarise, table

ROOT = Path(__file__).parents[2]
STAGES_MS = {"decode": 0.1, "queue": 0.05, "compute": 0.4, "encode": 0.1}


def a_round(latency_ms=1.0, compute_ms=0.4):
    timings = [STAGES_MS | {"compute": compute_ms}] * 3
    return summarise(np.full(3, latency_ms), timings, np.full(3, 0.3), 0.02)


def overhead(*arguments):
    command = [sys.executable, "-m", "loadtest.overhead", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.server
def test_it_prints_what_the_service_adds(server, tmp_path):
    """The table is the product: every stage, the overhead, and the floor under both."""
    result = overhead(
        "--url", server.url, "--requests", "50", "--warm-up", "10", "--rounds", "1", "--json", str(tmp_path / "o.json")
    )

    assert result.returncode == 0, result.stdout + result.stderr
    for name in (*(f"{stage} p50" for stage in STAGES), "overhead p50", "overhead p99", "client latency p50", "floor"):
        assert name in result.stdout
    report = json.loads((tmp_path / "o.json").read_text())
    (only,) = report["rounds"]
    assert 0 < only["overhead_p50_ms"] < only["latency_p99_ms"]
    assert only["floor_p50_ms"] > 0


def test_no_service_is_said_in_a_line():
    """Not a stack trace: the first thing anyone forgets is to start the service."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, so that nobody else takes it, but not listening

        result = overhead("--url", f"http://127.0.0.1:{closed.getsockname()[1]}")

    assert result.returncode == 1
    assert result.stderr.startswith("overhead: ")
    assert "Traceback" not in result.stderr


def test_help_names_every_setting():
    """It is the only documentation at hand on the machine that is measured."""
    text = overhead("--help").stdout

    for name in ("--url", "--requests", "--warm-up", "--rounds", "--json", "--start-timeout-s"):
        assert name in text


def test_server_timing_is_read_in_milliseconds():
    """The stages come from this header alone."""
    stages = parse_server_timing('decode;dur=0.012, queue;desc="a";dur="0.1",compute ; dur=1e-1, cache')

    assert stages == {"decode": 0.012, "queue": 0.1, "compute": 0.1}


def test_a_server_timing_that_is_no_number_is_refused():
    """A stage read as 0 would make the service look better than it is."""
    with pytest.raises(MeasurementFailed, match="decode;dur=fast"):
        parse_server_timing("decode;dur=fast")


def test_the_head_of_an_answer_is_taken_apart():
    """Header names have no case."""
    answer = parse_answer(b"HTTP/1.1 200 OK\r\nServer-Timing: a;dur=1\r\ncontent-length: 2", b"ok")

    assert answer.status == 200
    assert answer.headers["server-timing"] == "a;dur=1"
    assert answer.body == b"ok"


def test_what_is_not_http_is_refused():
    """The port of something else."""
    with pytest.raises(MeasurementFailed, match="not an HTTP answer"):
        parse_answer(b"SSH-2.0-OpenSSH_9.6", b"")


def test_overhead_is_latency_without_the_computation():
    """The definition: what a caller waits for beyond the answer itself."""
    summary = a_round(latency_ms=1.0, compute_ms=0.4)

    assert summary.overhead_p50_ms == pytest.approx(0.6)
    assert summary.outside_p50_ms == pytest.approx(0.35)
    assert summary.floor_p50_ms == pytest.approx(0.3)


def test_a_missing_stage_is_refused():
    """A stage read as 0 would make the service look better than it is."""
    timing = {stage: 1.0 for stage in STAGES if stage != "queue"}

    with pytest.raises(MeasurementFailed, match="lacks queue"):
        summarise(np.ones(1), [timing], np.ones(1), 0.0)


def test_a_clock_too_coarse_for_the_computation_is_refused():
    """uvloop's clock ticks in milliseconds: compute would be 0 and the overhead the whole latency."""
    with pytest.raises(MeasurementFailed, match="too coarse"):
        a_round(compute_ms=0.0)


def test_the_median_of_rounds_is_what_is_reported():
    """One round that something else disturbed must not move the result."""
    rounds = [a_round(), a_round(latency_ms=50.0), a_round()]

    assert medians(rounds)["client latency p50"] == 1.0
    assert "client latency p50" in table(rounds)
