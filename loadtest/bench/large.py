"""Whether large JSON bodies hold up small requests: `make bench-large`, or `python -m loadtest.bench.large`.

A few callers post and read large JSON bodies without a pause. Beside them, one asks for 16 tokens in safetensors and
for `GET /healthz/live` in turns, at a fixed rate, and its latency counts from when each was due. Both are measured
alone too, just before. A process that only sleeps is measured beside them: how late the machine wakes it is what no
answer can undercut. Where it may, as root, the one that asks for little goes before the others when there is no core
for all: else it waits for one itself, and measures that.
"""

import argparse
import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson

from loadtest.bench.formats import Message, service_formats
from loadtest.bench.generator import Result, drive
from loadtest.bench.http import Failed, Request, ask, wire
from loadtest.bench.measure import prepare
from loadtest.bench.options import duration, positive
from loadtest.bench.processes import end_in_order, get, started_service
from loadtest.bench.work import Layer, inputs, write_repository
from loadtest.payloads import PATH

SMALL, LARGE = Layer(64), Layer(384, 12)
KINDS: Final = ("small binary request", "GET /healthz/live")
RATE: Final = 100.0
"""Small requests a second: they are to be in the way of nobody."""

DIGITS: Final = 11
"""About how many bytes a float32 takes in JSON, with its comma."""

Milliseconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Waits:
    """How long one kind of small request took, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, elapsed_ms: Milliseconds) -> "Waits":
        """Percentiles of what requests took, (requests,) milliseconds."""
        p50, p99 = np.percentile(elapsed_ms, [50, 99])
        return cls(float(p50), float(p99), float(elapsed_ms.max()))


def large_request(tokens: int, mib: float) -> Request:
    """A JSON request of about `mib` MiB for outputs: sequences of `tokens` tokens, one if a second is too much."""
    count = max(1, round(mib * 2**20 / (tokens * LARGE.width * DIGITS)))
    sequences = np.stack([inputs(tokens, LARGE.width, seed) for seed in range(count)])  # (count, tokens, width)
    fields = {"model": LARGE.name, "return": ["outputs"], "inputs": sequences if count > 1 else sequences[0]}
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    return Request(wire("127.0.0.1", Message(PATH, headers, orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY))))


def small_requests(port: int) -> list[Request]:
    """One of each of KINDS, checked once."""
    (binary,) = prepare(port, SMALL, [inputs(16, SMALL.width)], service_formats()["safetensors"])
    return [binary, get("/healthz/live")]


def waits(result: Result) -> dict[str, Waits]:
    """What a run of small requests in turns took, by kind.

    Raises:
        Failed: if one of them failed.
    """
    if result.errors:
        raise Failed(f"a small request failed: {result.errors[0]}")
    elapsed = result.latencies_ms()
    return {kind: Waits.of(elapsed[i :: len(KINDS)]) for i, kind in enumerate(KINDS)}


def load(port: int, wired: bytes, clients: int, seconds: float, asked: Pipe) -> None:
    """Post and read large bodies in a process of its own, once asked; tells how many answers a second there were."""
    request = Request(wired)
    drive(port, [request], connections=clients, seconds=0.1)  # everything has been met once
    _wait(asked)
    result = drive(port, [request], connections=clients, seconds=seconds)
    asked.send(result.errors[0] if result.errors else result.rate)


def sleep(seconds: float, asked: Pipe) -> None:
    """Sleep for a moment again and again, once asked; tells how late each time, (times,) milliseconds."""
    _wait(asked)
    late, end = [], time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        time.sleep(1 / RATE)
        late.append((time.perf_counter() - now - 1 / RATE) * 1e3)
    asked.send(late)


def _wait(asked: Pipe) -> None:
    """Say that all is loaded, which takes a core for a while and is not to be measured; wait until it begins."""
    asked.send("ready")
    asked.recv()


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured.

    Attributes:
        alone, beside: small requests by themselves, and beside the large ones, by kind; and `a sleep`.
        large_mb_s: bytes of large bodies posted by all callers together, MB/s.
    """

    alone: dict[str, Waits]
    beside: dict[str, Waits]
    large_mb_s: float


def measure(port: int, request: Request, clients: int, seconds: float) -> Report:
    """Measure small requests alone, then beside large ones.

    Raises:
        Failed: if an answer is not right.
        OSError: if a connection breaks.
    """
    ask(port, request)
    small = small_requests(port)
    drive(port, small, connections=1, seconds=1.0)
    alone = waits(drive(port, small, connections=1, seconds=seconds, rate=RATE))
    context = multiprocessing.get_context("spawn")
    (load_end, load_asked), (sleep_end, sleep_asked) = context.Pipe(), context.Pipe()
    begun = (port, request.wire, clients, seconds + 1, load_asked)
    context.Process(target=load, args=begun, daemon=True).start()
    context.Process(target=sleep, args=(seconds, sleep_asked), daemon=True).start()
    for end in (load_end, sleep_end):
        end.recv()
    for end in (load_end, sleep_end):
        end.send("go")
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, priority - 5)
        beside = waits(drive(port, small, connections=1, seconds=seconds, rate=RATE))
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, priority)
    rate = load_end.recv()
    if isinstance(rate, str):
        raise Failed(f"a large request failed: {rate}")
    beside["a sleep"] = Waits.of(np.array(sleep_end.recv()))
    return Report(alone, beside, rate * len(request.wire) / 1e6)


def table(report: Report) -> str:
    """The table for people, in Markdown."""
    lines = ["| ms | alone: p50 | p99 | max | beside: p50 | p99 | max |", "| --- |" + " --- |" * 6]
    for kind, beside in report.beside.items():
        alone = report.alone.get(kind)
        before = (f"{alone.p50_ms:.2f}", f"{alone.p99_ms:.2f}", f"{alone.max_ms:.2f}") if alone else ("", "", "")
        cells = (*before, f"{beside.p50_ms:.2f}", f"{beside.p99_ms:.2f}", f"{beside.max_ms:.2f}")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join((*lines, "", f"Large bodies: {report.large_mb_s:.1f} MB/s posted by all callers together.", ""))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m loadtest.bench.large",
        description="Measure what small requests wait while large JSON bodies are posted and read beside them.",
        epilog="Compare only runs of one machine; load generator and service share its cores.",
    )
    made.add_argument("--workers", type=positive, default=2, help="ATTENTION_WORKERS (default: %(default)s)")
    made.add_argument("--clients", type=positive, default=8, help="large requests at a time (default: %(default)s)")
    made.add_argument("--mib", type=positive, default=20, help="size of their bodies, MiB (default: %(default)s)")
    made.add_argument("--tokens", type=positive, default=64, help="tokens of a sequence in them (%(default)s)")
    made.add_argument("--seconds", type=duration, default=20.0, help="of each part of the run (default: %(default)s)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Returns:
        0; 1 if there was nothing to measure, with the reason on stderr.
    """
    options = parser().parse_args(arguments)
    end_in_order()
    request = large_request(options.tokens, options.mib)
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_repository(Path(folder) / "repository", (SMALL, LARGE))
            with started_service(Path(folder), workers=options.workers) as service:
                report = measure(service.port, request, options.clients, options.seconds)
    except (OSError, Failed) as error:
        sys.stderr.write(f"large: {error}\n")
        return 1
    size = len(request.wire) / 1e6
    sys.stdout.write(
        f"{options.workers} workers; {options.clients} callers with bodies of {size:.1f} MB, sequences of "
        f"{options.tokens} tokens × {LARGE.width}\n\n{table(report)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
