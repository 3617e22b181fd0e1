"""The laws of every backend for encoders: the mathematics decide, and batching is invisible to the last bit."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from models.encoder_reference import encode
from models.encoder_spec import encoder_tensor_names, placed
from models.repository import EncoderEntry
from service.backends import BACKENDS
from service.backends.base import Batch, Runner, Tensors
from tests.contract.layers import assert_close, backend, skip_unless_exact
from tests.encoders import draw_ids, draw_weights, make_spec, word_pieces

ENCODERS = {
    spec.name: EncoderEntry(spec, draw_weights(spec), word_pieces(), "test")
    for spec in (
        make_spec(name="bert-like"),
        make_spec(name="roberta-like", position_offset=2, token_types=1, layer_norm_eps=1e-5, activation="gelu_tanh"),
        make_spec(name="one-layer", num_layers=1, num_heads=1, head_dim=24, token_types=0, activation="relu"),
    )
}
LENGTHS = (1, 2, 3, 8, 31, 33, 257)


@lru_cache
def runner(name: str, encoder: str, artifacts: Path) -> Runner:
    return backend(name, artifacts).encoder(ENCODERS[encoder])


def run(runner: Runner, sequences: np.ndarray, wanted: tuple[str, ...]) -> list[Tensors]:
    return runner.run(Batch(tuple(sequences), None, None, False, 1.0, wanted))


@pytest.fixture(params=[(name, encoder) for name in BACKENDS for encoder in ENCODERS], ids="/".join)
def loaded(request: pytest.FixtureRequest, artifacts: Path) -> tuple[Runner, EncoderEntry]:
    name, encoder = request.param
    return runner(name, encoder, artifacts), ENCODERS[encoder]


@pytest.mark.parametrize("n", LENGTHS)
def test_every_tensor_of_every_layer_equals_the_reference(loaded: tuple[Runner, EncoderEntry], n: int):
    """At lengths that no graph was exported at."""
    made, entry = loaded
    names = tuple(encoder_tensor_names(entry.spec))
    ids = draw_ids(entry.spec, n)
    want = encode(ids[0], entry.spec, entry.weights)

    (found,) = run(made, ids, names)

    assert tuple(found) == names
    for name, tensor in found.items():
        layer, kind = placed(name)
        assert tensor.dtype == np.float32
        assert_close(tensor, want[layer].tensor(kind), 1e-5, name)


@pytest.mark.parametrize("n", LENGTHS)
def test_a_text_has_the_same_bits_alone_and_in_company(loaded: tuple[Runner, EncoderEntry], n: int):
    """Also where fewer tensors are asked for than those that are there."""
    made, entry = loaded
    skip_unless_exact(made)
    names = tuple(encoder_tensor_names(entry.spec))
    ids = draw_ids(entry.spec, n, 4)

    together = run(made, ids, names)

    for i, in_company in enumerate(together):
        for wanted in (names, names[1:2], names[-3:]):
            (alone,) = run(made, ids[i : i + 1], wanted)
            for name in wanted:
                np.testing.assert_array_equal(alone[name], in_company[name], err_msg=name)


def test_an_answer_may_be_changed_by_whoever_gets_it(loaded: tuple[Runner, EncoderEntry]):
    """Neither a neighbour nor a later answer sees it."""
    made, entry = loaded
    wanted = ("layers.0.weights", "layers.0.outputs")
    ids = draw_ids(entry.spec, 5, 2)
    first, second = run(made, ids, wanted)
    kept = {name: tensor.copy() for name, tensor in second.items()}

    for tensor in first.values():
        tensor[...] = 7

    again, _ = run(made, ids, wanted)
    for name in wanted:
        np.testing.assert_array_equal(second[name], kept[name])
        assert not (again[name] == 7).all()
