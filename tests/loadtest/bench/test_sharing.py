"""The benchmark of what idle compute slots give: what it compares, and that it refuses what is no measurement."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.bench import sharing
from loadtest.bench.http import Failed
from loadtest.bench.processes import started_service
from loadtest.bench.sharing import WARM_UP, Case, line, main, measure
from loadtest.bench.work import Layer, write_repository
from tests.loadtest.bench.answering import answering

pytestmark = pytest.mark.usefixtures("exported")

ROOT = Path(__file__).parents[3]
SMALL = Case(Layer(64), 32, "outputs,weights", causal=True)
TIMED = "Server-Timing: decode;dur=9, compute;dur=2\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory, artifacts: Path) -> Iterator[int]:
    """A service with one compute slot."""
    folder = tmp_path_factory.mktemp("sharing")
    write_repository(folder / "repository", [SMALL.layer])
    variables = {sharing.THREADS: "1", "ATTENTION_ARTIFACTS": str(artifacts)}
    with started_service(folder, "cpu", 1, variables) as server:
        yield server.port


@pytest.mark.server
@pytest.mark.timeout(200)
def test_a_service_is_compared_with_itself(port: int):
    """As many times as there are rounds, and the answers are the same."""
    alone, shared = measure([port, port], SMALL, rounds=3)

    assert len(alone) == len(shared) == 3
    assert min(alone + shared) > 0


@pytest.mark.server
@pytest.mark.timeout(200)
def test_an_error_is_no_measurement(port: int):
    """The service's own words say why."""
    with pytest.raises(Failed, match="status 422"):
        measure([port], replace(SMALL, wanted="nonsense"), rounds=1)


def test_services_take_turns_and_are_asked_the_same():
    """A machine that slows down slows both."""
    seen: list[tuple[str, bytes]] = []

    def answer(name: str):
        return lambda i, sent: (200, seen.append((name, sent)) or b"same", 0.0)

    with answering(answer("a"), headers=TIMED) as first, answering(answer("b"), headers=TIMED) as second:
        took = measure([first, second], SMALL, rounds=2)

    assert [name for name, _ in seen] == ["a", "b"] * (WARM_UP + 2)
    assert len({sent for _, sent in seen}) == 1
    assert took == [[2.0, 2.0]] * 2


def test_answers_that_differ_are_no_measurement():
    """Sooner, but with other bits, is not sooner."""
    said = r"32 tokens × 64, 1 head: outputs and weights, causal: the answers are not the same"

    with (
        answering(lambda i, sent: (200, bytes([i]), 0.0), headers=TIMED) as port,
        pytest.raises(Failed, match=said),
    ):
        measure([port, port], SMALL, rounds=1)


def test_an_answer_that_does_not_say_what_it_took_is_no_measurement():
    """0 would look like no time at all."""
    with answering(lambda i, sent: (200, b"", 0.0)) as port, pytest.raises(Failed, match="does not say"):
        measure([port], SMALL, rounds=1)


def test_a_row_says_how_much_sooner():
    """By the median of the rounds' own ratios, between the lowest and the highest."""
    row = line(SMALL, [2.0, 4.0, 9.0], [1.0, 2.0, 9.0])

    assert row[1:] == ("4.000", "2.000", "2.00", "1.00 to 2.00")


def test_it_compares_two_services(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """One with one slot, and one with as many as are asked for."""
    started: list[tuple[object, ...]] = []

    with answering(lambda i, sent: (200, b"same", 0.0), headers=TIMED) as port:

        class Started:
            def __init__(self, folder: Path, *options: object) -> None:
                assert (folder / "repository" / SMALL.layer.name).is_dir()
                started.append(options)
                self.port = port

            def __enter__(self) -> "Started":
                return self

            def __exit__(self, *error: object) -> None:
                pass

        monkeypatch.setattr(sharing, "started_service", Started)
        monkeypatch.setattr(sharing, "CASES", (SMALL,))
        assert main(["--slots", "3", "--rounds", "1"]) == 0

    assert started == [("cpu", 1, {sharing.THREADS: "1"}), ("cpu", 1, {sharing.THREADS: "3"})]
    head, _, row = capsys.readouterr().out.splitlines()
    assert head == "| compute | 1 slot, ms | 3 slots, ms | ratio | of rounds |"
    assert row.endswith("| 2.000 | 2.000 | 1.00 | 1.00 to 1.00 |")


def test_a_service_that_does_not_start_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Not a stack trace."""
    monkeypatch.setenv("ATTENTION_DEFAULT_MODEL", "nobody")

    assert main(["--slots", "1", "--rounds", "1"]) == 1
    assert capsys.readouterr().err.startswith("sharing: ")


def test_help_names_every_option():
    """It is the only documentation at hand on the machine that is measured."""
    command = [sys.executable, "-m", "loadtest.bench.sharing", "--help"]

    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout

    for name in ("--slots", "--rounds"):
        assert name in text
