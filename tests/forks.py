"""Commands of the service without the seconds that imports take: forked from a process that has imported everything.

What is forked is a process of its own with its own environment, arguments and outputs, as if it had been started with
`python -m service`; tests of how it starts start it so.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

NUMBER = struct.Struct("!i")
LONGEST = 1 << 17


class Fork:
    """A command that runs, with as much of `subprocess.Popen` as tests use.

    Attributes:
        pid: its number.
        stdout: what it writes, if that was to be piped.
        returncode: as there, once it has been waited for.
    """

    def __init__(self, pid: int, ended: socket.socket, stdout: IO[str] | None) -> None:
        """Its exit code comes through `ended`."""
        self.pid, self.stdout = pid, stdout
        self._ended = ended
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code.

        Raises:
            TimeoutExpired: if it does not end in time, in seconds.
        """
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            (self.returncode,) = NUMBER.unpack(self._ended.recv(NUMBER.size))
            self._ended.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def start(arguments: Sequence[str], environment: Mapping[str, str]) -> Fork:
    """Start `attention` with these arguments in the repository's folder; what it writes can be read from `stdout`."""
    reading, writing = os.pipe()
    with open(writing, "wb"):
        return _fork(arguments, environment, (writing, writing), open(reading))


def run(arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes) -> "subprocess.CompletedProcess[str]":
    """Run `attention` with these arguments until it ends."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        fork = _fork(arguments, environment, (out.fileno(), err.fileno(), given.fileno()), None)
        try:
            code = fork.wait(100)
        finally:
            fork.kill()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(["attention", *arguments], code, *texts)


def _fork(
    arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int], stdout: IO[str] | None
) -> Fork:
    ended, theirs = socket.socketpair()
    with theirs:
        asked = json.dumps([list(arguments), dict(environment)]).encode()
        socket.send_fds(_parent(), [asked], [theirs.fileno(), *descriptors])
        (pid,) = NUMBER.unpack(_parent().recv(NUMBER.size))
    return Fork(pid, ended, stdout)


@cache
def _parent() -> socket.socket:
    """The process that forks, of this test process; it ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            pass_fds=(theirs.fileno(),),
        )
    process.returncode = 0  # nobody waits for it, and that is no oversight
    atexit.register(ours.close)
    return ours


def main(end: socket.socket) -> None:
    """Fork what is asked for, and say how it ended, until whoever asks has ended."""
    for module in ("service.cli", "service.workers.supervisor", "service.workers.worker", "service.workers.engine",
                   "service.backends.eager", "models.store", "models.graphs"):  # fmt: skip
        import_module(module)
    gc.freeze()
    children: dict[int, socket.socket] = {}
    waking, wake = socket.socketpair()
    waking.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    while True:
        ready, _, _ = select.select([end, waking], [], [])
        if waking in ready:
            waking.recv(4096)
            _tell_of_ended(children)
        if end in ready:
            asked, descriptors, _, _ = socket.recv_fds(end, LONGEST, 4)
            if not asked:
                waking.close()
                wake.close()
                return
            if not (pid := os.fork()):
                _be(*json.loads(asked), descriptors)
            children[pid] = socket.socket(fileno=descriptors[0])
            for descriptor in descriptors[1:]:
                os.close(descriptor)
            end.send(NUMBER.pack(pid))


def _tell_of_ended(children: dict[int, socket.socket]) -> None:
    for pid in list(children):
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            with children.pop(pid) as whoever, contextlib.suppress(OSError):
                whoever.send(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _be(arguments: list[str], environment: dict[str, str], descriptors: list[int]) -> NoReturn:
    """Be `python -m service` with these arguments."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _, stdout, stderr, *stdin = descriptors
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.dup2(stdin[0] if stdin else os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, 1 << 10)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["attention", *arguments]
        import_module("service.cli").main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - nothing above this may run twice
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        main(asking)
