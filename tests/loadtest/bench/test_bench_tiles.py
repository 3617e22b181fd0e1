import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from loadtest.bench import tiles, work
from loadtest.bench.tiles import Tiled, in_turn, shared_with, spans
from loadtest.bench.work import Layer
from service.backends import onnx
from service.backends import tiles as service_tiles
from service.backends.tiles import _spans


@pytest.mark.parametrize("heads", [1, 2, 12, 32, 48])
def test_sequences_are_cut_as_the_service_cuts_them(heads: int):
    """What is measured is what the constants decide."""
    lengths = (64, 511, 512, 1000, 1024, 2048, 4096, 16_384, 40_000)

    assert [spans(n, heads) for n in lengths] == [_spans(n, heads, is_causal=False) for n in lengths]
    for name in ("TILE_FROM", "WIDE_HEAD", "PROJECTED_ROWS"):
        assert getattr(tiles, name) == getattr(onnx, name), name
    assert tiles.FUSED_DIM == service_tiles.FUSED_DIM


@pytest.mark.parametrize("layer", [Layer(32), Layer(32, 4)])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("fused_dim", [4, 64])
def test_tiles_make_the_same_numbers_whoever_computes_them(
    layer: Layer, weights: bool, fused_dim: int, monkeypatch: pytest.MonkeyPatch
):
    """Right ones, and for two threads those of one to the bit."""
    monkeypatch.setattr(tiles, "FUSED_DIM", fused_dim)
    monkeypatch.setattr(tiles, "PROJECTED_ROWS", 16)
    monkeypatch.setattr(tiles, "ROWS", 16)
    monkeypatch.setattr(tiles, "LEAST_ROWS", 16)
    x, tiled = work.inputs(70, 32), Tiled(layer, weights=weights)

    alone = tiled.run(x, in_turn)
    with ThreadPoolExecutor(1) as helper:
        shared = tiled.run(x, shared_with(helper))

    assert alone.keys() == ({"outputs", "weights"} if weights else {"outputs"})
    assert all(np.array_equal(alone[name], shared[name]) for name in alone)
    found: dict[str, Any] = dict(alone)
    if weights and layer.heads == 1:
        found["weights"] = alone["weights"][0]
    work.check(layer, x, found)


def test_two_threads_share_the_parts():
    """Each part is computed once, and some by either."""
    met, done = threading.Barrier(2), []

    def part() -> None:
        done.append(threading.get_ident())
        met.wait(30)

    with ThreadPoolExecutor(1) as helper:
        shared_with(helper)([part, part])

    assert len(set(done)) == len(done) == 2


def test_what_a_part_raises_is_raised():
    """In whichever thread: a measurement of half of the work is none."""

    def fails() -> None:
        raise ValueError("no")

    with ThreadPoolExecutor(1) as helper, pytest.raises(ValueError, match="no"):
        shared_with(helper)([fails])
