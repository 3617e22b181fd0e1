import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench import work
from loadtest.bench.http import Failed
from loadtest.bench.results import Results, Row, load
from loadtest.bench.work import Layer
from loadtest.peers import PEERS, environments, report
from loadtest.peers.__main__ import formats_of, variables_of, write_graphs
from loadtest.peers.base import SERVERS

ROOT = Path(__file__).parents[3]
LOADED = {"rate": 1000.0, "p50_ms": 2.0, "p99_ms": 5.0, "errors": 0}


def test_help_names_every_option():
    """And every peer."""
    command = [sys.executable, "-m", "loadtest.peers", "--help"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout

    for name in ("--peers", "--cases", "--connections", "--seconds", "--rounds", "--open-loop", "--workers", *PEERS):
        assert name in text


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
def test_a_peer_is_described_well_enough_to_be_run(peer):
    """Its program is there, its places are known, its requirements are pinned, and it listens here alone."""
    places = {"bin": "/env/bin", "port": "1", "port1": "2", "port2": "3"}

    command = [part.format(**places) for part in peer.command]
    variables = variables_of(peer, Path("/models"), 1, places)

    assert all(Path(part).exists() for part in command if part.startswith(str(SERVERS)))
    assert command[0].startswith("/env/bin/")
    assert any("==" in requirement for requirement in peer.requirements)
    assert set(peer.formats) <= {"json", "binary"}
    assert variables["BENCH_MODELS"] == "/models"
    assert "{" not in "".join((*command, *variables.values()))
    assert all(form.binary == (kind == "binary") for kind, form in formats_of(peer.name).items())


def test_every_peer_computes_the_same(tmp_path, monkeypatch):
    """The computation that they share, on the graphs that they are given: alone, in batches, and padded."""
    monkeypatch.setenv("BENCH_MODELS", str(tmp_path / "graphs"))
    monkeypatch.setenv("BENCH_THREADS", "1")
    layer = Layer(16)
    write_graphs(tmp_path / "graphs", {layer, Layer(8)})
    from loadtest.peers.servers.compute import Attention

    attention = Attention()

    for lengths in ((5,), (5, 5), (5, 9, 2)):
        sequences = [work.inputs(n, 16, i) for i, n in enumerate(lengths)]
        answers = attention.batch(sequences)
        assert len(answers) == len(lengths)
        for x, (outputs, weights) in zip(sequences, answers, strict=True):
            work.check(layer, x, {"outputs": outputs, "weights": weights})


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    """And again once what it holds changes; where pip fails, its own words say why."""
    asked = []

    def run(command, **_):
        asked.append(command)
        Path(command[-1]).mkdir(exist_ok=True) if "venv" in command else None
        failed = "no-such-package" in command
        return subprocess.CompletedProcess(command, int(failed), "No matching distribution")

    monkeypatch.setattr(environments.subprocess, "run", run)

    for requirements in (("a==1",), ("a==1",), ("a==2",)):
        assert environments.installed(tmp_path, "one", requirements) == tmp_path / "one" / "bin"
    assert [command[-1] for command in asked if "pip" in command] == ["a==1", "a==2"]
    with pytest.raises(Failed, match="No matching distribution"):
        environments.installed(tmp_path, "two", ("no-such-package",))


def recorded() -> Results:
    key = {"kind": "json", "case": "S", "connections": 8}
    rows = [
        Row("peers", {"server": "ours"} | key, LOADED),
        Row("peers", {"server": "mosec"} | key, LOADED | {"rate": 500.0, "errors": 2}),
        Row("peers", {"server": "ours"} | key | {"case": "mixed"}, LOADED),
        Row("open loop", {"server": "mosec", "kind": "json", "case": "S"}, LOADED | {"rate": 250.0}),
        Row("failed", {"server": "mlserver", "why": "it ended"}, {"rounds": 1}),
        Row("servers", {"server": "mosec"}, {"start_s": 1.5, "rss_mib": 300.0}),
    ]
    return Results({"processor": "of this test"}, {"peers": "mosec", "rounds": 1}, rows)


def test_the_report_says_how_many_times_as_fast(tmp_path):
    """Ratios of one run, with the errors of whoever had some, and gaps where a server cannot do a case."""
    text = report.markdown(recorded())

    assert "| S | json | 8 | 1,000 (2.000 / 5.000) | 500 (2.000 / 5.000), 2 errors ×2.00 |" in text
    assert "| mixed | json | 8 | 1,000 (2.000 / 5.000) |  |" in text
    assert "## Open loop" in text
    assert "| mlserver | it ended |" in text
    assert "| mosec | 1.500 | 300 |" in text


def test_the_report_is_written(tmp_path):
    """The text, the picture and the figures."""
    path = report.write(recorded(), tmp_path)

    assert path.read_text() == report.markdown(recorded())
    assert "<svg" in (tmp_path / "peers.svg").read_text()
    assert load(tmp_path / "peers.json") == recorded()
    assert np.isfinite(recorded().rows[0].figures["rate"])
