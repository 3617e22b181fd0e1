"""Bugs that others had, each with its number in our table and its public issue: none of them may be ours."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.errors import NumericOverflow, ShapeMismatch
from models.repository import ModelEntry
from models.spec import AttentionSpec
from models.store import artifact_key
from models.types import TENSOR_NAMES, Projections, SequenceInput
from models.weights import AttentionWeights
from service.backends import BACKENDS
from service.backends.base import Runner
from service.messages import Options
from service.packing import Job, Unit, answer, batch_of
from tests.contract.layers import (
    Found,
    assert_close,
    attend,
    by_reference,
    draw_sequence,
    make_layer,
    projections_runner,
    served,
)

B = Projections(
    query=np.array([[1, 0], [0, 1]], np.float32),
    key=np.array([[1, 0], [1, 1]], np.float32),
    value=np.array([[1, 2], [3, 4]], np.float32),
)
"""Base case B: with two one-hot tokens, these matrices are the queries, the keys and the values themselves."""

B_SCALE = 2**-0.5
EYE = np.eye(2, dtype=np.float32)
FORMS = (("outputs",), ("outputs", "weights"), TENSOR_NAMES)
"""Without weights, backends take other paths: every trap is tried on each."""


@pytest.fixture(params=BACKENDS)
def name(request: pytest.FixtureRequest) -> str:
    """Every backend."""
    return request.param


@pytest.fixture(params=FORMS, ids=["outputs", "outputs-and-weights", "everything"])
def wanted(request: pytest.FixtureRequest):
    """Every path through a backend."""
    return request.param


@pytest.fixture(params=["layer", "projections"])
def base(request: pytest.FixtureRequest, name: str, artifacts: Path):
    """Base case B as a function of (mask, bias, ...): once as a layer, once as a caller's own matrices."""
    own = B if request.param == "projections" else None
    runner = projections_runner(name, artifacts) if own else load(name, artifacts, B.query, B.key, B.value)

    def run(mask=None, bias=None, inputs=EYE, **options) -> Found:
        mask = None if mask is None else np.array(mask, bool)
        bias = None if bias is None else np.array(bias, np.float32)
        (found,) = attend(runner, [SequenceInput(inputs, mask, bias)], scale=B_SCALE, projections=own, **options)
        return found

    return run


def load(name: str, artifacts: Path, query, key, value, **sizes) -> Runner:
    """A layer of given matrices on a backend."""
    query, key, value = (np.asarray(matrix, np.float32) for matrix in (query, key, value))
    sizes = {"head_dim": query.shape[1], "value_dim": value.shape[1], **sizes}
    spec = AttentionSpec(name="trap", embed_dim=len(query), **sizes)
    return serve(name, artifacts, ModelEntry(spec, AttentionWeights(query, key, value), "test"))


_SERVED: dict[tuple[str, str], Runner] = {}


def serve(name: str, artifacts: Path, entry: ModelEntry) -> Runner:
    """A layer on a backend, loaded once: an export takes seconds."""
    key = name, artifact_key(entry.spec, entry.weights)
    if key not in _SERVED:
        _SERVED[key] = served(name, entry, artifacts)
    return _SERVED[key]


def mean_of_visible(name: str, artifacts: Path, n: int, wanted, **options) -> Found:
    """Base case C: no query prefers any key, values are 1..n, so each output is the mean of the visible values."""
    zeros = np.zeros((n, 1))
    runner = load(name, artifacts, zeros, zeros, np.arange(1, n + 1)[:, None])
    (found,) = attend(runner, [SequenceInput(np.eye(n, dtype=np.float32))], scale=1.0, wanted=wanted, **options)
    return found


def test_base_case_b(base, wanted):
    """The case itself, worked by hand."""
    found = base(wanted=wanted)

    np.testing.assert_allclose(found["outputs"], [[2, 3], [2.33952, 3.33952]], atol=1e-5)
    if "weights" in wanted:
        np.testing.assert_allclose(found["weights"][0], [[0.5, 0.5], [0.33024, 0.66976]], atol=1e-5)
    if "scores" in wanted:
        np.testing.assert_allclose(found["scores"][0], [[0.70711, 0.70711], [0, 0.70711]], atol=1e-5)


