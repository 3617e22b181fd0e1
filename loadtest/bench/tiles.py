"""A long sequence in tiles, cut as the service cuts it: some rows of one head each, which threads may share.

Written again, as nothing here knows the service; a test holds both against each other. Without masks.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

import numpy as np

from loadtest.bench import graphs
from loadtest.bench.floor import session
from loadtest.bench.work import F32, Layer

TILE_FROM: Final = 512
"""Tokens from which the service takes tiles; for one head that is not wide twice as many."""

WIDE_HEAD: Final = 256
"""Width from which a head is wide."""

ROWS, TILES, LEAST_TILES = 512, 32, 2
BYTES, LEAST_ROWS = 8 << 20, 64
PROJECTED_ROWS: Final = 256
FUSED_DIM: Final = 128
NAMES: Final = ("query", "key", "value")

Spread = Callable[[Sequence[Callable[[], None]]], None]
"""Computes the parts of some work, in any order, and returns when all are done."""


def in_turn(parts: Sequence[Callable[[], None]]) -> None:
    """Compute parts one after the other."""
    for part in parts:
        part()


def shared_with(helper: Executor) -> Spread:
    """Compute parts here and in another thread, each the next that nobody has begun."""

    def spread(parts: Sequence[Callable[[], None]]) -> None:
        left = deque(parts)

        def work() -> None:
            while left:
                try:
                    part = left.popleft()
                except IndexError:  # the other one was quicker
                    return
                part()

        helped = helper.submit(work)
        work()
        if not helped.cancel():
            helped.result()

    return spread


def spans(n: int, heads: int) -> list[tuple[int, int]]:
    """First and last row, not included, of the tiles of a head."""
    most = min(n // ROWS, TILES // heads)
    rows = max(LEAST_ROWS, min(-(-n // max(1, most, LEAST_TILES // heads)), BYTES // (4 * n)))
    return [(start, min(start + rows, n)) for start in range(0, n, rows)]


class Tiled:
    """A layer that computes in tiles."""

    def __init__(self, layer: Layer, *, weights: bool) -> None:
        """Open its sessions, of one thread each; outputs come alone unless `weights` says otherwise."""
        self._layer, self._weights = layer, weights
        self._projections = {name: session(graphs.projection(layer, name)) for name in NAMES}
        fused = not weights and layer.width // layer.heads <= FUSED_DIM
        self._tile = session(graphs.tile(weights=weights, fused=fused))

    def run(self, x: F32, spread: Spread) -> dict[str, F32]:
        """`outputs` (n, width) of token embeddings (n, width), and `weights` (heads, n, n) if they are wanted."""
        n, heads = len(x), self._layer.heads
        size = self._layer.width // heads
        projected = {name: np.empty((heads, n, size), np.float32) for name in NAMES}

        def project(name: str, start: int) -> None:
            rows = slice(start, start + PROJECTED_ROWS)
            place = projected[name][0, rows] if heads == 1 else projected[name][:, rows]
            _run_into(self._projections[name], {"inputs": x[rows]}, {name: place})

        spread([partial(project, name, start) for name in NAMES for start in range(0, n, PROJECTED_ROWS)])
        outputs = np.empty((n, heads, size), np.float32)
        made = {"outputs": outputs.reshape(n, -1)}
        if self._weights:
            made["weights"] = np.empty((heads, n, n), np.float32)

        def compute(head: int, start: int, stop: int) -> None:
            query, key, value = (projected[name][head] for name in NAMES)  # (n, size) each
            places = {"outputs": outputs[start:stop, head]}
            if self._weights:
                places["weights"] = made["weights"][head, start:stop]
            _run_into(self._tile, {"query": query[start:stop], "key": key, "value": value}, places)

        spread([partial(compute, head, *span) for span in reversed(spans(n, heads)) for head in range(heads)])
        return made


def _run_into(opened: Any, feed: dict[str, F32], places: dict[str, F32]) -> None:
    """Compute a graph of one sequence, its outputs where they belong: written there where that is one piece."""
    binding: Any = opened.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(array)[None])
    for name, place in places.items():
        if place.flags.c_contiguous:
            binding.bind_output(name, "cpu", 0, np.float32, (1, *place.shape), place.ctypes.data)
        else:
            binding.bind_output(name)
    opened.run_with_iobinding(binding)
    for place, value in zip(places.values(), binding.get_outputs(), strict=True):
        if not place.flags.c_contiguous:
            place[...] = value.numpy()[0]
