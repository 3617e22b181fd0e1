"""What is measured of the service, a function for each section of the report.

Rounds take turns: all that a section compares is measured once, then once more, so that a machine that slows down slows
all of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench import work
from loadtest.bench.floor import BATCH, Backend, Floor
from loadtest.bench.formats import service_formats
from loadtest.bench.generator import drive
from loadtest.bench.http import Request
from loadtest.bench.measure import loaded, lone, prepare
from loadtest.bench.processes import Server, get, started_service
from loadtest.bench.results import Row
from loadtest.bench.work import Case, Layer

BUSY: Final = 16
"""Connections that keep the service busy, where throughput alone is asked for."""

LENGTHS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
FIXED_WIDTH: Final = 384
WIDTHS: Final = (64, 128, 256, 384, 512, 768, 1024)
FIXED_LENGTH: Final = 128
LONG: Final = (1024, 4096, 8192, 16_384)
"""Tokens, and widths, that are gone through; and lengths of which outputs alone are asked for."""

LIVE: Final = "GET /healthz/live"
"""The floor under a lone request: what the caller, sockets and the HTTP server cost before the service does a thing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is asked for.

    Attributes:
        cases, formats, backends: which.
        connections: of the concurrency section, in turn.
        seconds: how long each measurement takes.
        rounds: how often each is made.
        lengths, widths: of the sizes section.
        device: of the service and of the floor.
        workers: `ATTENTION_WORKERS` of the services that are compared; 0 is not set.
    """

    cases: tuple[Case, ...]
    formats: tuple[str, ...]
    backends: tuple[Backend, ...]
    connections: tuple[int, ...]
    seconds: float
    rounds: int
    lengths: tuple[int, ...] = LENGTHS
    widths: tuple[int, ...] = WIDTHS
    device: str = "auto"
    workers: tuple[int, ...] = (0,)

    def layers(self) -> set[Layer]:
        """Every layer that some section asks."""
        own = {case.layer for case in self.cases}
        return own | {Layer(width) for width in (*self.widths, FIXED_WIDTH, min(WIDTHS))}


Services = Mapping[int, Server]
"""Running services by their number of workers, 0 for the default."""


def floor(plan: Plan, services: Services, raw: Floor) -> Iterator[Row]:
    """Throughput of the service, and of the computation alone, for the same sequences."""
    asked = {
        (case.name, backend, form, workers): prepare(
            server.port, case.layer, case.inputs(), service_formats(backend=backend)[form]
        )
        for case in plan.cases
        for backend in plan.backends
        for form in plan.formats
        for workers, server in services.items()
    }
    for _ in range(plan.rounds):
        for case in plan.cases:
            batches = (1, BATCH) if len(set(case.lengths)) == 1 else (1,)
            for backend in plan.backends:
                for processes, batch in ((1, 1), *((raw.count, batch) for batch in batches)):
                    rate = raw.rate(
                        case.name, backend, processes=processes, batch=batch, seconds=min(1.0, plan.seconds)
                    )
                    kind: dict[str, str | int] = {"processes": processes, "batch": batch}
                    yield Row("floor", {"case": case.name, "backend": backend, **kind}, {"rate": rate})
                for (name, of, form, workers), requests in asked.items():
                    if (name, of) == (case.name, backend):
                        key = _key(name, form, workers, backend=backend, connections=BUSY)
                        yield Row("service", key, loaded(services[workers].port, requests, BUSY, plan.seconds))


def concurrency(plan: Plan, services: Services) -> Iterator[Row]:
    """Throughput and latency as connections grow."""
    asked = {
        (case.name, form, workers): prepare(server.port, case.layer, case.inputs(), service_formats()[form])
        for case in plan.cases
        for form in plan.formats
        for workers, server in services.items()
    }
    for _ in range(plan.rounds):
        for (case, form, workers), requests in asked.items():
            for connections in plan.connections:
                found = loaded(services[workers].port, requests, connections, plan.seconds)
                yield Row("concurrency", _key(case, form, workers, connections=connections), found)


def sizes(plan: Plan, server: Server) -> Iterator[Row]:
    """Where a lone request's time goes as sequences grow longer, and wider."""
    form = service_formats()["safetensors"]
    over_n = [("n", n, FIXED_WIDTH) for n in plan.lengths]
    over_d = [("d", FIXED_LENGTH, width) for width in plan.widths]
    asked: list[tuple[str, int, int, Sequence[Request]]] = [
        (over, n, d, prepare(server.port, Layer(d), [work.inputs(n, d)], form)) for over, n, d in over_n + over_d
    ]
    for _ in range(plan.rounds):
        for over, n, d, requests in asked:
            yield Row("sizes", {"over": over, "n": n, "d": d}, lone(server.port, requests, plan.seconds))


def stages(plan: Plan, server: Server) -> Iterator[Row]:
    """Where a lone request's time goes, for each case and format, and the floor under all of them."""
    asked = {
        (case.name, form): prepare(server.port, case.layer, case.inputs(), service_formats()[form])
        for case in plan.cases
        for form in plan.formats
    }
    for _ in range(plan.rounds):
        yield Row("stages", {"case": LIVE}, lone(server.port, [get("/healthz/live")], plan.seconds, staged=False))
        for (case, form), requests in asked.items():
            yield Row("stages", {"case": case, "format": form}, lone(server.port, requests, plan.seconds))


def memory(plan: Plan, folder: Path) -> Iterator[Row]:
    """Memory of a service that has just started, after each case, and of outputs alone of long sequences."""
    with started_service(folder, plan.device, plan.workers[0]) as server:
        yield _weighed(server, "at the start")
        for case in plan.cases:
            for form in plan.formats:
                server.forget_peak()
                requests = prepare(server.port, case.layer, case.inputs(), service_formats()[form])
                drive(server.port, requests, connections=BUSY, seconds=plan.seconds)
                yield _weighed(server, f"{case.name}, {form}, {BUSY} connections")
        for n in LONG:
            layer = Layer(min(WIDTHS))
            form_alone = service_formats(**{"return": "outputs"})["safetensors"]
            server.forget_peak()
            before = server.rss_mib()
            prepare(server.port, layer, [work.inputs(n, layer.width)], form_alone)
            yield _weighed(server, "outputs alone", n=n, grown_mib=server.peak_mib() - before)


def _weighed(server: Server, what: str, n: int = 0, **more: float) -> Row:
    key: dict[str, str | int] = {"after": what} | ({"n": n} if n else {})
    return Row("memory", key, {"rss_mib": server.rss_mib(), "peak_mib": server.peak_mib(), **more})


def _key(case: str, form: str, workers: int, **more: str | int) -> dict[str, str | int]:
    return {"case": case, "format": form, "workers": workers, **more}
