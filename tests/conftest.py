"""Fixtures: a clean environment, settings of this test run's own, and a service that really runs."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from models.repository import EncoderEntry, write
from service.settings import Settings
from tests import parity_table
from tests.encoders import draw_weights, make_spec, word_pieces

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the settings of whoever runs it."""
    for name in list(os.environ):
        if name.startswith("ATTENTION_") or name == "PORT":
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")  # not session: while Playwright runs, asyncio.run() fails in this thread
def browser() -> Iterator["Browser"]:
    """A real Chromium."""
    from browsing import CHROMIUM, chromium  # most suites do without Playwright

    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM}")
    with chromium() as running:
        yield running


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> parity_table.Measure:
    """Take a figure for the tables of `test-artifacts/parity.md`; see `parity_table.figure`."""
    return lambda *figure: record_property(parity_table.PROPERTY, parity_table.figure(*figure))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write what was measured, if anything was; workers of xdist, which have no terminal, never come here."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    found = [
        value
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == parity_table.PROPERTY
    ]
    if found:
        parity_table.write(found)
        terminalreporter.write_line(f"measured differences: {parity_table.PLACE.relative_to(ROOT)}")


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of exported graphs, shared by this run's tests: an export takes a second."""
    return tmp_path_factory.mktemp("artifacts")


def empty_repository(artifacts: Path) -> Path:
    """A model repository without models, beside this run's graphs: no test sees the models of whoever runs it."""
    folder = artifacts.parent / "empty-repository"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def settings(artifacts: Path) -> Settings:
    """Default settings on the CPU, and no models but the built-in ones."""
    return Settings(artifacts=artifacts, device="cpu", model_repository=empty_repository(artifacts))


@dataclass
class Server:
    """A service in a process of its own.

    Attributes:
        url: where it listens.
        grpc: where it listens for gRPC; empty where it does not.
        process: the process; stopping it is the fixture's work unless the test is about that.
    """

    url: str
    process: "subprocess.Popen[str]"
    reader: threading.Thread
    grpc: str = ""

    def stop(self, number: int = signal.SIGTERM, timeout: float = 60) -> int:
        """Signal it, and wait for its exit code."""
        self.process.send_signal(number)
        return self.wait(timeout)

    def wait(self, timeout: float = 60) -> int:
        """Wait for its exit code."""
        code = self.process.wait(timeout)
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def start_server(artifacts: Path, **environment: str) -> Server:
    """Start `attention serve` on a free loopback port and wait until it is ready."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ATTENTION_") and name != "PORT"}
    clean |= {
        "ATTENTION_ARTIFACTS": str(artifacts),
        "ATTENTION_MODEL_REPOSITORY": str(empty_repository(artifacts)),
        "ATTENTION_DEVICE": "cpu",
        "ATTENTION_WORKERS": "1",
        "PYTHONUNBUFFERED": "1",
        **environment,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "serve", "--port", "0"],
        cwd=ROOT,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    seen = []
    grpc = ""
    for line in process.stdout:
        seen.append(line)
        if "gRPC at " in line:
            grpc = line.rpartition("gRPC at ")[2].strip()
        if "ready at " in line:
            url = line.rpartition("ready at ")[2].strip()
            # Whoever reads nothing lets the pipe fill up, and the server with it.
            reader = threading.Thread(target=process.stdout.read, daemon=True)
            reader.start()
            return Server(url, process, reader, grpc)
    process.stdout.close()
    raise AssertionError(f"the server ended with {process.wait(10)}:\n{''.join(seen)}")


@pytest.fixture(scope="session")
def server(artifacts: Path) -> Iterator[Server]:
    """One service for all tests that only talk to it, of two workers, with a tiny encoder called as the default one."""
    repository = artifacts.parent / f"{artifacts.name}-repository"
    spec = make_spec(name="minilm-l6", description="A tiny one.")
    write(repository, EncoderEntry(spec, draw_weights(spec), word_pieces(), ""))
    running = start_server(artifacts, ATTENTION_MODEL_REPOSITORY=str(repository), ATTENTION_WORKERS="2")
    yield running
    if running.process.poll() is None:
        assert running.stop() == 0
