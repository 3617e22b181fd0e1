"""Which way tensors pass from one process to another faster: through a socket, or through memory that both share.

    python -m loadtest.bench.transport

Two processes on one machine, the caller and the answerer, as an HTTP worker and the engine are. The caller has an
array; the answerer reads every number of it once and gives back one of the same size, which the caller reads once too:
that is timed. Ways:

- `socket`: a head, then the bytes, on a Unix stream socket, read into fresh memory.
- `copied`: the sender copies its array into an area that both have mapped, the receiver copies it out to fresh memory,
  and only heads go through the socket.
- `in place`: as `copied`, but the receiver reads in the area, and gives it back when it is done.

From 64 KiB on, the service sends requests in the last way, answers in the second. The ways take turns, so that a
machine that slows down slows all of them; of each five exchanges the first is not counted.
"""

import argparse
import asyncio
import mmap
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import numpy.typing as npt
import uvloop

F32 = npt.NDArray[np.float32]

SIZES = {"4 KiB": 4 << 10, "200 KiB": 200 << 10, "6 MiB": 6 << 20, "20 MiB": 20 << 20}
AREA = 32 << 20
"""Bytes that each side may write into for the other; more than the largest array."""

WAYS = ("socket", "copied", "in place")
HEAD = struct.Struct("!QI")
"""Bytes of the array, and the number of its way in `WAYS`."""


class End(asyncio.BufferedProtocol):
    """One end of the connection."""

    def __init__(self, mine: mmap.mmap, theirs: mmap.mmap, take: Callable[[F32, int], None]) -> None:
        """Call `take` with each array that comes, and the number of its way."""
        self._mine, self._theirs, self._take = mine, theirs, take
        self._head = bytearray(HEAD.size)
        self._into = memoryview(self._head)
        self._got = 0
        self._array: F32 | None = None
        self.gone = asyncio.get_running_loop().create_future()

    def send(self, array: F32, way: int) -> None:
        """Give an array to the other side."""
        head = HEAD.pack(array.nbytes, way)
        if way:
            np.frombuffer(self._mine, np.float32, array.size)[:] = array
            self.transport.write(head)
        else:
            self.transport.writelines([head, array.view(np.uint8).data])

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]
        """See `asyncio.BaseProtocol`."""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self.gone.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._into[self._got :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._got += nbytes
        if self._got < len(self._into):
            return
        self._got = 0
        if self._array is not None:
            array, self._array, self._into = self._array, None, memoryview(self._head)
            self._take(array, 0)
            return
        size, way = HEAD.unpack(self._head)
        if way:
            shared = np.frombuffer(self._theirs, np.float32, size // 4)
            self._take(shared.copy() if WAYS[way] == "copied" else shared, way)
        else:
            self._array = np.empty(size // 4, np.float32)
            self._into = self._array.view(np.uint8).data


async def answer(connection: socket.socket, mine: mmap.mmap, theirs: mmap.mmap) -> None:
    """Give back an array of the same size for each, until the caller ends."""
    answers = {size // 4: np.ones(size // 4, np.float32) for size in SIZES.values()}

    def take(array: F32, way: int) -> None:
        end.send(answers[array.size] * array.max(), way)

    end = End(mine, theirs, take)
    await asyncio.get_running_loop().create_unix_connection(lambda: end, sock=connection)
    await end.gone


async def measure(
    connection: socket.socket, mine: mmap.mmap, theirs: mmap.mmap, seconds: float
) -> dict[str, list[float]]:
    """Medians of an exchange, ms, of each way, by size; each size is measured for so long."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[float]
    end = End(mine, theirs, lambda array, way: arrived.set_result(float(array.max())))
    await loop.create_unix_connection(lambda: end, sock=connection)
    found = {}
    for name, size in SIZES.items():
        array = np.ones(size // 4, np.float32)
        taken: list[list[float]] = [[] for _ in WAYS]
        until = time.monotonic() + seconds
        while time.monotonic() < until or not taken[-1]:
            for way in range(len(WAYS)):
                for turn in range(5):
                    arrived = loop.create_future()
                    started = time.perf_counter()
                    end.send(array, way)
                    assert await arrived == 1
                    if turn:
                        taken[way].append((time.perf_counter() - started) * 1e3)
        found[name] = [median(times) for times in taken]
    end.transport.close()
    await end.gone
    return found


def table(found: dict[str, list[float]]) -> str:
    """As Markdown; how many times faster than the socket in brackets."""
    lines = [f"| array | {' | '.join(WAYS)} |", f"| --- |{' --- |' * len(WAYS)}"]
    for name, times in found.items():
        cells = [f"{times[0]:.3f} ms", *(f"{ms:.3f} ms ({times[0] / ms:.1f})" for ms in times[1:])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Start the answerer, measure, print."""
    parser = argparse.ArgumentParser(description="Compare ways of tensors between processes.")
    parser.add_argument("--seconds", type=float, default=5.0, help="How long each size is measured.")
    parser.add_argument("--answer", nargs=3, type=int, metavar="DESCRIPTOR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        connection, mine, theirs = arguments.answer
        uvloop.run(answer(socket.socket(fileno=connection), mmap.mmap(mine, AREA), mmap.mmap(theirs, AREA)))
        return
    areas = [os.memfd_create(name) for name in ("asked", "answered")]
    for area in areas:
        os.ftruncate(area, AREA)
    ours, others = socket.socketpair()
    descriptors = [others.fileno(), areas[1], areas[0]]
    command = [sys.executable, "-m", "loadtest.bench.transport", "--answer", *map(str, descriptors)]
    with subprocess.Popen(command, pass_fds=descriptors):
        others.close()
        mine, theirs = (mmap.mmap(area, AREA) for area in areas)
        found = uvloop.run(measure(ours, mine, theirs, arguments.seconds))
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
