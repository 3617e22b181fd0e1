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
"""Tokens from which the service takes tiles, for several heads; for one head twice as many."""

ROWS, TILES = 512, 32
BYTES, LEAST_ROWS = 8 << 20, 64
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
    rows = max(LEAST_ROWS, min(-(-n // max(1, most)), BYTES // (4 * n)))
    return [(start, min(start + rows, n)) for start in range(0, n, rows)]


class Tiled:
    """A layer that computes in tiles."""

    def __init__(self, layer: Layer, *, weights: bool) -> None:
        """Open its sessions, of one thread each; outputs come alone unless `weights` says otherwise."""
        self._layer, self._weights = layer, weights
        self._projections = {name: session(graphs.projection(layer, name)) for name in NAMES}
        self._tile = session(graphs.tile(weights=weights))

    def run(self, x: F32, spread: Spread) -> dict[str, F32]:
        """`outputs` (n, width) of token embeddings (n, width), and `weights` (heads, n, n) if they are wanted."""
        n, heads = len(x), self._layer.heads
        projected: dict[str, F32] = {}

        def project(name: str) -> None:
            projected[name] = self._projections[name].run(None, {"inputs": x[None]})[0][0]  # (heads, n, size)

        spread([partial(project, name) for name in NAMES])
        outputs = np.empty((n, heads, self._layer.width // heads), np.float32)
        made = {"outputs": outputs.reshape(n, -1)}
        if self._weights:
            made["weights"] = np.empty((heads, n, n), np.float32)

        def compute(head: int, start: int, stop: int) -> None:
            binding: Any = self._tile.io_binding()
            query, key, value = (projected[name][head][None] for name in NAMES)  # (1, n, size) each
            for name, array in (("query", query[:, start:stop]), ("key", key), ("value", value)):
                binding.bind_cpu_input(name, array)
            binding.bind_output("outputs")
            if self._weights:  # written where they belong, for they are large
                place = made["weights"][head, start:stop]
                binding.bind_output("weights", "cpu", 0, np.float32, (1, *place.shape), place.ctypes.data)
            self._tile.run_with_iobinding(binding)
            outputs[start:stop, head] = binding.get_outputs()[0].numpy()[0]

        spread([partial(compute, head, *span) for span in reversed(spans(n, heads)) for head in range(heads)])
        return made
