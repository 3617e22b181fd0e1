"""What log lines and spans cost: processor time of the service for one small request, with and without.

`make bench-watching`, or `python -m loadtest.bench.watching`, starts one service for each way of watching, of one
worker, and has each in turn answer the same requests over one connection. Processor time, not waiting time, is
compared: the clock of the processor stands still while others have the machine. Spans are sent to a collector that
reads and drops them.
"""

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import numpy as np

from loadtest.bench.formats import service_formats
from loadtest.bench.generator import drive
from loadtest.bench.http import Failed, Request
from loadtest.bench.measure import prepare
from loadtest.bench.options import positive
from loadtest.bench.processes import Server, end_in_order, family, started_service
from loadtest.bench.tables import table
from loadtest.bench.work import Layer, inputs, write_repository

LAYER, TOKENS = Layer(64), 16
TRACED: Final = {"ATTENTION_TRACING": "true"}
LOGGED: Final = {"ATTENTION_ACCESS_LOG": "true", "ATTENTION_LOG_LEVEL": "info"}
WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "nothing": {},
    "access log, text": LOGGED,
    "access log, JSON": LOGGED | {"ATTENTION_LOG_FORMAT": "json"},
    "spans of 1 %": TRACED | {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
    "spans of all": TRACED,
}
CONNECTIONS: Final = 4


class _Drop(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def collector() -> Iterator[str]:
    """The address of something that takes spans and forgets them."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Drop) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def cpu_s(server: Server) -> float:
    """Processor time that all processes of a server have had so far, s."""
    ticks = 0
    for pid in family(server.pid):
        fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(servers: Sequence[Server], requests: Sequence[Request], rounds: int, seconds: float) -> list[list[float]]:
    """Microseconds of processor time a request by service, one for each round; the services take turns.

    Raises:
        Failed: if an answer is not right.
        OSError: if a connection cannot be made or breaks.
    """
    took: list[list[float]] = [[] for _ in servers]
    for at in range(1 + rounds):  # the first warms up
        for server, found in zip(servers, took, strict=True):
            before = cpu_s(server)
            result = drive(server.port, requests, connections=CONNECTIONS, seconds=seconds)
            if result.errors:
                raise Failed(result.errors[0])
            if at:
                found.append((cpu_s(server) - before) / len(result.latencies) * 1e6)
    return took


def rows(took: Sequence[Sequence[float]]) -> list[tuple[str, ...]]:
    """Of the table: medians, and how much more each is than nothing, with the lowest and the highest of the rounds."""
    found: list[tuple[str, ...]] = []
    for way, times in zip(WAYS, took, strict=True):
        more = np.array(times) - np.array(took[0])  # (rounds,)
        low, middle, high = np.percentile(more, (0, 50, 100))
        found.append((way, f"{np.median(times):.0f}", f"{middle:+.0f}", f"{low:+.0f} to {high:+.0f}"))
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m loadtest.bench.watching",
        description="Measure what log lines and spans cost, in processor time of a small request.",
        epilog="Little else should run on the machine meanwhile. Compare only runs of one machine.",
    )
    made.add_argument("--rounds", type=positive, default=7, help="of each service (default: %(default)s)")
    made.add_argument("--seconds", type=positive, default=3, help="of each round (default: %(default)s)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Returns:
        0; 1 if there was nothing to measure, with the reason on stderr.
    """
    options = parser().parse_args(arguments)
    end_in_order()
    try:
        with tempfile.TemporaryDirectory() as name, collector() as url, ExitStack() as stack:
            folder = Path(name)
            write_repository(folder / "repository", {LAYER})
            servers = [
                stack.enter_context(started_service(folder, "cpu", 1, {"OTEL_EXPORTER_OTLP_ENDPOINT": url} | dict(way)))
                for way in WAYS.values()
            ]
            form = service_formats()["safetensors"]
            requests = prepare(servers[0].port, LAYER, [inputs(TOKENS, LAYER.width)], form)
            took = measure(servers, requests, options.rounds, options.seconds)
    except (OSError, Failed) as error:
        sys.stderr.write(f"watching: {error}\n")
        return 1
    sys.stdout.write(f"{table(('watched by', 'µs of CPU a request', 'more', 'of rounds'), rows(took))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
