"""A service that really runs, for the tests that start one of their own."""

import contextlib
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests import forks
from tests.forks import Fork

ROOT = Path(__file__).parent.parent


def empty_repository(artifacts: Path) -> Path:
    """A model repository without models, beside this run's graphs: no test sees the models of whoever runs it."""
    folder = artifacts.parent / "empty-repository"
    folder.mkdir(exist_ok=True)
    return folder


@dataclass
class Server:
    """A service in a process of its own.

    Attributes:
        url: where it listens.
        grpc: where it listens for gRPC; empty where it does not.
        process: the process; stopping it is the fixture's work unless the test is about that.
        log: the lines that it has written; all of them once it has ended.
    """

    url: str
    process: Fork
    reader: threading.Thread
    grpc: str = ""
    log: list[str] = field(default_factory=list)

    def children(self, name: str) -> list[psutil.Process]:
        """Those that live and that `ps` calls so."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if child.name() == name and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    def stop(self, number: int = signal.SIGTERM, timeout: float = 60) -> int:
        """Signal it, and wait for its exit code."""
        self.process.send_signal(number)
        return self.wait(timeout)

    def wait(self, timeout: float = 60) -> int:
        """Wait for its exit code."""
        code = self.process.wait(timeout)
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def start_server(artifacts: Path, **environment: str) -> Server:
    """Start `attention serve` on a free loopback port and wait until it is ready."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ATTENTION_") and name != "PORT"}
    clean |= {
        "ATTENTION_ARTIFACTS": str(artifacts),
        "ATTENTION_MODEL_REPOSITORY": str(empty_repository(artifacts)),
        "ATTENTION_DEVICE": "cpu",
        "ATTENTION_WORKERS": "1",
        **environment,
    }
    process = forks.start(["serve", "--port", "0"], clean)
    assert process.stdout is not None
    seen: list[str] = []
    grpc = ""
    for line in process.stdout:
        seen.append(line)
        if "gRPC at " in line:
            grpc = line.rpartition("gRPC at ")[2].strip()
        if "ready at " in line:
            url = line.rpartition("ready at ")[2].strip()
            # Whoever reads nothing lets the pipe fill up, and the server with it.
            reader = threading.Thread(target=seen.extend, args=(process.stdout,), daemon=True)
            reader.start()
            return Server(url, process, reader, grpc, seen)
    process.stdout.close()
    raise AssertionError(f"the server ended with {process.wait(10)}:\n{''.join(seen)}")
