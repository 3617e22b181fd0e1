"""How much sooner a lone long sequence is computed when idle compute slots help, and whether its bits stay the same.

`make bench-sharing`, or `python -m loadtest.bench.sharing`, starts two idle services, one with one compute slot and one
with several, and asks each in turn for the same sequence, one request at a time. What is compared is the `compute` of
`Server-Timing`; every pair of answers must be equal, byte by byte. The ratios say from how much work on sharing pays.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from loadtest.bench.formats import service_formats
from loadtest.bench.http import Failed, Request, ask, wire
from loadtest.bench.machine import cores
from loadtest.bench.measure import parse_server_timing
from loadtest.bench.options import positive
from loadtest.bench.processes import end_in_order, started_service
from loadtest.bench.tables import number, table
from loadtest.bench.work import Layer, inputs, write_repository

THREADS: Final = "ATTENTION_COMPUTE_THREADS"
HEADS, HEAD, WIDE = Layer(384, 12), Layer(64), Layer(768)
WARM_UP: Final = 3
"""Requests before those that count: the cost of a kind of request must be known, and sessions open."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked for.

    Attributes:
        layer: which.
        tokens: of the sequence.
        wanted: tensors, with commas between.
        causal: whether rows see earlier columns only.
    """

    layer: Layer
    tokens: int
    wanted: str = "outputs"
    causal: bool = False

    def __str__(self) -> str:
        heads = f"{self.layer.heads} head{'s' * (self.layer.heads != 1)}"
        wanted = self.wanted.replace(",", " and ")
        return f"{self.tokens:,} tokens × {self.layer.width}, {heads}: {wanted}{', causal' * self.causal}"

    def request(self) -> Request:
        """It, in safetensors."""
        options = {"return": self.wanted} | ({"is_causal": "true"} if self.causal else {})
        form = service_formats(**options)["safetensors"]
        return Request(wire("127.0.0.1", form.encode(self.layer, inputs(self.tokens, self.layer.width))))


CASES: Final = (
    Case(HEADS, 128, "outputs,weights"),
    Case(HEAD, 512),
    Case(HEADS, 512),
    Case(HEADS, 512, "outputs,weights"),
    Case(HEADS, 1_024),
    Case(HEADS, 1_024, causal=True),
    Case(HEADS, 1_024, "outputs,weights"),
    Case(HEADS, 4_096),
    Case(HEAD, 4_096),
    Case(WIDE, 512),
    Case(WIDE, 512, "outputs,weights"),
)
"""The first two are not shared: they are too short for tiles, whatever there is to help."""


def measure(ports: Sequence[int], case: Case, rounds: int) -> list[list[float]]:
    """Milliseconds of `compute` by service, one for each round; the services take turns.

    Raises:
        Failed: if an answer is not 200, says nothing of its computation, or two are not the same.
        OSError: if a connection cannot be made or breaks.
    """
    request = case.request()
    took: list[list[float]] = [[] for _ in ports]
    for at in range(WARM_UP + rounds):
        answers = [ask(port, request) for port in ports]
        if any(answer.body != answers[0].body for answer in answers):
            raise Failed(f"{case}: the answers are not the same")
        for answer, times in zip(answers, took, strict=True):
            timing = parse_server_timing(answer.headers.get("server-timing", ""))
            if not timing.get("compute"):
                raise Failed("Server-Timing does not say how long compute took")
            if at >= WARM_UP:
                times.append(timing["compute"])
    return took


def line(case: Case, alone: Sequence[float], shared: Sequence[float]) -> tuple[str, ...]:
    """A row of the table: medians, and the median of the ratios of each round, with the lowest and the highest."""
    ratios = np.array(alone) / np.array(shared)  # (rounds,)
    low, middle, high = np.percentile(ratios, (0, 50, 100))
    medians = (number(float(np.median(times))) for times in (alone, shared))
    return (str(case), *medians, f"{middle:.2f}", f"{low:.2f} to {high:.2f}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m loadtest.bench.sharing",
        description="Measure how much sooner a lone long sequence is computed when idle compute slots help.",
        epilog="Nothing else should run on the machine meanwhile. Compare only runs of one machine.",
    )
    made.add_argument("--slots", type=positive, default=cores(), help="of the second service (default: %(default)s)")
    made.add_argument("--rounds", type=positive, default=15, help="requests that count (default: %(default)s)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Returns:
        0; 1 if there was nothing to measure or answers differ, with the reason on stderr.
    """
    options = parser().parse_args(arguments)
    end_in_order()
    lines = []
    try:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            folder = Path(name)
            write_repository(folder / "repository", {case.layer for case in CASES})
            ports = []
            for count in (1, options.slots):
                more = {THREADS: str(count)}
                ports.append(stack.enter_context(started_service(folder, "cpu", 1, more)).port)
            for case in CASES:
                lines.append(line(case, *measure(ports, case, options.rounds)))
                sys.stderr.write(f"{'  '.join(lines[-1])}\n")
    except (OSError, Failed) as error:
        sys.stderr.write(f"sharing: {error}\n")
        return 1
    head = ("compute", "1 slot, ms", f"{options.slots} slot{'s' * (options.slots != 1)}, ms", "ratio", "of rounds")
    sys.stdout.write(f"{table(head, lines)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