def test_a_fully_masked_row_is_zeros_and_listed(base, wanted):
    """Traps 1, 7 and 8 (pytorch#103963, onnxscript#2479, onnxruntime#28958): not NaN, not the mean, not [2, 3]."""
    found = base(mask=[[1, 1], [0, 0]], wanted=wanted)

    assert found.dead == [1]
    np.testing.assert_allclose(found["outputs"], [[2, 3], [0, 0]], atol=1e-6)
    assert (found["outputs"][1] == 0).all()
    if "weights" in wanted:
        assert (found["weights"][0, 1] == 0).all()


def test_a_hugely_negative_bias_is_no_mask(base, wanted):
    """Trap 2 (pytorch#110213): a row of finfo.min is a uniform row, mean [2, 3], and not listed as masked."""
    least = np.finfo(np.float32).min

    found = base(bias=[[0, 0], [least, least]], wanted=wanted)

    assert found.dead == []
    np.testing.assert_allclose(found["outputs"], [[2, 3], [2, 3]], atol=1e-5)


def test_asking_for_weights_does_not_change_a_fully_masked_row(base):
    """Trap 3 (pytorch#160064): need_weights=True gave NaN where False gave zeros."""
    outputs = [base(mask=[[0, 0], [1, 1]], wanted=wanted)["outputs"] for wanted in FORMS]

    for found in outputs:
        assert np.isfinite(found).all()
        assert_close(found, outputs[0], 1e-6)


def test_a_band_whose_keys_are_padding_is_zeros_on_every_path(name, wanted, artifacts):
    """Trap 4 (pytorch#190486): n=4, causal window 2, last 3 keys padded; rows 2 and 3 see nothing."""
    entry = make_layer("band", embed_dim=6, num_heads=2, head_dim=4)
    band = np.tri(4, dtype=bool) & ~np.tri(4, k=-2, dtype=bool)
    band[:, 1:] = False
    sequence = SequenceInput(draw_sequence(entry, 4, 0).inputs, band)

    for is_causal in (False, True):
        (found,) = attend(serve(name, artifacts, entry), [sequence], scale=0.5, wanted=wanted, is_causal=is_causal)

        assert found.dead == [2, 3]
        assert (found["outputs"][2:] == 0).all()
        assert (found["outputs"][:2] != 0).any()


def test_a_sequence_that_sees_nothing_leaves_its_batch_alone(name, wanted, artifacts):
    """Trap 5 (pytorch#81077): an empty item gave NaN for itself, and must not reach the others."""
    entry = make_layer("empty", embed_dim=6, num_heads=2, head_dim=4)
    runner = serve(name, artifacts, entry)
    first, empty, last = (draw_sequence(entry, 5, seed) for seed in range(3))
    everything, nothing = np.ones((5, 5), bool), np.zeros((5, 5), bool)
    batch = [
        replace(first, attn_mask=everything),
        replace(empty, attn_mask=nothing),
        replace(last, attn_mask=everything),
    ]

    found = attend(runner, batch, scale=0.5, wanted=wanted)

    assert found[1].dead == [0, 1, 2, 3, 4]
    assert (found[1]["outputs"] == 0).all()
    for sequence, in_company in ((first, found[0]), (last, found[2])):
        assert_close(in_company["outputs"], by_reference(entry, sequence, scale=0.5)["outputs"], 1e-5)


