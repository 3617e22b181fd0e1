"""How much time the service adds to the computation itself when it is idle.

    python -m loadtest.overhead --url http://127.0.0.1:8000

One caller, one connection kept alive, one request at a time: 16 tokens for single-head-64, in safetensors. The overhead
of a request is the time its caller saw minus the `compute` of its `Server-Timing`. The same loop against
`GET /healthz/live` gives a floor: what the caller, the sockets and the HTTP server cost before the service does
anything. Rounds of the two take turns, so that a machine that slows down slows both.
"""

import argparse
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import orjson

from loadtest.checks import WrongAnswer, check_answer
from loadtest.payloads import MODELS, Payload, make_payload

Array64 = npt.NDArray[np.float64]

STAGES = ("decode", "queue", "compute", "encode")
"""The stages of an inference answer's `Server-Timing`."""

TOKENS = 16
MODEL = MODELS["single-head-64"]
LIVE_PATH = "/healthz/live"
READY_PATH = "/healthz/ready"
TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.1


class MeasurementFailed(Exception):
    """There is nothing to measure: no service, an answer that is not 200, or one that is wrong."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. `headers` has lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Round:
    """One round: percentiles over its requests, in milliseconds.

    Attributes:
        latency_p50_ms, latency_p99_ms: from the first byte sent to the last byte received.
        overhead_p50_ms, overhead_p99_ms: latency minus the answer's `compute`, request by request.
        stages_p50_ms: median of every stage of `Server-Timing`.
        outside_p50_ms: latency minus all stages: the sockets, the HTTP server, routing, and the caller.
        floor_p50_ms, floor_p99_ms: latency of GET /healthz/live.
        client_cpu_ms: processor time the caller itself used for one request, on average.
    """

    latency_p50_ms: float
    latency_p99_ms: float
    overhead_p50_ms: float
    overhead_p99_ms: float
    stages_p50_ms: dict[str, float]
    outside_p50_ms: float
    floor_p50_ms: float
    floor_p99_ms: float
    client_cpu_ms: float


class Connection:
    """One HTTP/1.1 connection, kept alive, without Nagle's delay. Understands Content-Length only.

    Raises:
        OSError: if the peer does not accept, or is silent for TIMEOUT_S.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise MeasurementFailed(f"{url!r} is not an http:// URL")
        self._host = parts.netloc
        self._socket = socket.create_connection((parts.hostname, parts.port or 80), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def get(self, path: str) -> bytes:
        """The bytes of a GET."""
        return f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode("ascii")

    def post(self, payload: Payload) -> bytes:
        """The bytes of a POST: one buffer, so that head and body leave together."""
        lines = [f"POST {payload.path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(payload.body)}"]
        lines += [f"{name}: {value}" for name, value in payload.headers.items()]
        return "\r\n".join((*lines, "\r\n")).encode("ascii") + payload.body

    def exchange(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Send a request and wait for the whole answer.

        Returns:
            The nanoseconds it took, the answer's head and its body.

        Raises:
            MeasurementFailed: if the peer closes, or its answer has no Content-Length.
            OSError: if the connection breaks or the peer is silent for TIMEOUT_S.
        """
        start = time.perf_counter_ns()
        self._socket.sendall(request)
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._receive()
        length = self._content_length(received[:end])
        body = received[end + 4 :]
        while len(body) < length:
            body += self._receive()
        return time.perf_counter_ns() - start, received[:end], body

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise MeasurementFailed("the service closed the connection")
        return data

    @staticmethod
    def _content_length(head: bytes) -> int:
        _, found, rest = head.lower().partition(b"\r\ncontent-length:")
        if not found:
            raise MeasurementFailed("the answer has no Content-Length")
        return int(rest.partition(b"\r\n")[0])


def parse_answer(head: bytes, body: bytes) -> Answer:
    """Take the head of an HTTP answer apart.

    Args:
        head: status line and headers, without the empty line.
        body: passed on.

    Raises:
        MeasurementFailed: if the head does not start with an HTTP status line.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    match first.split(" ", 2):
        case [version, status, *_] if version.startswith("HTTP/") and status.isdecimal():
            pairs = (line.partition(":") for line in lines)
            return Answer(int(status), {name.lower(): value.strip() for name, _, value in pairs}, body)
        case _:
            raise MeasurementFailed(f"{first!r} is not an HTTP answer")


def parse_server_timing(header: str) -> dict[str, float]:
    """Read a `Server-Timing` header such as `decode;dur=0.012, queue;dur=0.1`.

    Returns:
        Milliseconds by stage, in the header's order; a stage without a `dur` is left out.

    Raises:
        MeasurementFailed: if a `dur` is not a number.
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
                    raise MeasurementFailed(f"Server-Timing has {entry.strip()!r}") from error
    return stages


def measure(url: str, *, requests: int, warm_up: int, rounds: int, seed: int = 0) -> list[Round]:
    """Measure an idle service.

    Args:
        url: where it listens, `http://host:port`.
        requests: requests of a round, at least 1, of each kind.
        warm_up: requests before each round that are not counted.
        rounds: how many, at least 1.
        seed: of the embeddings sent.

    Raises:
        MeasurementFailed: if an answer is not 200, lacks a stage, or is wrong, or if the service's clock is too coarse.
        OSError: if the connection cannot be made or breaks.
    """
    inputs = np.random.default_rng(seed).standard_normal((TOKENS, MODEL.embed_dim), dtype=np.float32)
    payload = make_payload("safetensors", MODEL, inputs)
    with Connection(url) as connection:
        attention, live = connection.post(payload), connection.get(LIVE_PATH)
        _, head, body = connection.exchange(attention)
        answer = _expect_ok(head, body)
        try:
            check_answer(payload, answer.headers.get("content-type", ""), answer.body)
        except WrongAnswer as error:
            raise MeasurementFailed(f"wrong answer: {error}") from error
        return [_round(connection, attention, live, requests, warm_up) for _ in range(rounds)]


def _round(connection: Connection, attention: bytes, live: bytes, requests: int, warm_up: int) -> Round:
    floor_ms, _, _ = _loop(connection, live, requests, warm_up)
    latency_ms, cpu_ms, answers = _loop(connection, attention, requests, warm_up)
    timings = [parse_server_timing(answer.headers.get("server-timing", "")) for answer in answers]
    return summarise(latency_ms, timings, floor_ms, cpu_ms)


def summarise(latency_ms: Array64, timings: Sequence[Mapping[str, float]], floor_ms: Array64, cpu_ms: float) -> Round:
    """Take the percentiles of one round.

    Args:
        latency_ms: of each request, (requests,).
        timings: `Server-Timing` of each answer, milliseconds by stage.
        floor_ms: latency of each GET /healthz/live, (requests,).
        cpu_ms: processor time the caller used for a request.

    Raises:
        MeasurementFailed: if an answer lacks a stage, or `compute` is 0 in half of them.
    """
    for timing in timings:
        if missing := [stage for stage in STAGES if stage not in timing]:
            raise MeasurementFailed(f"Server-Timing lacks {', '.join(missing)}")
    stages = {stage: np.array([timing[stage] for timing in timings]) for stage in STAGES}  # (requests,) each
    if np.median(stages["compute"]) <= 0:
        # An event loop's own clock may tick in milliseconds; all of the latency would then count as overhead.
        raise MeasurementFailed("compute is 0 in at least half of the answers: the service's clock is too coarse")
    overhead_ms = latency_ms - stages["compute"]  # (requests,)
    return Round(
        latency_p50_ms=float(np.percentile(latency_ms, 50)),
        latency_p99_ms=float(np.percentile(latency_ms, 99)),
        overhead_p50_ms=float(np.percentile(overhead_ms, 50)),
        overhead_p99_ms=float(np.percentile(overhead_ms, 99)),
        stages_p50_ms={stage: float(np.median(values)) for stage, values in stages.items()},
        outside_p50_ms=float(np.median(latency_ms - sum(stages.values()))),
        floor_p50_ms=float(np.percentile(floor_ms, 50)),
        floor_p99_ms=float(np.percentile(floor_ms, 99)),
        client_cpu_ms=cpu_ms,
    )


def _loop(connection: Connection, request: bytes, requests: int, warm_up: int) -> tuple[Array64, float, list[Answer]]:
    """Latencies in ms, (requests,); processor time of a request in ms; the answers."""
    for _ in range(warm_up):
        connection.exchange(request)
    elapsed, heads = [], []
    # A collection of the caller's garbage would look like a slow service.
    gc.collect()
    gc.disable()
    try:
        cpu_ns = time.process_time_ns()
        for _ in range(requests):
            took, head, body = connection.exchange(request)
            elapsed.append(took)
            heads.append((head, body))
        cpu_ns = time.process_time_ns() - cpu_ns
    finally:
        gc.enable()
    return np.array(elapsed) / 1e6, cpu_ns / 1e6 / requests, [_expect_ok(head, body) for head, body in heads]


def _expect_ok(head: bytes, body: bytes) -> Answer:
    answer = parse_answer(head, body)
    if answer.status != 200:
        raise MeasurementFailed(f"the service answered {answer.status}: {body[:200].decode('utf-8', 'replace')}")
    return answer


def _rows(result: Round) -> list[tuple[str, float]]:
    return [
        ("client latency p50", result.latency_p50_ms),
        ("client latency p99", result.latency_p99_ms),
        *((f"  {stage} p50", result.stages_p50_ms[stage]) for stage in STAGES),
        ("  outside the stages p50", result.outside_p50_ms),
        ("overhead p50 (latency - compute)", result.overhead_p50_ms),
        ("overhead p99", result.overhead_p99_ms),
        (f"floor p50 (GET {LIVE_PATH})", result.floor_p50_ms),
        ("floor p99", result.floor_p99_ms),
        ("client's own CPU, mean", result.client_cpu_ms),
    ]


def medians(results: Sequence[Round]) -> dict[str, float]:
    """Median over the rounds of every row of the table, in milliseconds, by the row's name."""
    tables = [dict(_rows(result)) for result in results]
    return {name.strip(): float(np.median([table[name] for table in tables])) for name in tables[0]}


def table(results: Sequence[Round]) -> str:
    """The table for people: a row for each quantity, a column for each round and one for their median."""
    columns = [_rows(result) for result in results]
    names = [name for name, _ in columns[0]]
    width = max(map(len, names))
    head = "".join(f"{f'round {i + 1}':>10}" for i in range(len(results)))
    lines = [f"{'milliseconds':<{width}}{'median':>10}{head}"]
    for i, name in enumerate(names):
        values = [column[i][1] for column in columns]
        cells = "".join(f"{value:>10.3f}" for value in (float(np.median(values)), *values))
        lines.append(f"{name:<{width}}{cells}")
    return "\n".join(lines) + "\n"


@contextmanager
def started_service(timeout_s: float) -> Iterator[str]:
    """Start the service on a free port of this machine, wait until it is ready, stop it with SIGTERM at the end.

    Args:
        timeout_s: how long it may take to become ready.

    Yields:
        Its URL.

    Raises:
        MeasurementFailed: if it ends, or is not ready in time; the message has the end of what it wrote.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "service", "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(url, process, timeout_s)
            yield url
        except (OSError, MeasurementFailed) as error:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
            raise MeasurementFailed(f"{error}; the service wrote:\n{log.read().decode('utf-8', 'replace')}") from error
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise MeasurementFailed(f"the service ended with exit code {process.returncode}")
        try:
            with Connection(url) as connection:
                _, head, body = connection.exchange(connection.get(READY_PATH))
            if parse_answer(head, body).status == 200:
                return
        except (OSError, MeasurementFailed):
            pass  # not listening yet, or not there yet: ask again
        time.sleep(POLL_S)
    raise MeasurementFailed(f"the service was not ready after {timeout_s:g} s")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.overhead",
        description="Measure what the service adds to the computation when it is idle: one caller, one kept-alive "
        f"connection, {TOKENS} tokens for {MODEL.name} in safetensors, one request at a time.",
        epilog="Nothing else should run on the machine meanwhile. Compare only runs of one machine.",
    )
    parser.add_argument(
        "--url", help="where the service listens, http://host:port; default: start one here, stop it after"
    )
    parser.add_argument("--requests", type=_positive, default=2_000, help="requests a round (default: %(default)s)")
    parser.add_argument(
        "--warm-up", type=_positive, default=200, help="requests before a round, not counted (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=_positive, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write rounds and medians to FILE")
    parser.add_argument(
        "--start-timeout-s",
        type=_positive,
        default=120,
        help="how long a service started here may take to be ready, seconds (default: %(default)s)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Returns:
        0; 1 if there was nothing to measure, with the reason on stderr.
    """
    options = _parser().parse_args(arguments)
    try:
        with ExitStack() as stack:
            url = options.url or stack.enter_context(started_service(options.start_timeout_s))
            results = measure(url, requests=options.requests, warm_up=options.warm_up, rounds=options.rounds)
    except (OSError, MeasurementFailed) as error:
        sys.stderr.write(f"overhead: {error}\n")
        return 1
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    conditions = {
        "url": url,
        "model": MODEL.name,
        "tokens": TOKENS,
        "requests": options.requests,
        "warm_up": options.warm_up,
        "client_cores": cores,
    }
    sys.stdout.write(
        f"{url}: {options.rounds} rounds of {options.requests} requests after {options.warm_up}, {TOKENS} tokens, "
        f"{MODEL.name}; the client may run on cores {cores or 'unknown'}\n\n{table(results)}"
    )
    if options.json:
        report = {"conditions": conditions, "medians_ms": medians(results), "rounds": [asdict(r) for r in results]}
        options.json.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
