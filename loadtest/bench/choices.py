"""How the thresholds in the service were chosen, so that they can be chosen again on another machine.

- `TILE_FROM` of `service/backends/onnx.py`: from how many tokens a sequence is computed in tiles, which threads may
  share. A lone one is measured by one graph, in tiles on one thread, and in tiles on two.
- `HERE_S` of `service/batcher.py`: how long a computation is at least that is worth handing to another thread.
"""

import asyncio
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, Final

import numpy as np
import uvloop

from loadtest.bench import graphs, work
from loadtest.bench.floor import session
from loadtest.bench.results import Row
from loadtest.bench.tiles import Tiled, in_turn, shared_with
from loadtest.bench.work import Layer

LENGTHS: Final = (64, 128, 256, 512, 1024, 2048, 4096)
LAYERS: Final = (Layer(64), Layer(384), Layer(384, 12))
HAND_OVERS: Final = 2_000


def choices(rounds: int, seconds: float, lengths: tuple[int, ...] = LENGTHS) -> Iterator[Row]:
    """Measure both sides of each choice."""
    wholes = {(layer, w): session(graphs.by_operator(layer, weights=w)) for layer in LAYERS for w in (False, True)}
    tiled = {(layer, w): Tiled(layer, weights=w) for layer, w in wholes}
    with ThreadPoolExecutor(1) as helper:
        for _ in range(rounds):
            for (layer, weights), n in product(wholes, lengths):
                whole, tiles, x = wholes[layer, weights], tiled[layer, weights], work.inputs(n, layer.width)
                found = {
                    "whole_ms": timed_ms(lambda: whole.run(None, {"inputs": x[None]}), seconds / 4),  # noqa: B023 - called at once
                    "tiles_ms": timed_ms(lambda: tiles.run(x, in_turn), seconds / 4),  # noqa: B023
                    "shared_ms": timed_ms(lambda: tiles.run(x, shared_with(helper)), seconds / 4),  # noqa: B023
                }
                wanted = "outputs and weights" if weights else "outputs"
                yield Row("tile", {"d": layer.width, "heads": layer.heads, "wanted": wanted, "n": n}, found)
            yield from _handed_over()


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


def _handed_over() -> Iterator[Row]:
    layer = Layer(64)
    opened, x = session(graphs.attention(layer)), work.inputs(16, layer.width)[None]
    handed: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "16 tokens × 64": lambda: opened.run(None, {"inputs": x}),
    }
    for what, call in handed.items():
        here, away = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_hand_overs(call))
        yield Row("hand over", {"work": what, "to": "a thread"}, _microseconds(away))
        yield Row("hand over", {"work": what, "to": "the event loop"}, _microseconds(here))


async def _hand_overs(call: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Seconds until a piece of work is done and its waiter runs again: in a later turn here, and in a thread."""
    loop = asyncio.get_running_loop()
    tasks: queue.SimpleQueue[asyncio.Future[None] | None] = queue.SimpleQueue()

    def serve() -> None:
        while (future := tasks.get()) is not None:
            call()
            loop.call_soon_threadsafe(future.set_result, None)

    def compute(future: asyncio.Future[None]) -> None:
        call()
        future.set_result(None)

    thread = threading.Thread(target=serve)
    thread.start()
    here: list[float] = []
    away: list[float] = []
    for took, hand_over in ((here, lambda future: loop.call_soon(compute, future)), (away, tasks.put)):
        for _ in range(HAND_OVERS):
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
