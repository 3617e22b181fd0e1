"""Long sequences in tiles, a few rows of one head each, for ONNX Runtime on a CPU.

Which tiles there are depends on the sequence's length alone, so its bits are the same whoever computes them: one
thread, or several that share them. And no more scores than those of a tile are held, unless they are asked for.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

from models.graphs import Variant, tile
from models.types import F32, Array
from service.backends.base import SCORED, Batch

ROWS, TILES = 512, 32
"""A sequence is cut into about so many tiles, unless they would have fewer rows: small ones take longer in all."""

LEAST_TILES = 2
"""But into so many whatever their rows: a wide head alone is worth two threads."""

CAUSAL_ROWS = 256
"""Rows of a tile that looks at no later columns: the fewer they are, the more there is that it need not look at."""

BYTES, LEAST_ROWS = 8 << 20, 64
"""Tiles whose scores would take more bytes have fewer rows, down to the least."""


FUSED_DIM = 128
"""Widest head for which outputs alone are made by one operator: of 192 it takes a tenth longer than the products and
the softmax apart, of 768 half as long again."""


class Tiles:
    """Sessions that compute tiles, of all layers: a tile has no numbers of its own."""

    def __init__(self, session: Callable[[ModelProto], ort.InferenceSession]) -> None:
        """Open graphs by `session`, on first use."""
        self._session = session
        self._sessions: dict[tuple[Variant, bool], ort.InferenceSession] = {}

    def _opened(self, variant: Variant, *, fused: bool) -> ort.InferenceSession:
        if (session := self._sessions.get((variant, fused))) is None:
            session = self._sessions[variant, fused] = self._session(tile(variant, fused=fused))
        return session

    def attend(self, given: Mapping[str, F32], batch: Batch, i: int, wanted: tuple[str, ...]) -> dict[str, F32]:
        """What attention makes of a sequence's projections, in memory that is nobody else's.

        Args:
            given: `query` and `key` (h, n, head_dim); and for outputs `value` (h, n, value_dim).
            batch: whose mask, bias and causality hold.
            i: which of its sequences it is.
            wanted: some of `scores`, `weights` and `outputs`.
        """
        query, key = given["query"], given["key"]
        heads, n, head_dim = query.shape
        masked, biased = batch.masks is not None or batch.is_causal, batch.biases is not None
        session = self._opened(Variant(wanted, masked=masked, biased=biased), fused=head_dim <= FUSED_DIM)
        with np.errstate(over="ignore"):  # what overflows is not finite, and refused for that
            scale = np.float32(batch.scale)
        made = {name: _blank(name, heads, n, is_causal=batch.is_causal) for name in wanted if name in SCORED}
        if mixing := "outputs" in wanted:
            made["outputs"] = np.empty((n, heads, given["value"].shape[-1]), np.float32)

        def compute(head: int, start: int, stop: int) -> None:
            seen = stop if batch.is_causal else n  # what comes later is not even looked at
            with np.errstate(over="ignore", invalid="ignore"):  # as above
                scaled = query[head, start:stop] * scale
            feed: dict[str, Array] = {"query": scaled, "key": key[head, :seen]}
            if mixing:
                feed["value"] = given["value"][head, :seen]
            if batch.masks is not None:
                feed["attn_mask"] = batch.masks[i][start:stop]
            elif batch.is_causal:
                feed["attn_mask"] = np.tri(stop - start, seen, start, dtype=np.bool_)
            if batch.biases is not None:
                bias = batch.biases[i]
                feed["attn_bias"] = bias[head if len(bias) > 1 else 0, start:stop, :seen]
            places = {
                name: tensor[start:stop, head] if name == "outputs" else tensor[head, start:stop, :seen]
                for name, tensor in made.items()
            }
            run_into(session, feed, places)

        spans = _spans(n, heads, is_causal=batch.is_causal)
        batch.spread([partial(compute, head, *span) for span in reversed(spans) for head in range(heads)])
        if mixing:
            made["outputs"] = made["outputs"].reshape(n, -1)
        return made


def _spans(n: int, heads: int, *, is_causal: bool) -> list[tuple[int, int]]:
    """First and last row, not included, of the tiles of a head."""
    most = n // CAUSAL_ROWS if is_causal else min(n // ROWS, TILES // heads)
    rows = max(LEAST_ROWS, min(-(-n // max(1, most, LEAST_TILES // heads)), BYTES // (4 * n)))
    return [(start, min(start + rows, n)) for start in range(0, n, rows)]


def _blank(name: str, heads: int, n: int, *, is_causal: bool) -> F32:
    """Room for scores or weights, which holds what no tile writes: what later columns are to earlier rows."""
    shape = (heads, n, n)
    if not is_causal:
        return np.empty(shape, np.float32)
    return np.zeros(shape, np.float32) if name == "weights" else np.full(shape, -np.inf, np.float32)


def run_into(session: ort.InferenceSession, feed: Mapping[str, Array], places: Mapping[str, F32]) -> None:
    """Compute a graph, and have its outputs where they belong: written there where that is one piece of memory.

    Args:
        session: of the graph.
        feed: its inputs, without their leading axis of 1.
        places: where its outputs belong, likewise, in the order the graph gives them.
    """
    binding: Any = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(array)[None])
    for name, place in places.items():
        if place.flags.c_contiguous:
            binding.bind_output(name, "cpu", 0, np.float32, (1, *place.shape), place.ctypes.data)
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding)
    for place, value in zip(places.values(), binding.get_outputs(), strict=True):
        if not place.flags.c_contiguous:
            place[...] = value.numpy()[0]