def test_no_tokens_at_all_are_refused_by_the_mathematics():
    """Trap 50 (pytorch#141218): the codecs refuse n=0, and so does the oracle should one let it through."""
    entry = make_layer("none", embed_dim=6, head_dim=4)

    with pytest.raises(ShapeMismatch, match=r"n >= 1"):
        by_reference(entry, SequenceInput(np.zeros((0, 6), np.float32)), scale=1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_reaches_an_answer(base, value, wanted):
    """Trap 9 (pytorch#101967): 0 * NaN is NaN, even behind a mask; the codecs refuse it first, packing last."""
    inputs = EYE.copy()
    inputs[1, 1] = value

    with pytest.raises(NumericOverflow, match="/inputs/0"):
        base(mask=[[1, 0], [1, 0]], inputs=inputs, wanted=wanted)


@pytest.mark.parametrize(("n", "means"), [(1, [1]), (2, [1, 1.5]), (5, [1, 1.5, 2, 2.5, 3])])
def test_causal_rows_see_themselves_and_what_is_before(name, n, means, wanted, artifacts):
    """Traps 10-13 (pytorch#103082, flash-attention#282, onnxruntime#29020): square, so both alignments are one."""
    found = mean_of_visible(name, artifacts, n, wanted, is_causal=True)

    np.testing.assert_allclose(found["outputs"][:, 0], means, rtol=1e-6)


def test_the_causal_flag_needs_no_mask(name, wanted, artifacts):
    """Trap 17 (pytorch#99282): is_causal without attn_mask failed, or was ignored."""
    flag = mean_of_visible(name, artifacts, 4, wanted, is_causal=True)
    without = mean_of_visible(name, artifacts, 4, wanted)

    np.testing.assert_allclose(flag["outputs"][:, 0], [1, 1.5, 2, 2.5], rtol=1e-6)
    np.testing.assert_allclose(without["outputs"][:, 0], [2.5] * 4, rtol=1e-6)


def test_weights_know_of_the_causal_flag(name, artifacts):
    """Trap 18 (xformers#103): the fast path kept the flag to itself, and the weights showed the future."""
    with_weights = mean_of_visible(name, artifacts, 5, ("outputs", "weights"), is_causal=True)
    without = mean_of_visible(name, artifacts, 5, ("outputs",), is_causal=True)

    assert (with_weights["weights"][0][~np.tri(5, dtype=bool)] == 0).all()
    assert_close(without["outputs"], with_weights["outputs"], 1e-6)


def test_a_causal_flag_and_a_mask_both_apply(name, wanted, artifacts):
    """Trap 18's neighbour: a runtime that takes one or the other must be given their product."""
    n = 3
    runner = load(name, artifacts, np.zeros((n, 1)), np.zeros((n, 1)), [[1], [2], [3]])
    mask = np.array([[0, 1, 1], [1, 1, 1], [0, 1, 1]], bool)

    (found,) = attend(
        runner, [SequenceInput(np.eye(n, dtype=np.float32), mask)], scale=1.0, wanted=wanted, is_causal=True
    )

    assert found.dead == [0]
    np.testing.assert_allclose(found["outputs"][:, 0], [0, 1.5, 2.5], rtol=1e-6)


def test_true_means_may_attend(base, wanted):
    """Trap 19 (pytorch#27968): one library's True drops what another's keeps."""
    found = base(mask=[[1, 0], [1, 0]], wanted=wanted)

    np.testing.assert_allclose(found["outputs"], [[1, 2], [1, 2]], atol=1e-6)


def test_a_bias_of_zeros_and_ones_is_added(base, wanted):
    """Trap 20 (pytorch#136816): a float 0/1 mask is a bias, and must not be read as a selector."""
    found = base(bias=[[1, 0], [1, 0]], wanted=wanted)

    np.testing.assert_allclose(found["outputs"], [[1.53788, 2.53788], [1.85459, 2.85459]], atol=1e-5)


def test_columns_are_masked_not_rows(base):
    """Trap 21 (attention-is-all-you-need-keras#16): a mask laid over the rows leaves a uniform row."""
    columns = base(mask=[[1, 0], [1, 0]])
    rows = base(mask=[[1, 1], [0, 0]])

    assert (columns["weights"][0] == [[1, 0], [1, 0]]).all()
    assert (rows["weights"][0] == [[0.5, 0.5], [0, 0]]).all()


def test_every_sequence_of_a_batch_has_its_own_mask(name, wanted, artifacts):
    """Trap 23 (pytorch#120810, onnxruntime#27464): masks are given in full, so nothing is broadcast by guess."""
    entry = make_layer("masks", embed_dim=6, num_heads=2, head_dim=4)
    sequences = [draw_sequence(entry, 6, seed, masked=True) for seed in range(4)]

    found = attend(serve(name, artifacts, entry), sequences, scale=0.5, wanted=wanted)

    for got, sequence in zip(found, sequences, strict=True):
        assert_close(got["outputs"], by_reference(entry, sequence, scale=0.5)["outputs"], 1e-5)


def test_a_bias_for_all_heads_is_the_same_bias_for_each(name, wanted, artifacts):
    """Trap 23 again: (n, n), (1, n, n) and (h, n, n) of equal numbers are one bias."""
    entry = make_layer("biases", embed_dim=6, num_heads=3, head_dim=4)
    sequence = draw_sequence(entry, 6, 0)
    flat = np.random.default_rng(1).standard_normal((6, 6), np.float32)
    runner = serve(name, artifacts, entry)

    found = [
        attend(runner, [replace(sequence, attn_bias=bias)], scale=0.5, wanted=wanted)[0]
        for bias in (flat, flat[None], np.stack([flat] * 3))
    ]

    for other in found[1:]:
        assert_close(other["outputs"], found[0]["outputs"], 1e-6)


def test_a_mask_with_holes_is_taken_as_it_is(name, wanted, artifacts):
    """Trap 26 (onnxruntime#18945): a fusion read [0, 0, 1, 0, 1] as a length, and saw the first two tokens."""
    n = 5
    runner = load(name, artifacts, np.zeros((n, 1)), np.zeros((n, 1)), np.arange(1, 6)[:, None])
    mask = np.tile(np.array([0, 0, 1, 0, 1], bool), (n, 1))

    (found,) = attend(runner, [SequenceInput(np.eye(n, dtype=np.float32), mask)], scale=1.0, wanted=wanted)

    np.testing.assert_allclose(found["outputs"][:, 0], [4] * n, rtol=1e-6)


def test_padding_behind_a_mask_changes_nothing(name, wanted, artifacts):
    """Trap 27 (transformers#29029): the same sentence alone and padded to 14 tokens, within 5e-6."""
    entry = make_layer("padding", embed_dim=8, num_heads=2, head_dim=4)
    runner = serve(name, artifacts, entry)
    padded = draw_sequence(entry, 14, 0)
    mask = np.zeros((14, 14), bool)
    mask[:, :6] = True

    (alone,) = attend(runner, [SequenceInput(padded.inputs[:6])], scale=0.5, wanted=wanted)
    (in_padding,) = attend(runner, [replace(padded, attn_mask=mask)], scale=0.5, wanted=wanted)

    np.testing.assert_allclose(in_padding["outputs"][:6], alone["outputs"], atol=5e-6)


@pytest.mark.parametrize("size", [64.0, 256.0, 1e15])
def test_large_scores_do_not_overflow_the_exponential(name, size, wanted, artifacts):
    """Trap 29 (pytorch#60939): q = k = all 64 of width 64; products that fit float32 give weights of a half."""
    runner = load(name, artifacts, np.full((2, 64), size), np.full((2, 64), size), EYE)

    (found,) = attend(runner, [SequenceInput(EYE)], scale=1 / 8, wanted=wanted)

    np.testing.assert_allclose(found["outputs"], [[0.5, 0.5], [0.5, 0.5]], rtol=1e-6)


def test_scores_that_overflow_are_refused_by_name(name, wanted, artifacts):
    """Trap 29 in float32: q·k = 6.4e41 cannot be held; a typed error, never NaN. The float64 oracle may answer."""
    runner = load(name, artifacts, np.full((2, 64), 1e20), np.full((2, 64), 1e20), EYE)

    if name == "reference":
        (found,) = attend(runner, [SequenceInput(EYE)], scale=1 / 8, wanted=("outputs",))
        np.testing.assert_allclose(found["outputs"], [[0.5, 0.5], [0.5, 0.5]], rtol=1e-6)
    else:
        with pytest.raises(NumericOverflow, match=r"/inputs/0: .* overflow float32"):
            attend(runner, [SequenceInput(EYE)], scale=1 / 8, wanted=wanted)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=str)
