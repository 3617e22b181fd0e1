"""Is the generator right? The same bodies by `wrk`, in turns with the Locust suite: `python -m loadtest.report.wrk`.

Both load one service in a closed loop, from the same cores and with as many connections, and their throughputs are
compared. wrk (https://github.com/wg/wrk, `apt-get install wrk`) is a C program that shares nothing with the suite but
the bytes it sends.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadtest.bench.http import Failed
from loadtest.bench.options import positive
from loadtest.bench.processes import end_in_order
from loadtest.bench.tables import table
from loadtest.payloads import Format, Payload, generate, parse_models, parse_tokens
from loadtest.report import counters, figures
from loadtest.report.cores import halves, on
from loadtest.report.plan import BACKENDS, subjects_of
from loadtest.report.run import WARM_UP_S, opened
from loadtest.report.suite import Suite
from loadtest.report.words import percent

FORMATS: Final[dict[str, Format]] = {"json": "json", "base64": "base64", "binary": "safetensors"}
"""What `--users` may name: those who send one request after the other of a list known before."""
LEFT_S: Final = 0.5
"""How long the service may still be busy with what a generator has left."""
PAYLOADS: Final = 120
"""As many as the suite makes, which are then the same."""
SCRIPT: Final = """
local requests = {}
local next = 0
init = function(arguments)
  for line in io.lines(FOLDER .. "/requests.txt") do
    local name, path, media_type = line:match("(%S+) (%S+) (%S+)")
    local file = io.open(FOLDER .. "/" .. name, "rb")
    local headers = {["Content-Type"] = media_type, ["Accept"] = media_type, ["Accept-Encoding"] = "identity"}
    requests[#requests + 1] = wrk.format("POST", path, headers, file:read("*a"))
    file:close()
  end
end
request = function()
  next = next % #requests + 1
  return requests[next]
end
"""
"""Sends the bodies of a folder in turn; `FOLDER` is put before it."""


def write_requests(payloads: Sequence[Payload], folder: Path) -> Path:
    """Write bodies and a list of them for wrk's script; the path of the script."""
    lines = []
    for at, payload in enumerate(payloads):
        (folder / f"{at}.body").write_bytes(payload.body)
        lines.append(f"{at}.body {payload.path} {payload.headers['Content-Type']}\n")
    (folder / "requests.txt").write_text("".join(lines))
    script = folder / "requests.lua"
    script.write_text(f"FOLDER = {str(folder)!r}\n{SCRIPT}")
    return script


def read(written: str) -> tuple[float, int]:
    """Answers a second, and how many there were, of what wrk wrote.

    Raises:
        Failed: if some were not 200, or connections broke.
    """
    for trouble in ("Non-2xx", "Socket errors"):
        if trouble in written:
            raise Failed(f"wrk had trouble:\n{written}")
    count, rate = re.search(r"(\d+) requests in", written), re.search(r"Requests/sec:\s*([\d.]+)", written)
    if count is None or rate is None:
        raise Failed(f"wrk wrote no rate:\n{written}")
    return float(rate[1]), int(count[1])


def run_wrk(url: str, script: Path, connections: int, seconds: int) -> tuple[float, int]:
    """Answers a second of a run of wrk, by one thread, and how many there were.

    Raises:
        Failed: as `read`, and if wrk ends with an error.
    """
    command = ["wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s"]
    command += ["--timeout", "30s", "--script", str(script), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode:
        raise Failed(f"wrk ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return read(done.stdout)


def compare(options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Rates of the suite and of wrk, a round each, in turns.

    Raises:
        Failed: if one of them has failures, or another count than the service.
    """
    payloads = generate(
        FORMATS[options.users],
        parse_models(options.models),
        seed=options.seed,
        count=PAYLOADS,
        tokens=parse_tokens(options.tokens),
    )
    subjects = subjects_of([options.backend], [options.device], None)
    cores, connections = halves(options.pin), options.connections
    sys.stderr.write(f"{cores}\n")
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="attention-wrk-") as folder, on(cores.generator):
        script = write_requests(payloads, Path(folder))
        suite = Suite(options.users, options.models, options.tokens, "constant", options.seed, Path(folder))
        with opened(subjects, cores) as urls:
            url = urls[subjects[0].name]
            run_wrk(url, script, connections, WARM_UP_S)
            for _ in range(options.rounds):
                before = counters.read(url)
                samples = suite.run(url, options.seconds, connections=connections)
                if failed := figures.errors([samples]):
                    raise Failed(f"the suite had failures: {next(iter(failed))}")
                ours.append(figures.closed_rate(samples))
                between = check_count("Locust", len(samples), url, before, 0)
                rate, count = run_wrk(url, script, connections, options.seconds)
                theirs.append(rate)
                check_count("wrk", count, url, between, connections)
                busy = percent(figures.generator_share(samples))
                sys.stderr.write(
                    f"Locust {ours[-1]:.1f} requests/s, busy {busy} of a core; wrk {theirs[-1]:.1f} requests/s\n"
                )
    return ours, theirs


def check_count(who: str, count: int, url: str, before: counters.Counters, under_way: int) -> counters.Counters:
    """Compare a generator's count with the service's, which may have some more that were under way at its end.

    Returns:
        The service's counters now.

    Raises:
        Failed: if they differ.
    """
    counted = counters.grown(url, before, count).requests()
    if not count <= counted <= count + under_way:
        raise Failed(f"{who} had {count:,} answers, and the service counted {counted:,} requests")
    time.sleep(LEFT_S)
    return counters.read(url)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m loadtest.report.wrk",
        description="Load a service in turns with the Locust suite and with wrk, by the same bodies over as many "
        "connections, and compare the throughputs.",
        epilog="Exits with 1 if the medians differ by more than --within.",
    )
    made.add_argument("--backend", choices=BACKENDS, default="onnx", help="of the service (default: %(default)s)")
    made.add_argument("--device", default="auto", help="of the service (default: %(default)s)")
    made.add_argument("--users", choices=FORMATS, default="json", help="who asks (default: %(default)s)")
    made.add_argument("--models", default="single-head-64", help="models to ask (default: %(default)s)")
    made.add_argument("--tokens", default="mixed", help="lengths of sequences (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of what is sent (default: %(default)s)")
    made.add_argument("--connections", type=positive, default=16, help="(default: %(default)s)")
    made.add_argument("--seconds", type=positive, default=10, help="of each measurement (default: %(default)s)")
    made.add_argument("--rounds", type=positive, default=5, help="medians count (default: %(default)s)")
    made.add_argument("--within", type=float, default=0.02, help="share they may differ by (default: %(default)s)")
    made.add_argument("--no-pin", dest="pin", action="store_false", help="let all run on all cores")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Returns:
        0; 1 if the two differ by more than was asked; 2 if something could not be measured, with the reason on stderr.
    """
    options = parser().parse_args(arguments)
    if shutil.which("wrk") is None:
        sys.stderr.write("wrk is not installed. On Debian: apt-get install wrk\n")
        return 2
    end_in_order()
    try:
        ours, theirs = compare(options)
    except (OSError, Failed, ValueError) as error:
        sys.stderr.write(f"wrk: {error}\n")
        return 2
    locust, wrk = statistics.median(ours), statistics.median(theirs)
    rows = [
        (f"{at}", f"{a:.1f}", f"{b:.1f}", f"{a / b:.3f}") for at, (a, b) in enumerate(zip(ours, theirs, strict=True), 1)
    ]
    rows.append(("median", f"{locust:.1f}", f"{wrk:.1f}", f"{locust / wrk:.3f}"))
    sys.stdout.write(table(("round", "Locust, requests/s", "wrk, requests/s", "Locust / wrk"), rows) + "\n")
    return 0 if abs(locust / wrk - 1) <= options.within else 1


if __name__ == "__main__":
    sys.exit(main())
