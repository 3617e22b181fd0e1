"""How batches are padded for a GPU, tried on the CPU, where the same steps give the same numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.eager import Projections as Own
from models.eager import SelfAttention
from models.types import Projections
from service.backends.base import Batch
from service.backends.buckets import bucket
from service.backends.eager import EagerBackend, computed
from service.backends.onnx import OnnxBackend
from service.backends.onnx_cuda import _feed
from service.backends.staging import Form, fetched, form_of, parted, sees, staged
from service.devices import Device
from service.parity import _living
from tests.contract.layers import LAYERS, STEADY, WIDE, assert_close, draw_sequence

KINDS = ("plain", "causal", "masked", "biased", "masked, biased", "causal, biased")


def mixed(entry, lengths, kind: str, wanted, *, size: float = 1.0) -> Batch:
    """Sequences of several lengths that want the same."""
    random = np.random.default_rng(7)
    masked, biased = "masked" in kind, "biased" in kind
    sequences = [draw_sequence(entry, n, n, masked=masked) for n in lengths]
    biases = tuple(random.standard_normal((entry.spec.num_heads, n, n), np.float32) for n in lengths)
    return Batch(
        tuple(np.float32(size) * s.inputs for s in sequences),
        tuple(s.attn_mask for s in sequences) if masked else None,
        biases if biased else None,
        "causal" in kind,
        entry.spec.effective_scale,
        wanted,
    )


def assert_same(found, want, batch: Batch, tolerance: float) -> None:
    """Each sequence's tensors, but for rows that see nothing."""
    for i in range(len(batch.inputs)):
        got, expected = _living(batch, i, found[i]), _living(batch, i, want[i])
        for name in batch.wanted:
            assert_close(got[name], expected[name], tolerance, f"{name} of {i}")


def padded(module, batch: Batch, count: int):
    """What a GPU does, here."""
    form = form_of(batch, bucket(batch.length), count)
    given = staged(batch, form)
    own = [given[name] for name in ("query", "key", "value") if name in given]
    with torch.inference_mode():
        found = computed(
            module,
            given["inputs"],
            sees(given, given["inputs"].shape[1]),
            given.get("bias"),
            own,
            is_causal=form.is_causal,
            scale=form.scale,
            wanted=form.wanted,
        )
    return parted(fetched(found, form.wanted, batch.length), [len(x) for x in batch.inputs])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", [*STEADY, *WIDE])
def test_padding_changes_nothing_beyond_rounding(layer, kind, settings):
    """Whichever way a layer computes, whatever hides tokens from each other, and next to whomever."""
    entry = (LAYERS | WIDE)[layer]
    runner, module = EagerBackend(Device("cpu"), settings).layer(entry), SelfAttention(entry.spec, entry.weights)
    projected = ("projected",) if entry.weights.output is not None else ()
    for wanted in (("outputs", *projected), entry.weights.tensor_names):
        batch = mixed(entry, (17, 24, 19), kind, wanted)

        assert_same(padded(module, batch, 4), runner.run(batch), batch, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", ["rotary", "projecting"])
def test_a_padded_graph_says_the_same(layer, kind, settings):
    """What ONNX Runtime is fed on a GPU, fed to it here."""
    entry = LAYERS[layer]
    runner = OnnxBackend(Device("cpu"), settings).layer(entry)
    batch = mixed(entry, (17, 24, 19), kind, entry.weights.tensor_names)
    form = form_of(batch, 24, 3)
    feed = {name: tensor.numpy() for name, tensor in _feed(staged(batch, form), form).items()}
    inputs = tuple(feed["inputs"])
    masks = tuple(feed["attn_mask"]) if "attn_mask" in feed else None
    biases = tuple(feed["attn_bias"]) if "attn_bias" in feed else None

    whole = runner.run(Batch(inputs, masks, biases, False, float(feed["scale"]), batch.wanted))

    stacked = {name: torch.from_numpy(np.stack([tensors[name] for tensors in whole])) for name in batch.wanted}
    found = parted(fetched(stacked, batch.wanted, 24), [17, 24, 19])
    assert_same(found, [runner.run(batch.alone(i))[0] for i in range(3)], batch, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_callers_own_projections_are_padded_alike(kind, settings):
    """They come with the batch, one set for all of it."""
    entry, random = WIDE["wide-odd"], np.random.default_rng(0)
    own = Projections(*(random.standard_normal((33, width), np.float32) for width in (5, 5, 3)))
    batch = replace(mixed(entry, (17, 24, 19), kind, ("outputs", "weights")), projections=own, scale=0.2)
    runner = EagerBackend(Device("cpu"), settings).projections()

    assert_same(padded(Own(), batch, 3), runner.run(batch), batch, 1e-5)


@pytest.mark.parametrize("kind", ["plain", "causal", "masked"])
def test_what_a_large_neighbour_holds_does_not_leak(kind):
    """Not by its numbers, and not by the memory they lay in."""
    entry = WIDE["wide-heads"]
    module = SelfAttention(entry.spec, entry.weights)
    batch = mixed(entry, (17, 19), kind, entry.weights.tensor_names)
    before = padded(module, batch, 4)
    huge = padded(module, mixed(entry, (24, 24, 24, 24), kind, batch.wanted, size=1e15), 4)
    both = replace(batch, inputs=(batch.inputs[0], batch.inputs[1] * np.float32(1e15)))

    after, beside = padded(module, batch, 4), padded(module, both, 4)

    assert np.abs(huge[0]["query"]).max() > 1e14
    for name in batch.wanted:
        np.testing.assert_array_equal(after[0][name], before[0][name])
        np.testing.assert_array_equal(beside[0][name], before[0][name])


def test_sequences_that_fill_their_bucket_need_no_mask():
    """The kernels without one are faster."""
    entry = WIDE["wide-heads"]

    def names(lengths, kind):
        form = form_of(mixed(entry, lengths, kind, ("outputs",)), 24, 2)
        assert isinstance(form, Form)
        return [name for name, _ in form.shapes]

    assert names((24, 24), "plain") == ["inputs"]
    assert names((24, 17), "plain") == ["inputs", "lengths"]
    assert names((24, 17), "causal") == ["inputs"]
    assert names((24, 17), "masked, biased") == ["inputs", "mask", "bias"]


def test_only_layers_whose_rotations_do_not_depend_on_the_length_are_padded():
    """The others turn by angles that more tokens would change."""
    assert {name for name, entry in LAYERS.items() if not entry.spec.steady} == {"dynamic", "longrope"}
