"""Servers as processes of ours: started on a free loopback port, waited for, weighed, and stopped."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from loadtest.bench.formats import Message
from loadtest.bench.http import Failed, Request, ask, wire

START_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.05
MIB: Final = 1 << 20
PORTS: Final = 10
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        port: on 127.0.0.1.
        pid: of the process that was started, which leads a session of its own.
    """

    port: int
    pid: int

    def rss_mib(self) -> float:
        """Resident memory now of all its processes; what they share counts in each."""
        return self._status("VmRSS") / MIB

    def peak_mib(self) -> float:
        """The most there was of it since the last `forget_peak`."""
        return self._status("VmHWM") / MIB

    def forget_peak(self) -> None:
        """Begin again with what there is now."""
        for pid in family(self.pid):
            (Path("/proc") / str(pid) / "clear_refs").write_text("5")

    def _status(self, name: str) -> float:
        found = 0
        for pid in family(self.pid):
            try:
                lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
            except OSError:
                continue  # it has just ended
            found += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
        return float(found)


def family(leader: int) -> list[int]:
    """The living processes of the session that `leader` leads."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(place.name))
    return found


def free_port() -> int:
    """The first of PORTS consecutive free ports. Two processes that look at the same time begin in different places."""
    starts = range(21_000, 24_000, PORTS)
    for at in range(len(starts)):
        first = starts[(os.getpid() + at) % len(starts)]
        try:
            for port in range(first, first + PORTS):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise Failed("there are no free ports")


@contextmanager
def started(
    command: Sequence[str], port: int, ready: str, environment: Mapping[str, str], cwd: Path
) -> Iterator[Server]:
    """Run a server until the block ends.

    Args:
        command: program and arguments.
        port: where it will listen.
        ready: a path that answers 200 once it is ready.
        environment: variables on top of ours.
        cwd: the folder it runs in.

    Raises:
        Failed: if it ends, or is not ready in START_TIMEOUT_S; the message has the end of what it wrote.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(os.environ) | dict(environment),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_ready(process, port, ready)
            yield Server(port, process.pid)
        except (OSError, Failed) as error:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
            raise Failed(f"{error}; the server wrote:\n{log.read().decode('utf-8', 'replace')}") from error
        finally:
            _stop(process)


@contextmanager
def started_service(
    folder: Path | None, device: str = "auto", workers: int = 0, environment: Mapping[str, str] = NOTHING
) -> Iterator[Server]:
    """Start this service.

    Args:
        folder: with the models in `repository`; exported graphs are kept in `artifacts`, unless ATTENTION_ARTIFACTS
            names a folder. None: both as they are set.
        device: `ATTENTION_DEVICE`.
        workers: `ATTENTION_WORKERS`; 0 does not set it.
        environment: more variables, on top of these.

    Raises:
        Failed: as `started`.
    """
    port = free_port()
    variables = {"ATTENTION_DEVICE": device, "ATTENTION_LOG_LEVEL": "warning"}
    if folder is not None:
        variables["ATTENTION_MODEL_REPOSITORY"] = str(folder / "repository")
        variables["ATTENTION_ARTIFACTS"] = os.environ.get("ATTENTION_ARTIFACTS", str(folder / "artifacts"))
    if workers:
        variables["ATTENTION_WORKERS"] = str(workers)
    command = (sys.executable, "-m", "service", "serve", "--host", "127.0.0.1", "--port", str(port))
    with started(command, port, "/healthz/ready", variables | dict(environment), Path(__file__).parents[2]) as server:
        _wait_for_workers(server.port)
        yield server


def end_in_order() -> None:
    """From now on SIGTERM ends this process as an error would, so that no server outlives it."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def get(path: str) -> Request:
    """A GET of a server on this machine."""
    return Request(wire("127.0.0.1", Message(path, {}, b""), "GET"))


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, path: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Failed(f"it ended with exit code {process.returncode}")
        try:
            ask(port, get(path))
        except (OSError, Failed):
            time.sleep(POLL_S)  # not listening yet, or not there yet
        else:
            return
    raise Failed(f"it was not ready after {START_TIMEOUT_S:g} s")


def _wait_for_workers(port: int) -> None:
    """The service is ready once one of its workers is; what is measured is all of them."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        lines = ask(port, get("/metrics")).body.decode().splitlines()
        found = dict(line.split() for line in lines if line.startswith("attention_workers"))
        if found.get("attention_workers") == found.get("attention_workers_ready"):
            return
        time.sleep(POLL_S * 4)
    raise Failed(f"its workers were not ready after {START_TIMEOUT_S:g} s")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end, and end what is left of its session."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (left := family(process.pid)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
