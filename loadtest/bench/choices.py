"""How the thresholds in the service were chosen, so that they can be chosen again on another machine.

- `FUSE_FROM` of `service/backends/onnx.py`: from how many tokens outputs alone are made by a kernel that fuses
  attention.
- `TILE_FROM` there: from how many tokens masked outputs are made a few rows at a time.
- `HERE_S` of `service/batcher.py`: how long a computation is at least that is worth handing to another thread.
"""

import asyncio
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import uvloop

from loadtest.bench import graphs, work
from loadtest.bench.floor import session
from loadtest.bench.results import Row
from loadtest.bench.work import F32, Layer

LENGTHS: Final = (64, 128, 256, 512, 1024, 2048, 4096)
LAYERS: Final = (Layer(64), Layer(384), Layer(384, 12))
TILE_BYTES: Final = 32 << 20
LEAST_ROWS: Final = 16
HAND_OVERS: Final = 2_000


def choices(rounds: int, seconds: float, lengths: tuple[int, ...] = LENGTHS) -> Iterator[Row]:
    """Measure both sides of each choice."""
    plain, fused = (
        {layer: session(graphs.outputs_alone(layer, fused=way)) for layer in LAYERS} for way in (False, True)
    )
    masked = session(graphs.attending())
    for _ in range(rounds):
        for layer in LAYERS:
            for n in lengths:
                feed = {"inputs": work.inputs(n, layer.width)[None]}
                found = {
                    "plain_ms": timed_ms(lambda: plain[layer].run(None, feed), seconds / 4),  # noqa: B023 - called at once
                    "fused_ms": timed_ms(lambda: fused[layer].run(None, feed), seconds / 4),  # noqa: B023
                }
                yield Row("fuse", {"d": layer.width, "heads": layer.heads, "n": n}, found)
                query, mask = _query(layer, n), np.random.default_rng(n).random((n, n)) < 0.9
                found = {
                    "whole_ms": timed_ms(lambda: whole(masked, query, mask), seconds / 4),  # noqa: B023
                    "tiled_ms": timed_ms(lambda: tiled(masked, query, mask), seconds / 4),  # noqa: B023
                }
                yield Row("tile", {"d": layer.width, "heads": layer.heads, "n": n}, found)
        here, away = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_hand_overs())
        yield Row("hand over", {"to": "a thread"}, _microseconds(away))
        yield Row("hand over", {"to": "the event loop"}, _microseconds(here))


def timed_ms(call: Callable[[], Any], seconds: float) -> float:
    """The median time of a call, ms, over some seconds and three calls at least."""
    call()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e3


def whole(masked: Any, query: F32, mask: Any) -> F32:
    """All rows at once; the same numbers serve as query, key and value, (1, heads, n, size)."""
    rows: F32 = masked.run(None, {"query": query, "key": query, "value": query, "mask": mask})[0]
    return rows


def tiled(masked: Any, query: F32, mask: Any) -> F32:
    """The same, a few rows at a time, as many as make TILE_BYTES of scores."""
    _, heads, n, _ = query.shape
    rows = max(LEAST_ROWS, TILE_BYTES // (4 * heads * n))
    tiles = []
    for start in range(0, n, rows):
        part = np.ascontiguousarray(query[:, :, start : start + rows])
        feed = {"query": part, "key": query, "value": query, "mask": mask[start : start + rows]}
        tiles.append(masked.run(None, feed)[0])
    return np.concatenate(tiles, axis=2)


def _query(layer: Layer, n: int) -> F32:
    size = layer.width // layer.heads
    return np.ascontiguousarray(work.inputs(n, layer.width).reshape(1, n, layer.heads, size).swapaxes(1, 2))


async def _hand_overs() -> tuple[list[float], list[float]]:
    """Seconds until an empty piece of work is done and its waiter runs again: in a later turn here, and in a thread."""
    loop = asyncio.get_running_loop()
    tasks: queue.SimpleQueue[asyncio.Future[None] | None] = queue.SimpleQueue()

    def serve() -> None:
        while (future := tasks.get()) is not None:
            loop.call_soon_threadsafe(future.set_result, None)

    thread = threading.Thread(target=serve)
    thread.start()
    here: list[float] = []
    away: list[float] = []
    for _ in range(HAND_OVERS):
        for took, hand_over in (
            (here, lambda future: loop.call_soon(future.set_result, None)),
            (away, tasks.put),
        ):
            await asyncio.sleep(0)
            start, future = time.perf_counter(), loop.create_future()
            hand_over(future)
            await future
            took.append(time.perf_counter() - start)
    tasks.put(None)
    thread.join()
    return here, away


def _microseconds(seconds: list[float]) -> dict[str, float]:
    return {f"p{percent}_us": float(np.percentile(seconds, percent)) * 1e6 for percent in (50, 90, 99)}
