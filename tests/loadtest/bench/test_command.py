"""The command itself, `python -m loadtest.bench`."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.__main__ import CONCURRENCIES, parser, plan_of
from loadtest.bench.results import load

pytestmark = pytest.mark.usefixtures("exported")

ROOT = Path(__file__).parents[3]


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "loadtest.bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


def plan(*arguments: str):
    return plan_of(parser().parse_args(arguments))


def test_help_names_every_option():
    """It is the only documentation at hand on the machine that is measured."""
    text = bench("--help").stdout

    for name in ("--quick", "--cases", "--formats", "--backends", "--connections", "--seconds", "--rounds", "--device"):
        assert name in text
    for name in ("--workers", "--lengths", "--widths", "--out", "concurrency", "choices"):
        assert name in text


def test_what_is_not_asked_for_is_filled_in():
    """By what a full run takes, or a quick one."""
    full, quick = plan(), plan("--quick", "--rounds", "2", "--cases", "S")

    assert full.connections == CONCURRENCIES
    assert full.workers == (0,)
    assert (quick.rounds, [case.name for case in quick.cases]) == (2, ["S"])
    assert quick.seconds < full.seconds
    assert plan("--workers", "1,2").workers == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cases", "XL"], "'XL' is none of S, M"),
        (["--rounds", "0"], "not a positive whole number"),
        (["--seconds", "no"], "not a number of seconds"),
        (["--formats", ","], "give at least one"),
        (["everything"], "no section everything"),
    ],
)
def test_a_mistake_is_said_in_a_line(arguments, said):
    """Not a stack trace, and not after ten minutes."""
    result = bench(*arguments)

    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


QUICK = ("--quick", "--cases", "S", "--formats", "safetensors", "--seconds", "0.2", "--device", "cpu", "--workers", "1")


@pytest.mark.server
@pytest.mark.timeout(300)
def test_a_quick_run_measures_a_service_and_writes_the_report(tmp_path):
    """The whole way, on the smallest case."""
    result = bench("stages", "concurrency", *QUICK, "--connections", "1,2", "--out", str(tmp_path))

    assert result.returncode == 0, result.stderr
    assert "## Where a lone request's time goes" in result.stdout
    results = load(tmp_path / "results.json")
    assert {row.section for row in results.rows} == {"stages", "concurrency"}
    loaded = [row for row in results.rows if row.section == "concurrency"]
    assert [row.key["connections"] for row in loaded] == [1, 2]
    assert all(row.figures["rate"] > 0 and row.figures["errors"] == 0 for row in loaded)


@pytest.mark.server
@pytest.mark.timeout(300)
def test_memory_is_measured_at_the_start_and_of_long_sequences(tmp_path):
    """Of a service that has done nothing else before."""
    result = bench("memory", *QUICK, "--out", str(tmp_path))

    assert result.returncode == 0, result.stderr
    first, *_, last = load(tmp_path / "results.json").rows
    assert 0 < first.figures["rss_mib"] < 10_000
    assert last.key["n"] == 16_384


def test_the_choices_are_measured_without_a_service(tmp_path):
    """They are about the runtime and the event loop alone."""
    result = bench("choices", "--rounds", "1", "--seconds", "0.01", "--lengths", "64,128", "--out", str(tmp_path))

    assert result.returncode == 0, result.stderr
    sections = {row.section for row in load(tmp_path / "results.json").rows}
    assert sections == {"tile", "hand over"}
