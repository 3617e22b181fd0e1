"""Fixtures: a clean environment, settings of this test run's own, and a service that really runs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from models.repository import EncoderEntry, write
from service.settings import Settings
from tests import parity_table
from tests.encoders import draw_weights, make_spec, word_pieces
from tests.serving import ROOT, Server, empty_repository, start_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser


hypothesis.settings.register_profile("untimed", deadline=None)  # how long an example takes says how busy a machine is
hypothesis.settings.load_profile("untimed")


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
    """A folder of exported graphs, shared by this run's tests and its processes: an export takes a second."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all of them
    (folder / "artifacts").mkdir(exist_ok=True)
    return folder / "artifacts"


@pytest.fixture(scope="session", autouse=True)
def tests_find_graphs(artifacts: Path) -> None:
    """See `exports.graph`."""
    os.environ["TEST_ARTIFACTS"] = str(artifacts)


@pytest.fixture
def exported(clean_environment: None, artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that starts a service lets it find the graphs of this run."""
    monkeypatch.setenv("ATTENTION_ARTIFACTS", str(artifacts))


@pytest.fixture
def settings(artifacts: Path) -> Settings:
    """Default settings on the CPU, and no models but the built-in ones."""
    return Settings(artifacts=artifacts, device="cpu", model_repository=empty_repository(artifacts))


@pytest.fixture(scope="session")
def server(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One service for all tests that only talk to it, of two workers, with a tiny encoder called as the default one."""
    repository = tmp_path_factory.mktemp("repository")
    spec = make_spec(name="minilm-l6", description="A tiny one.")
    write(repository, EncoderEntry(spec, draw_weights(spec), word_pieces(), ""))
    running = start_server(artifacts, ATTENTION_MODEL_REPOSITORY=str(repository), ATTENTION_WORKERS="2")
    yield running
    if running.process.poll() is None:
        assert running.stop() == 0
