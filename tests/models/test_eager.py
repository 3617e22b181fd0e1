import numpy as np
import pytest
import torch

from models.eager import Intermediates, Projections, SelfAttention, attend, fused_outputs, merge_heads, split_heads
from models.types import ALL_TENSOR_NAMES, TENSOR_NAMES
from tests.contract.layers import LAYERS, assert_close, by_reference, draw_sequence, seeing_all


def tensors_of(sequences, dtype=torch.float32):
    """Inputs, mask and bias of several sequences as the module takes them."""
    inputs = torch.tensor(np.stack([s.inputs for s in sequences]), dtype=dtype)
    mask = bias = None
    if sequences[0].attn_mask is not None:
        mask = torch.tensor(np.stack([s.attn_mask for s in sequences]))
    if sequences[0].attn_bias is not None:
        biases = [s.attn_bias if s.attn_bias.ndim == 3 else s.attn_bias[None] for s in sequences]
        bias = torch.tensor(np.stack(biases), dtype=dtype)
    return inputs, mask, bias


def draw(entry, n, count, *, masked, biased):
    """Sequences whose biases have one shape."""
    sequences = []
    seed = 0
    while len(sequences) < count:
        sequence = draw_sequence(entry, n, seed, masked=masked, biased=biased)
        seed += 1
        if not sequences or not biased or sequence.attn_bias.shape == sequences[0].attn_bias.shape:
            sequences.append(sequence)
    return sequences


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_every_intermediate_equals_the_reference(layer, masked, biased, dtype, tolerance):
    """In float64 to the last digits, so that float32's differences are rounding and nothing else."""
    entry = seeing_all(LAYERS[layer])
    module = SelfAttention(entry.spec, entry.weights).to(dtype)
    sequences = draw(entry, 6, 3, masked=masked, biased=biased)
    inputs, mask, bias = tensors_of(sequences, dtype)

    found = module(inputs, torch.tensor(0.6, dtype=dtype), mask, bias)

    for i, sequence in enumerate(sequences):
        want = by_reference(entry, sequence, scale=0.6)
        for name in TENSOR_NAMES:
            tensor = getattr(found, name)
            assert tensor.dtype == dtype
            assert_close(tensor[i].numpy(), want[name], tolerance, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_that_sees_nothing_is_exactly_zero(dtype):
    """Softmax makes NaN of a row of -inf; the module must not."""
    query, key, value = torch.randn(3, 2, 2, 4, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[0, 1] = mask[1] = False

    found = attend(query, key, value, torch.tensor(0.5, dtype=dtype), mask, None)

    assert (found.weights[0, :, 1] == 0).all()
    assert (found.outputs[0, 1] == 0).all()
    assert (found.weights[1] == 0).all()
    assert (found.outputs[1] == 0).all()
    assert torch.isneginf(found.scores[1]).all()
    assert torch.isfinite(found.outputs).all()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("masked", "biased", "is_causal"),
    [(False, False, False), (False, False, True), (True, False, False), (False, True, False), (True, True, False)],
)
def test_fused_outputs_equal_the_explicit_ones(layer, masked, biased, is_causal):
    """The kernel that never holds a matrix of scores answers the same, where a row sees anything."""
    entry = seeing_all(LAYERS[layer])
    module = SelfAttention(entry.spec, entry.weights)
    inputs, mask, bias = tensors_of(draw(entry, 9, 2, masked=masked, biased=biased))
    query, key, value = module.project(inputs)
    explicit = torch.ones(1, 9, 9, dtype=torch.bool).tril() if is_causal else mask
    want = attend(query, key, value, torch.tensor(0.6), explicit, bias).outputs

    found = fused_outputs(query, key, value, 0.6, mask, bias, is_causal=is_causal)

    alive = torch.ones(2, 9, dtype=torch.bool) if mask is None else mask.any(dim=-1)
    assert_close(found[alive].numpy(), want[alive].numpy(), 2e-6)


HALVES = [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)]
"""And half of their last place."""


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("dtype", "half_step"), HALVES)
def test_products_may_be_of_half_precision(layer, biased, dtype, half_step):
    """Which is as far from the reference as it must be; what is answered is float32, and rows of weights sum to 1."""
    entry = seeing_all(LAYERS[layer])
    module = SelfAttention(entry.spec, entry.weights, dtype)
    sequences = draw(entry, 6, 3, masked=True, biased=biased)
    inputs, mask, bias = tensors_of(sequences)

    found = module(inputs, torch.tensor(0.6), mask, bias)

    alive = mask.any(dim=-1)[:, None].expand(found.weights.shape[:-1])
    assert (found.weights.sum(dim=-1)[alive] - 1).abs().max() < 1e-6
    exact = SelfAttention(entry.spec, entry.weights)(inputs, torch.tensor(0.6), mask, bias)
    assert not torch.equal(found.query, exact.query)
    for i, sequence in enumerate(sequences):
        want = by_reference(entry, sequence, scale=0.6)
        for name in TENSOR_NAMES:
            assert getattr(found, name).dtype == torch.float32
            assert_close(getattr(found, name)[i].numpy(), want[name], 32 * half_step, name)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("dtype", "half_step"), HALVES)
