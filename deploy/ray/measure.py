"""What the way through Ray costs: `make bench-ray`, or `scripts/alone python -m deploy.ray.measure`.

The same requests, in one run, to a single process of the service and to a Ray cluster of one node on the same machine:
one ingress replica with one engine replica, then with two; behind Serve's own proxy, then behind HAProxy. The single
process is measured anew beside each, because machines slow down and speed up. An engine has one compute thread, as the
single process has.

Beside what a client sees there is the processor time that each process takes for a request: where there are fewer cores
than processes, it is that which says how many replicas of each kind one needs.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from deploy.ray import local
from loadtest.bench import work
from loadtest.bench.formats import service_formats
from loadtest.bench.generator import drive
from loadtest.bench.http import Failed, Request
from loadtest.bench.machine import cores
from loadtest.bench.measure import figures, prepare, warm_up_s
from loadtest.bench.options import duration, positive, several
from loadtest.bench.processes import Server, end_in_order, started_service
from loadtest.bench.tables import number, table

ENGINES: Final = (1, 2)
FORMATS: Final = ("safetensors", "json")
FRONTS: Final = {"proxy": local.NOTHING, "haproxy": local.HAPROXY}
"""What is in front of the ingress, and the environment that makes it so."""

PARTS: Final = {
    "front": ("ray::ProxyActor", "ray::HAProxy", "haproxy"),
    "ingress": ("ray::ServeReplica:attention:Ingress",),
    "engine": ("ray::ServeReplica:attention:Engine",),
    "controller": ("ray::ServeController",),
}
"""Processes that a request passes, or that count it, by how their command lines begin."""

HEAD: Final = (
    "request", "connections", "served by", "requests/s", "p50 ms", "p99 ms",
    "of the single process", "processor ms a request", "of the single process", "whose",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """One measurement.

    Attributes:
        rate: requests a second.
        cpu_ms: processor time a request, by part.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: dict[str, float]


def watch(port: int, requests: Sequence[Request], connections: int, seconds: float, parts: "Parts") -> Seen:
    """Drive a server in a closed loop, and see what its processes take for it.

    Raises:
        Failed: if an answer is wrong or missing.
    """
    drive(port, requests, connections=connections, seconds=warm_up_s(seconds))
    before = {part: _cpu_s(found) for part, found in parts().items()}
    result = drive(port, requests, connections=connections, seconds=seconds)
    after = {part: _cpu_s(found) for part, found in parts().items()}
    if result.errors:
        raise Failed(result.errors[0])
    found = figures(result)
    answers = len(result.latencies)
    cpu = {part: (after[part] - before[part]) / answers * 1e3 for part in before}
    return Seen(found["rate"], found["p50_ms"], found["p99_ms"], cpu)


Parts = Callable[[], dict[str, list[psutil.Process]]]
"""The processes of a server, by part."""


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(time.user + time.system for time in times))


def of_service(server: Server) -> Parts:
    """A single process is one part."""
    return lambda: {"service": [psutil.Process(server.pid)]}


def of_ray() -> dict[str, list[psutil.Process]]:
    """See `PARTS`."""
    return {part: [p for title in titles for p in local.processes(title)] for part, titles in PARTS.items()}


@contextmanager
def cluster(folder: Path, front: str) -> Iterator[Callable[[int], None]]:
    """A cluster of one node with that front; what deploys the service there with so many engine replicas."""
    settings = {
        "model_repository": str(folder / "repository"),
        "artifacts": str(folder / "artifacts"),
        "log_level": "warning",
    }
    own = {"autoscaling_config": None}

    def deployed(engines: int) -> None:
        wanted = local.document(settings, Ingress={**own, "num_replicas": 1}, Engine={**own, "num_replicas": engines})
        local.deploy(wanted, folder)

    with local.nodes(1, cpus=4, environment=FRONTS[front]):
        yield deployed


def lines(case: work.Case, form: str, connections: int, name: str, single: Seen, other: Seen) -> Iterator[list[str]]:
    """Rows of the table: the single process, and what was measured beside it."""
    for served, seen in (("single process", single), (name, other)):
        whose = ", ".join(f"{part} {ms:.2f}" for part, ms in seen.cpu_ms.items() if ms >= 0.005)
        rate = f"{seen.rate / single.rate:.2f}"
        total, less = sum(seen.cpu_ms.values()), sum(single.cpu_ms.values())
        yield [
            f"{case.title}, {form}", str(connections), served, number(seen.rate), number(seen.p50_ms),
            number(seen.p99_ms), rate, number(total), f"{total / less:.1f} ×", whose,
        ]  # fmt: skip


def compared(
    service: Server, case: work.Case, form: str, served: str, options: argparse.Namespace
) -> Iterator[list[str]]:
    """Rows of the table: the single process and Ray, at each number of connections.

    Raises:
        Failed: if an answer is wrong or missing.
    """
    layout = service_formats()[form]
    here, there = (prepare(port, case.layer, case.inputs(), layout) for port in (service.port, local.PORT))
    for connections in options.connections:
        single = watch(service.port, here, connections, options.seconds, of_service(service))
        ray = watch(local.PORT, there, connections, options.seconds, of_ray)
        for row in lines(case, form, connections, served, single, ray):
            sys.stderr.write("  ".join(row) + "\n")
            yield row


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m deploy.ray.measure",
        description="Measure the service on a Ray cluster of one node beside a single process of it.",
        epilog="Nothing else should run on the machine meanwhile. Compare only ratios of one run.",
    )
    known = tuple(work.cases())
    made.add_argument("--cases", type=several(*known), default=("S", "M"), help=f"of {', '.join(known)} (default: S,M)")
    made.add_argument("--formats", type=several(*FORMATS), default=FORMATS, help=f"of {', '.join(FORMATS)}")
    made.add_argument("--fronts", type=several(*FRONTS), default=tuple(FRONTS), help=f"of {', '.join(FRONTS)}")
    made.add_argument("--connections", type=several(of=positive), default=(1, 16), help="such as 1,16")
    made.add_argument("--seconds", type=duration, default=4.0, help="of each measurement (default: %(default)g)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Returns:
        0; 1 if there was nothing to measure, with the reason on stderr.
    """
    options = parser().parse_args(arguments)
    if not local.lonely():
        sys.stderr.write("there are other networks than loopback here, where Ray waits for itself: scripts/alone …\n")
        return 1
    end_in_order()
    cases = [case for name, case in work.cases().items() if name in options.cases]
    rows: list[list[str]] = []
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            work.write_repository(folder / "repository", {case.layer for case in cases})
            with started_service(folder, "cpu", 1, {"ATTENTION_COMPUTE_THREADS": "1"}) as service:
                for front in options.fronts:
                    with cluster(folder, front) as deployed:
                        for engines in ENGINES:
                            deployed(engines)
                            served = f"Ray, {front}, {engines} engine{'s' * (engines > 1)}"
                            for case, form in itertools.product(cases, options.formats):
                                rows += compared(service, case, form, served, options)
    except (OSError, Failed, local.NotDone) as error:
        sys.stderr.write(f"measure: {error}\n")
        return 1
    sys.stdout.write(f"{cores()} cores.\n\n{table(HEAD, rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
