"""Run other servers beside this one: `make bench-peers`, or `python -m loadtest.peers`."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx

from loadtest.bench import graphs, work
from loadtest.bench.formats import Format, service_formats
from loadtest.bench.generator import drive
from loadtest.bench.http import Failed, Request
from loadtest.bench.machine import cores, facts
from loadtest.bench.measure import figures, loaded, prepare
from loadtest.bench.options import add_common, positive, several
from loadtest.bench.processes import PORTS, Server, end_in_order, free_port, started, started_service
from loadtest.bench.report import progress
from loadtest.bench.results import Results, Row
from loadtest.bench.work import Case, Layer
from loadtest.peers import PEERS, report
from loadtest.peers.base import SERVERS, Peer
from loadtest.peers.environments import installed

OURS: Final = report.OURS
DEFAULT: Final = ("mosec", "mosec-msgpack", "mlserver", "fastapi")
CASES: Final = ("S", "M", "L", "mixed")
"""Those of one head: what the peers' graphs compute."""

OPEN_CONNECTIONS: Final = 128
"""Most requests that are on their way at a time in an open loop."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is asked for."""

    peers: tuple[str, ...]
    cases: tuple[Case, ...]
    connections: tuple[int, ...]
    seconds: float
    rounds: int
    open_loop: bool
    workers: int
    peer_workers: int
    environments: Path


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m loadtest.peers",
        description="Give other servers the same work on this machine, in turn with this one, and write the ratios. "
        "They are installed on first use, in environments of their own.",
        epilog="Nothing else should run on the machine meanwhile.",
    )
    made.add_argument("--peers", type=several(*PEERS), default=DEFAULT, help=f"of {', '.join(PEERS)}")
    add_common(made, cases=CASES)
    made.set_defaults(cases=("S", "M", "mixed"), connections=(1, 8, 32), seconds=2.0, rounds=3)
    made.add_argument("--open-loop", action="store_true", help="also send at half of each one's own closed-loop rate")
    made.add_argument(
        "--workers", type=positive, default=0, help="ATTENTION_WORKERS of this service (default: not set)"
    )
    made.add_argument(
        "--peer-workers",
        type=positive,
        default=1,
        help="processes of the peers that can have several, among which the cores are divided (default: %(default)s)",
    )
    made.add_argument(
        "--environments",
        type=Path,
        default=Path(".bench-peers"),
        metavar="FOLDER",
        help="where peers are installed (default: %(default)s)",
    )
    made.add_argument("--out", type=Path, default=Path("bench-report"), help="folder written to (default: %(default)s)")
    return made


def variables_of(peer: Peer, models: Path, workers: int, places: Mapping[str, str]) -> dict[str, str]:
    """The environment of a peer's program."""
    threads = str(max(1, cores() // workers))
    general = {
        "BENCH_MODELS": str(models),
        "BENCH_WORKERS": str(workers),
        "BENCH_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        "PYTHONPATH": str(SERVERS),
    }
    return general | {name: value.format(**places) for name, value in peer.variables.items()}


def write_graphs(folder: Path, layers: set[Layer]) -> None:
    """The layers as the peers open them: one file for each width, and one that takes padding."""
    folder.mkdir()
    for layer in layers:
        for name, padded in ((f"{layer.width}", False), (f"{layer.width}-padded", True)):
            onnx.save(graphs.attention(layer, padded=padded), folder / f"{name}.onnx")


def running(name: str, plan: Plan, folder: Path) -> AbstractContextManager[Server]:
    """Start one of them."""
    if name == OURS:
        return started_service(folder, "cpu", plan.workers)
    peer, port = PEERS[name], free_port()
    programs = installed(plan.environments, peer.environment, peer.requirements).absolute()
    places = {"bin": str(programs), "port": str(port)} | {f"port{i}": str(port + i) for i in range(1, PORTS)}
    workers = plan.peer_workers if peer.scales else 1
    variables = variables_of(peer, folder / "graphs", workers, places)
    return started([part.format(**places) for part in peer.command], port, peer.ready, variables, folder)


def formats_of(name: str) -> Mapping[str, Format]:
    """What is asked of one of them, by kind."""
    ours = service_formats()
    return {"json": ours["json"], "binary": ours["safetensors"]} if name == OURS else PEERS[name].formats


def measured(plan: Plan, folder: Path) -> Iterator[Row]:
    """All rounds: each starts every server in turn, alone."""
    layers = {case.layer for case in plan.cases}
    work.write_repository(folder / "repository", layers)
    write_graphs(folder / "graphs", layers)
    for name in plan.peers:
        installed(plan.environments, PEERS[name].environment, PEERS[name].requirements)
    for _ in range(plan.rounds):
        for name in (OURS, *plan.peers):
            try:
                yield from _alone(plan, name, folder)
            except (OSError, Failed, work.WrongAnswer) as error:
                sys.stderr.write(f"peers: {name} failed: {error}\n")
                yield Row("failed", {"server": name, "why": str(error).splitlines()[0]}, {"rounds": 1})


def _alone(plan: Plan, name: str, folder: Path) -> Iterator[Row]:
    """One server, while no other runs."""
    begun = time.monotonic()
    with running(name, plan, folder) as server:
        start_s = time.monotonic() - begun
        for case in plan.cases:
            if name == OURS or case.name not in PEERS[name].skips:
                yield from _case(plan, name, server, case)
        yield Row("servers", {"server": name}, {"start_s": start_s, "rss_mib": server.rss_mib()})


def _case(plan: Plan, name: str, server: Server, case: Case) -> Iterator[Row]:
    for kind, form in formats_of(name).items():
        requests = prepare(server.port, case.layer, case.inputs(), form)
        server_name = name if name == OURS else PEERS[name].environment
        key: dict[str, str | int] = {"server": server_name, "kind": kind, "case": case.name}
        for connections in plan.connections:
            found = loaded(server.port, requests, connections, plan.seconds)
            yield Row("peers", key | {"connections": connections}, found)
        if plan.open_loop:
            yield Row("open loop", key, _open(server, requests, found["rate"] / 2, plan.seconds))


def _open(server: Server, requests: Sequence[Request], rate: float, seconds: float) -> dict[str, float]:
    result = drive(server.port, requests, connections=OPEN_CONNECTIONS, seconds=seconds, rate=rate)
    return {"asked": rate} | figures(result)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Returns:
        0; 1 if a server could not be installed or measured, with the reason on stderr.
    """
    options = vars(parser().parse_args(arguments))
    out: Path = options.pop("out")
    plan = Plan(**(options | {"cases": tuple(work.cases()[name] for name in options["cases"])}))
    rows: list[Row] = []
    machine = facts()
    end_in_order()
    try:
        with tempfile.TemporaryDirectory(prefix="attention-peers-") as folder:
            for row in measured(plan, Path(folder)):
                rows.append(row)
                progress(row)
    except (OSError, Failed) as error:
        sys.stderr.write(f"peers: {error}\n")
        return 1
    asked: dict[str, Any] = {name: options[name] for name in ("seconds", "rounds", "workers", "peer_workers")}
    results = Results(machine, asked | {"peers": " ".join(plan.peers)}, rows)
    sys.stdout.write(f"{report.markdown(results)}\nWritten: {report.write(results, out)}\n")
    return 1 if results.section("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