def test_fused_outputs_may_be_of_half_precision(biased, dtype, half_step):
    """With a bias they are not: one of -1e9 is beyond float16, and says less than a mask."""
    query, key, value = torch.randn(3, 2, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    bias = torch.full((2, 1, 5, 5), -1e9) if biased else None
    want = attend(query, key, value, torch.tensor(0.5), None, bias).outputs

    found = fused_outputs(query, key, value, 0.5, None, bias, is_causal=False, dtype=dtype)

    assert found.dtype == torch.float32
    assert_close(found.numpy(), want.numpy(), 2e-6 if biased else 32 * half_step)


def test_numbers_beyond_half_precision_are_none():
    """NaN, of which an error is made: a query of infinity would make weights of 0, which look right."""
    query, key, value = torch.ones(3, 1, 1, 2, 4)
    query[..., 0, :] = -1e5

    for outputs in (
        attend(query, key, value, torch.tensor(1.0), None, None, dtype=torch.float16).outputs,
        fused_outputs(query, key, value, 1.0, None, None, is_causal=False, dtype=torch.float16),
    ):
        assert outputs[0, 0].isnan().all()


def test_projections_are_a_layer_whose_matrices_come_with_the_call():
    """One head without bias: the same numbers as the layer that holds them."""
    entry = LAYERS["odd"]
    inputs, mask, bias = tensors_of(draw(entry, 6, 2, masked=True, biased=True))
    matrices = [torch.tensor(getattr(entry.weights, name)) for name in ("query", "key", "value")]

    found = Projections()(inputs, torch.tensor(0.6), *matrices, mask, bias)

    want = SelfAttention(entry.spec, entry.weights)(inputs, torch.tensor(0.6), mask, bias)
    for name in TENSOR_NAMES:
        assert_close(getattr(found, name).numpy(), getattr(want, name).numpy(), 1e-6, name)


@pytest.mark.parametrize(
    ("heads", "group", "order"), [(1, 1, "0"), (1, 3, "000"), (2, 1, "01"), (2, 2, "0011"), (3, 2, "001122")]
)
def test_heads_are_split_in_order_and_repeated_each(heads, group, order):
    """Trap 42: neighbours share a head. Column h * c of a projection starts head h."""
    flat = torch.arange(2 * 5 * heads * 4.0).reshape(2, 5, heads * 4)

    split = split_heads(flat, heads, group)

    assert split.shape == (2, heads * group, 5, 4)
    for at, head in enumerate(map(int, order)):
        assert torch.equal(split[:, at], flat[:, :, head * 4 : head * 4 + 4])


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_merging_undoes_splitting(heads):
    """Heads stand side by side, in order."""
    flat = torch.arange(2 * 5 * heads * 4.0).reshape(2, 5, heads * 4)

    assert torch.equal(merge_heads(split_heads(flat, heads)), flat)


def test_the_module_owns_its_numbers():
    """Nobody changes a served layer by changing the array it came from; nothing in it can be trained."""
    entry = LAYERS["heads"]
    module = SelfAttention(entry.spec, entry.weights)
    inputs = torch.tensor(draw_sequence(entry, 3, 0).inputs)
    before = module(inputs[None], torch.tensor(1.0)).outputs.clone()
    kept = entry.weights.query.copy()

    entry.weights.query[...] = 0
    after = module(inputs[None], torch.tensor(1.0)).outputs
    entry.weights.query[...] = kept

    assert torch.equal(before, after)
    assert list(module.parameters()) == []
    assert not after.requires_grad


def test_intermediates_hold_what_a_caller_may_ask_for():
    """Backends look tensors up by the contract's names."""
    assert set(Intermediates._fields) == set(ALL_TENSOR_NAMES)
