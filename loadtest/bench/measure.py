"""Requests made ready, and a server measured with them: loaded, or with a lone request at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from loadtest.bench.formats import Format, Message
from loadtest.bench.generator import Result, drive
from loadtest.bench.http import Failed, Request, ask, read_head, wire
from loadtest.bench.results import Figures
from loadtest.bench.work import F32, Layer, check

STAGES: Final = ("decode", "queue", "compute", "encode")
"""The stages of an inference answer's `Server-Timing`."""

CHECKED_ROWS: Final = 256
"""Rows of an answer that are compared with float64: of long sequences, the first."""


def prepare(port: int, layer: Layer, sequences: Sequence[F32], form: Format) -> list[Request]:
    """Ask each sequence once, check the answer, and learn how long it is.

    Raises:
        Failed: if an answer is not 200.
        WrongAnswer: if an answer's numbers are not right.
    """

    def judge(answer: Message, x: F32) -> None:
        check(layer, x, form.decode(answer, layer, len(x)), CHECKED_ROWS)

    prepared = []
    for x in sequences:
        request = Request(wire("127.0.0.1", form.encode(layer, x)), partial(judge, x=x))
        prepared.append(Request(request.wire, request.check, len(ask(port, request).body)))
    return prepared


def loaded(port: int, requests: Sequence[Request], connections: int, seconds: float) -> Figures:
    """Throughput and latency in a closed loop, after a warm-up."""
    drive(port, requests, connections=connections, seconds=warm_up_s(seconds))
    return figures(drive(port, requests, connections=connections, seconds=seconds))


def warm_up_s(seconds: float) -> float:
    """How long a server is warmed up before so many seconds are measured."""
    return min(1.0, seconds / 4)


def figures(result: Result) -> Figures:
    """What tables and pictures need of a run."""
    return {
        "rate": result.rate,
        "p50_ms": result.latency_ms(50),
        "p99_ms": result.latency_ms(99),
        "errors": len(result.errors),
        "client_us": result.client_cpu_s / max(1, len(result.latencies)) * 1e6,
    }


def lone(port: int, requests: Sequence[Request], seconds: float, *, staged: bool = True) -> Figures:
    """What a lone caller waits for, request by request, and where the time goes.

    `outside` is what no stage counts: sockets, HTTP, routing, and the caller. `overhead` is all but `compute`.

    Args:
        port: of the service.
        requests: sent in turn over one connection.
        seconds: how long, after a warm-up.
        staged: whether answers have a `Server-Timing`.

    Raises:
        Failed: if an answer is wrong or lacks a stage, or the service's clock is too coarse.
    """
    drive(port, requests, connections=1, seconds=warm_up_s(seconds))
    result = drive(port, requests, connections=1, seconds=seconds, keep_heads=staged)
    if result.errors:
        raise Failed(f"a lone request failed: {result.errors[0]}")
    found = {"p50_ms": result.latency_ms(50), "p99_ms": result.latency_ms(99)}
    if not staged:
        return found
    timings = [parse_server_timing(read_head(head)[1].get("server-timing", "")) for head in result.heads]
    for timing in timings:
        if missing := [stage for stage in STAGES if stage not in timing]:
            raise Failed(f"Server-Timing lacks {', '.join(missing)}")
    latency = result.latencies_ms()  # (answers,)
    stages = {stage: np.array([timing[stage] for timing in timings]) for stage in STAGES}  # (answers,) each
    if np.median(stages["compute"]) <= 0:
        # An event loop's own clock may tick in milliseconds; all of the latency would then count as overhead.
        raise Failed("compute is 0 in at least half of the answers: the service's clock is too coarse")
    found |= {f"{stage}_ms": float(np.median(values)) for stage, values in stages.items()}
    overhead = latency - stages["compute"]  # (answers,)
    return found | {
        "outside_ms": float(np.median(latency - sum(stages.values()))),
        "overhead_p50_ms": float(np.percentile(overhead, 50)),
        "overhead_p99_ms": float(np.percentile(overhead, 99)),
    }


def parse_server_timing(header: str) -> dict[str, float]:
    """Read a `Server-Timing` header such as `decode;dur=0.012, queue;dur=0.1`.

    Returns:
        Milliseconds by stage, in the header's order; a stage without a `dur` is left out.

    Raises:
        Failed: if a `dur` is not a number.
    """
    stages = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur":
                try:
                    stages[name] = float(value.strip().strip('"'))
                except ValueError as error:
                    raise Failed(f"Server-Timing has {entry.strip()!r}") from error
    return stages
