import numpy as np
import pytest

from service.backends import tiles
from service.backends.base import Batch
from service.backends.onnx import OnnxBackend
from service.backends.tiles import BYTES, CAUSAL_ROWS, LEAST_ROWS, LEAST_TILES, ROWS, _spans
from service.devices import Device
from tests.contract.layers import assert_close

WANTED = ("scores", "weights", "outputs")


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 12, 128])
@pytest.mark.parametrize("n", [1, 511, 512, 513, 1_024, 3_000, 16_384, 100_000])
def test_tiles_cover_every_row_once_and_hold_few_scores(n, heads, is_causal):
    """Enough of them for several threads, not so many that their own cost shows, and none that fills the memory."""
    spans = _spans(n, heads, is_causal=is_causal)

    assert [row for span in spans for row in range(*span)] == list(range(n))
    rows = spans[0][1]
    assert rows <= LEAST_ROWS or 4 * rows * n <= BYTES
    few = heads * len(spans) <= LEAST_TILES
    assert few or len(spans) == 1 or rows >= min(CAUSAL_ROWS if is_causal else ROWS, BYTES // (4 * n))


@pytest.mark.parametrize("steered", ["", "causal", "mask", "bias", "bias of one head", "mask and bias", "causal, bias"])
@pytest.mark.parametrize("wanted", [WANTED, ("outputs",), ("weights",)], ids=",".join)
@pytest.mark.parametrize("fused_dim", [4, 3])
def test_tiles_put_together_are_the_whole(steered, wanted, fused_dim, settings, monkeypatch):
    """In tiles of two rows and a last one of one, by the textbook in float64; heads narrow and wide."""
    monkeypatch.setattr(tiles, "FUSED_DIM", fused_dim)
    for name in ("ROWS", "CAUSAL_ROWS", "LEAST_ROWS"):
        monkeypatch.setattr(tiles, name, 2)
    random = np.random.default_rng(0)
    heads, n = 3, 7
    given = {name: random.standard_normal((heads, n, 4), np.float32) for name in ("query", "key", "value")}
    mask = random.random((n, n)) < 0.5
    mask[3] = False
    bias = random.standard_normal((1 if "one head" in steered else heads, n, n), np.float32)
    scores = given["query"].astype(np.float64) @ given["key"].transpose(0, 2, 1) * 0.5
    scores = scores + (bias if "bias" in steered else 0)
    seen = mask if "mask" in steered else np.tri(n, dtype=bool) if "causal" in steered else np.ones((n, n), bool)
    scores = np.where(seen, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = np.nan_to_num(weights / weights.sum(axis=-1, keepdims=True))
    want = {"scores": scores, "weights": weights}
    want["outputs"] = (weights @ given["value"]).transpose(1, 0, 2).reshape(n, -1)
    batch = Batch(
        inputs=(np.zeros((n, 1), np.float32),),
        masks=(mask,) if "mask" in steered else None,
        biases=(bias,) if "bias" in steered else None,
        is_causal="causal" in steered,
        scale=0.5,
        wanted=wanted,
    )

    found = OnnxBackend(Device("cpu"), settings).tiles.attend(given, batch, 0, wanted)

    for name in wanted:
        assert_close(found[name], want[name], 1e-5, name)
        assert found[name].flags.c_contiguous