def test_scores_that_overflow_downwards_are_refused_too(name, wanted, options, artifacts):
    """A row of -inf that no mask made must not pass for one that sees nothing: it would be zeros, and wrong."""
    runner = load(name, artifacts, np.full((2, 64), 1e20), np.full((2, 64), -1e20), EYE)

    if name != "reference":
        with pytest.raises(NumericOverflow, match=r"/inputs/0: .* overflow float32"):
            attend(runner, [SequenceInput(EYE)], scale=1 / 8, wanted=wanted, **options)


def test_softmax_is_computed_in_float32(name, artifacts):
    """Trap 32 (transformers#17437): scores 10, 10.01 and 9.99; half precision makes all three weights equal."""
    runner = load(name, artifacts, np.zeros((3, 1)), np.zeros((3, 1)), np.eye(3))
    bias = np.tile(np.array([10, 10.01, 9.99], np.float32), (3, 1))

    (found,) = attend(runner, [SequenceInput(np.eye(3, dtype=np.float32), None, bias)], scale=1.0)

    np.testing.assert_allclose(found["weights"][0, 0], [0.33332, 0.33667, 0.33001], atol=5e-6)


def test_heads_are_averaged_on_request_only(name, artifacts):
    """Trap 34 (pytorch#34537): two heads look different, and a mean nobody asked for hides it."""
    entry = make_layer("mean", embed_dim=6, num_heads=2, head_dim=4)
    runner = serve(name, artifacts, entry)
    sequence = draw_sequence(entry, 5, 0)

    def weights(*, average_heads):
        options = Options.model_validate({"return": ("weights",), "average_heads": average_heads})
        unit = Unit(Job(runner, name, options, options.wanted, is_causal=False, scale=0.5), sequence, "/inputs")
        return answer(unit, runner.run(batch_of([unit]))[0])[0]["weights"]

    each, mean = weights(average_heads=False), weights(average_heads=True)

    assert each.shape == (2, 5, 5)
    assert np.abs(each[0] - each[1]).max() > 1e-2
    np.testing.assert_allclose(mean, (each[0] + each[1]) / 2, atol=1e-7)


