import numpy as np
import pytest

from loadtest.bench import graphs, work
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
@pytest.mark.parametrize("weights", [False, True])
def test_the_operator_computes_the_same(layer: Layer, weights: bool):
    """What tiles are compared with: one graph, as short sequences take it."""
    x = work.inputs(9, 32)

    made = session(graphs.by_operator(layer, weights=weights)).run(None, {"inputs": x[None]})

    assert len(made) == 1 + weights
    found = {"outputs": made[0][0]}
    if weights:
        found["weights"] = made[1][0] if layer.heads > 1 else made[1][0, 0]
    work.check(layer, x, found)
