"""The benchmark of small requests beside large ones: what it sends, and that it notices what is wrong."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

from loadtest.bench.generator import Result
from loadtest.bench.http import Failed
from loadtest.bench.large import KINDS, Report, Waits, large_request, main, table, waits

pytestmark = pytest.mark.usefixtures("exported")

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("tokens", [64, 1_000])
def test_bodies_have_about_the_size_asked_for(tokens: int):
    """However many sequences that takes; a long one comes alone."""
    head, _, body = large_request(tokens, 1).wire.partition(b"\r\n\r\n")

    sequences = orjson.loads(body)["inputs"]
    if tokens == 64:
        assert abs(len(body) - 2**20) < 2**19
        assert {len(sequence) for sequence in sequences} == {tokens}
    else:
        assert len(sequences) == tokens
    assert f"Content-Length: {len(body)}".encode() in head


def test_percentiles_are_of_the_requests_of_each_kind():
    found = waits(Result(latencies=[n / 1e3 if n % 2 else 1.0 for n in range(201)]))

    assert found[KINDS[0]] == Waits(1000, 1000, 1000)
    assert found[KINDS[1]].max_ms == pytest.approx(199)
    assert found[KINDS[1]].p50_ms == pytest.approx(100)


def test_a_small_request_that_fails_is_no_measurement():
    with pytest.raises(Failed, match="status 503"):
        waits(Result(latencies=[0.1], errors=["status 503"]))


def test_the_table_tells_requests_alone_from_those_beside_large_ones():
    alone, beside = Waits.of(np.array([1.0, 1.0])), Waits.of(np.array([2.0, 4.0]))

    lines = table(Report({"small": alone}, {"small": beside, "a sleep": alone}, 80.0)).splitlines()

    assert lines[2] == "| small | 1.00 | 1.00 | 1.00 | 3.00 | 3.98 | 4.00 |"
    assert lines[3].startswith("| a sleep |  |  |  | 1.00")
    assert lines[-1] == "Large bodies: 80.0 MB/s posted by all callers together."


def test_a_service_that_does_not_start_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ATTENTION_DEFAULT_MODEL", "nobody")

    assert main(["--workers", "1", "--seconds", "1"]) == 1
    assert capsys.readouterr().err.startswith("large: ")


@pytest.mark.server
def test_it_measures_a_service():
    """Small ones alone and beside large ones, and what became of the large ones."""
    command = [sys.executable, "-m", "loadtest.bench.large", "--workers", "1", "--clients", "2", "--mib", "2",
               "--seconds", "1"]  # fmt: skip

    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    assert all(f"| {kind} |" in result.stdout for kind in (*KINDS, "a sleep"))
