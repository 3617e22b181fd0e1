import numpy as np
import pytest

from models.errors import NumericOverflow
from models.reference import self_attention
from models.types import TENSOR_NAMES, SequenceInput
from service.backends.base import Batch
from service.backends.reference import ReferenceBackend
from service.devices import Device
from tests.contract.layers import LAYERS, attend, draw_sequence, make_layer


def runner_of(entry, settings):
    return ReferenceBackend(Device("cpu"), settings).layer(entry)


def test_answers_are_float64_rounded_once(settings):
    """Rounding happens at the very end, so these are the float32 numbers nearest to the truth."""
    entry = LAYERS["grouped"]
    sequence = draw_sequence(entry, 6, 0, masked=True)
    trace = self_attention(sequence.inputs, entry.weights, entry.spec, attn_mask=sequence.attn_mask, scale=0.6)

    (tensors,) = runner_of(entry, settings).run(
        Batch((sequence.inputs,), (sequence.attn_mask,), None, False, 0.6, TENSOR_NAMES)
    )

    for name in TENSOR_NAMES:
        assert tensors[name].dtype == np.float32
        np.testing.assert_array_equal(tensors[name], trace.tensor(name).astype(np.float32))


def test_it_stays_on_the_cpu_and_says_so(settings):
    """Whatever the device of the others, an answer must not claim a GPU."""
    assert ReferenceBackend(Device("cuda", 1), settings).info.device == "cpu"


@pytest.mark.parametrize("is_causal", [False, True])
def test_causality_is_the_batchs_to_say(settings, is_causal):
    """As for every backend: else a causal layer would fail its parity check, whose batches try both."""
    entry = make_layer("decoder", embed_dim=4, head_dim=2, is_causal=True)
    batch = Batch((draw_sequence(entry, 3, 0).inputs,), None, None, is_causal, 0.5, ("weights",))

    (tensors,) = runner_of(entry, settings).run(batch)

    assert (tensors["weights"][0][~np.tri(3, dtype=bool)] == 0).all() == is_causal
    assert entry.spec.is_causal


@pytest.mark.parametrize(("scale", "size"), [(1e300, 1e30), (1e38, 1e10), (1e308, 1e37)])
def test_what_overflows_is_refused_without_a_warning(settings, scale, size):
    """Warnings are errors here, and in production they are noise without a request's name."""
    entry = make_layer("large", embed_dim=2, head_dim=2)
    inputs = np.array([[1, 2], [3, -4]], np.float32) * np.float32(size)

    with pytest.raises(NumericOverflow, match="overflow float32"):
        attend(runner_of(entry, settings), [SequenceInput(inputs)], scale=scale)