def test_nothing_is_dropped_at_random(name, wanted, artifacts):
    """Traps 35 and 36 (pytorch#33360, pytorch#124464): dropout that outlives training; two calls have equal bits."""
    entry = make_layer("dropout", embed_dim=8, num_heads=2, head_dim=4)
    runner = serve(name, artifacts, entry)
    sequence = draw_sequence(entry, 9, 0)

    (first,), (second,) = (attend(runner, [sequence], scale=0.5, wanted=wanted) for _ in range(2))

    for tensor in wanted:
        np.testing.assert_array_equal(first[tensor], second[tensor])
    if "weights" in wanted:
        np.testing.assert_allclose(first["weights"].sum(axis=-1), 1, atol=1e-6)


def test_matrices_stand_on_the_right(name, artifacts):
    """Trap 40 (transformers#311): y = x W; a square W taken for its transpose fails silently."""
    matrix = np.array([[1, 2], [3, 4]])
    runner = load(name, artifacts, matrix, matrix + 10, matrix + 20)

    (found,) = attend(runner, [SequenceInput(np.array([[1, 0], [0, 1]], np.float32))], scale=1e-3)

    np.testing.assert_array_equal(found["query"][0], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(found["key"][0], [[11, 12], [13, 14]])
    np.testing.assert_array_equal(found["value"][0], [[21, 22], [23, 24]])


def test_shared_heads_are_repeated_each_not_tiled(name, wanted, artifacts):
    """Trap 42 (onnx#7274): 4 query and 2 key/value heads, v = 10, 20: [10, 10, 20, 20], not [10, 20, 10, 20]."""
    runner = load(
        name, artifacts, [[1, 1, 1, 1]], [[1, 1]], [[10, 20]], head_dim=1, value_dim=1, num_heads=4, num_kv_heads=2
    )

    (found,) = attend(runner, [SequenceInput(np.ones((1, 1), np.float32))], scale=1.0, wanted=wanted)

    np.testing.assert_array_equal(found["outputs"], [[10, 10, 20, 20]])


def test_a_masked_score_is_minus_infinity(base):
    """Trap 44 (onnx#7913): not -3.4e38, which no caller can tell from a number."""
    found = base(mask=[[1, 0], [0, 0]])

    assert np.isneginf(found["scores"][0][[0, 1, 1], [1, 0, 1]]).all()
    np.testing.assert_allclose(found["scores"][0, 0, 0], 0.70711, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 5, 7])
def test_a_layer_runs_at_lengths_nobody_exported(name, n, wanted, artifacts):
    """Traps 51 and 52 (pytorch#122321, pytorch#152018): n = 5 was the example, and 7 failed or was wrong."""
    entry = make_layer("lengths", embed_dim=6, num_heads=2, head_dim=4)
    sequences = [draw_sequence(entry, n, seed) for seed in range(2)]

    found = attend(serve(name, artifacts, entry), sequences, scale=0.5, wanted=wanted)

    for got, sequence in zip(found, sequences, strict=True):
        assert_close(got["outputs"], by_reference(entry, sequence, scale=0.5)["outputs"], 1e-5)


@pytest.mark.parametrize("with_biases", [False, True])
def test_odd_heads_with_and_without_biases_are_served(name, with_biases, wanted, artifacts):
    """Trap 53 (pytorch#143107): the fast path could not be exported for odd heads or bias=False."""
    entry = make_layer("odd-heads", embed_dim=9, num_heads=3, head_dim=3, with_biases=with_biases)
    sequence = draw_sequence(entry, 5, 0)

    (found,) = attend(serve(name, artifacts, entry), [sequence], scale=0.5, wanted=wanted)

    assert_close(found["outputs"], by_reference(entry, sequence, scale=0.5)["outputs"], 1e-5)
