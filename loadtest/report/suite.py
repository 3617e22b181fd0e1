"""The Locust suite, run as a process of its own: what it was told, and one entry for each request."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.http import Failed
from loadtest.report.plan import USERS
from loadtest.samples import Samples

OPEN_CONNECTIONS: Final = 64
"""Connections of an open loop. Requests that are due while all are taken wait for one, and their wait counts."""
DRAIN_S: Final = 60
"""How long answers are waited for once no more requests are sent."""
CHECK_EVERY: Final = 10
"""In an open loop, each user has the first of so many answers checked, after its end, when nobody waits. In a closed
loop none is: to read a large answer takes the generator as long as the service takes for several."""

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Suite:
    """What all measurements of a run have in common.

    Attributes:
        users: a key of `USERS`.
        models: `--models`, or `--encoder` for `text`; empty for the suite's own choice.
        tokens: `--tokens`.
        arrivals: `--arrivals`.
        seed: `--seed`.
        folder: where the entries are written meanwhile.
    """

    users: str
    models: str
    tokens: str
    arrivals: str
    seed: int
    folder: Path

    def run(self, url: str, seconds: int, *, connections: int, rate: float | None = None) -> Samples:
        """Load a service: in a closed loop, or with so many requests a second whatever it does.

        Raises:
            Failed: if Locust ends with something else than failed requests; the message has the end of what it wrote.
        """
        path = self.folder / "samples.npz"
        path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "--headless"]
        command += ["--only-summary", "--host", url, "--users", str(connections), "--spawn-rate", str(connections)]
        command += ["--run-time", f"{seconds}s", "--stop-timeout", str(DRAIN_S), "--seed", str(self.seed)]
        command += ["--tokens", self.tokens, "--samples", str(path)]
        if self.models:
            command += ["--encoder" if self.users == "text" else "--models", self.models]
        command += (
            ["--check-every", "0"] if rate is None else ["--rate", f"{rate:.6g}", "--check-every", str(CHECK_EVERY)]
        )
        command += USERS[self.users]
        with running(command) as process:
            written, _ = process.communicate(timeout=seconds + 2 * DRAIN_S)
        if process.returncode not in (0, 1) or not path.exists():
            raise Failed(f"Locust ended with exit code {process.returncode}; it wrote:\n{written[-2000:]}")
        return Samples.load(path)


@contextmanager
def running(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A program in a session of its own, so that Ctrl-C reaches us alone; it does not outlive the block."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[2]} did not end in {error.timeout:g} s") from error
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
