"""Where workers come from: a process that has imported what they need, and forks one in milliseconds.

To import torch, Numba and the service takes seconds, and a worker that is to replace a dead one would take them again.
What is imported once, all of them share in memory too.

The nursery is forked from the supervisor while that has neither an event loop nor connections. It opens nothing, holds
no model and starts no thread: a thread of its own would be missing in what it forks, with whatever it held.
"""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

log = logging.getLogger(__name__)

WORKER_PROCESS, ENGINE_PROCESS = "service.workers.worker", "service.workers.engine"
"""Modules that can be run as a process: their `main` takes descriptors as the command's arguments."""

IMPORTED = (
    WORKER_PROCESS,
    ENGINE_PROCESS,
    "service.backends.eager",
    "service.backends.reference",
    "models.store",
    "models.graphs",
)
"""Not `service.backends.onnx`: ONNX Runtime starts a thread as soon as it is imported."""

NAMES = {WORKER_PROCESS: b"attn-worker", ENGINE_PROCESS: b"attn-engine"}
"""What `ps` calls them."""

MOST_DESCRIPTORS = 8
LONGEST = 256

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
"""See prctl(2)."""

PID = struct.Struct("!i")


class Process:
    """A child of this process, as its event loop sees it.

    Attributes:
        pid: its number.
        returncode: its exit status, or the negative number of the signal that ended it; None while it lives.
    """

    def __init__(self, pid: int) -> None:
        """Watch over a child, from the event loop."""
        self.pid = pid
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        threading.Thread(target=self._watch, name=f"process {pid}", daemon=True).start()

    async def wait(self) -> None:
        """Wait until it has ended."""
        await self._ended.wait()

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _watch(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._end, os.waitstatus_to_exitcode(status))

    def _end(self, code: int) -> None:
        self.returncode = code
        self._ended.set()


class Nursery:
    """The supervisor's side of it."""

    def __init__(self, *theirs: socket.socket) -> None:
        """Fork it, from a process of one thread that runs no event loop; it holds none of these sockets open."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # whoever is forked there is this process's child
        self._end, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = asyncio.Lock()
        self._pid = os.fork()
        if not self._pid:
            for held in (self._end, *theirs):
                held.close()
            _nurse(end)
        end.close()
        self._end.setblocking(False)
        self._closed = False

    async def start(self, module: str, descriptors: Sequence[int]) -> Process | None:
        """Start a process that runs `module` with these descriptors, seconds after the start of the service if need be.

        Returns:
            The process; None if the nursery is closed before there is one.
        """
        async with self._turn:
            said = b""
            with suppress(OSError):  # it has ended, as anything may that the system kills
                socket.send_fds(self._end, [module.encode()], descriptors)
                said = await asyncio.get_running_loop().sock_recv(self._end, PID.size)
        if self._closed:
            if said:
                Process(*PID.unpack(said)).kill()
            return None
        if not said:
            log.warning("the nursery has ended: %s takes seconds to start", module)
        return Process(PID.unpack(said)[0] if said else executed(module, descriptors))

    def close(self) -> None:
        """Start nothing more."""
        if not self._closed:
            self._closed = True
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def executed(module: str, descriptors: Sequence[int]) -> int:
    """Start the same as a new program; its process number."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    command = [sys.executable, "-m", module, *map(str, descriptors)]
    no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=[no_input], setpgroup=0)


def _nurse(end: socket.socket) -> NoReturn:
    """Be the nursery, until the supervisor ends."""
    code = 1
    try:
        os.setpgid(0, 0)  # a terminal's Ctrl-C is the supervisor's to deal with
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        logging.getLogger().handlers.clear()  # each of them says by its lines who it is
        _prctl(PR_SET_NAME, ctypes.create_string_buffer(b"attn-nursery"))
        for module in IMPORTED:
            import_module(module)
        gc.freeze()  # a collection would write to what is shared
        while (asked := socket.recv_fds(end, LONGEST, MOST_DESCRIPTORS))[0]:
            module, descriptors = asked[0].decode(), asked[1]
            end.send(PID.pack(_forked(module, descriptors, end)))
            for descriptor in descriptors:
                os.close(descriptor)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing above this may run twice
        traceback.print_exc()
    finally:
        os._exit(code)


def _forked(module: str, descriptors: Sequence[int], end: socket.socket) -> int:
    """Fork a process whose parent ends at once, so that it becomes the supervisor's child; its number."""
    reading, writing = os.pipe()
    if not (between := os.fork()):
        if pid := os.fork():
            os.write(writing, PID.pack(pid))
            os._exit(0)
        for descriptor in (reading, writing, end.detach()):
            os.close(descriptor)
        _live(module, descriptors)
    os.close(writing)
    said = os.read(reading, PID.size)
    os.close(reading)
    os.waitpid(between, 0)
    return int(PID.unpack(said)[0])


def _live(module: str, descriptors: Sequence[int]) -> NoReturn:
    """Be what was asked for."""
    code = 1
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _prctl(PR_SET_NAME, ctypes.create_string_buffer(NAMES[module]))
        sys.argv = [module, *map(str, descriptors)]
        import_module(module).main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 - as above
        traceback.print_exc()
    finally:
        with suppress(OSError):  # who read it has left
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _prctl(option: int, argument: object) -> None:
    ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)
