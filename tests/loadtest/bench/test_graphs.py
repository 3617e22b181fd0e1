import numpy as np
import pytest

from loadtest.bench import choices, graphs, work
from loadtest.bench.floor import session
from loadtest.bench.work import Layer


@pytest.mark.parametrize("layer", [Layer(32), Layer(32, 4)])
def test_the_floor_computes_the_same(layer: Layer):
    """A floor that computes something else is no floor."""
    x = work.inputs(9, 32)

    outputs, weights = session(graphs.attention(layer)).run(None, {"inputs": x[None]})

    work.check(layer, x, {"outputs": outputs[0], "weights": weights[0]})


@pytest.mark.parametrize("layer", [Layer(32), Layer(32, 4)])
def test_padding_is_not_seen(layer: Layer):
    """What peers batch sequences of several lengths with."""
    x = work.inputs(9, 32)
    inputs, bias = np.zeros((1, 12, 32), np.float32), np.full((1, 12), -np.inf, np.float32)
    inputs[0, :9], bias[0, :9] = x, 0

    outputs, weights = session(graphs.attention(layer, padded=True)).run(None, {"inputs": inputs, "bias": bias})

    work.check(layer, x, {"outputs": outputs[0, :9], "weights": weights[0, ..., :9, :9]})


@pytest.mark.parametrize("layer", [Layer(32), Layer(32, 4)])
@pytest.mark.parametrize("fused", [False, True])
def test_outputs_alone_are_the_same_either_way(layer: Layer, fused: bool):
    """Two ways of computing one thing are compared."""
    x = work.inputs(9, 32)

    (outputs,) = session(graphs.outputs_alone(layer, fused=fused)).run(None, {"inputs": x[None]})

    work.check(layer, x, {"outputs": outputs[0]})


def test_rows_a_few_at_a_time_are_the_same_rows(monkeypatch: pytest.MonkeyPatch):
    """Likewise."""
    monkeypatch.setattr(choices, "TILE_BYTES", 0)
    masked = session(graphs.attending())
    query = np.random.default_rng(0).standard_normal((1, 2, 50, 8), dtype=np.float32)
    mask = np.tri(50, dtype=np.bool_)

    np.testing.assert_allclose(
        choices.tiled(masked, query, mask), choices.whole(masked, query, mask), rtol=1e-5, atol=1e-6
    )
