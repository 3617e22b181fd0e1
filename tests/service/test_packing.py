import dataclasses

import numpy as np
import pytest
from fakes import FakeRunner, PaddingRunner, unit
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from models.errors import NumericOverflow
from models.types import TENSOR_NAMES, Projections
from service.messages import TopK
from service.packing import Unit, answer, as_float16, batch_limit, batch_of, top_k

N = 4


def tensors(names, heads=1, n=N, width=3):
    """What a runner of `heads` heads might answer: different, finite numbers everywhere."""
    random = np.random.default_rng(0)
    shapes = {"outputs": (n, heads * width), "weights": (heads, n, n), "scores": (heads, n, n)}
    return {name: random.random(shapes.get(name, (heads, n, width)), np.float32) for name in names}


def asking(*names, runner=None, **fields):
    return unit(1, runner or FakeRunner(), N, **{"return": names, **fields})


# ---- keys and batches


def test_units_with_the_same_job_have_one_key():
    """Nothing of a sequence but its length and what comes with it decides whom it may share a batch with."""
    runner = FakeRunner()

    assert unit(1, runner, 3).key == unit(2, runner, 3, backend="other").key


@pytest.mark.parametrize(
    "different",
    [
        {"length": 2},
        {"runner": FakeRunner()},
        {"return": ("outputs", "weights")},
        {"is_causal": True},
        {"scale": 0.5},
        {"mask": np.ones((1, 1), bool)},
        {"bias": np.ones((1, 1), np.float32)},
    ],
    ids=lambda different: next(iter(different)),
)
def test_whatever_changes_the_computation_changes_the_key(different):
    same = {"runner": FakeRunner()}

    assert unit(1, **same).key != unit(1, **same | different).key


def test_lengths_of_one_bucket_have_one_key():
    """Where a runner pads, whoever has as much room may come along; and the room is what counts."""
    runner = PaddingRunner(batch_tokens=16)

    assert unit(1, runner, 5).key == unit(2, runner, 8).key != unit(3, runner, 9).key
    assert batch_limit(unit(1, runner, 5), 64) == 2


def test_a_batch_of_several_lengths_holds_each_as_it_is():
    """Padding is the runner's business."""
    runner = PaddingRunner()
    units = [
        unit(i, runner, n, mask=np.eye(n, dtype=bool), bias=np.zeros((n, n), np.float32)) for i, n in ((1, 5), (2, 7))
    ]

    batch = batch_of(units)

    assert [len(x) for x in batch.inputs] == [5, 7]
    assert [mask.shape for mask in batch.masks] == [(5, 5), (7, 7)]
    assert [bias.shape for bias in batch.biases] == [(1, 5, 5), (1, 7, 7)]
    assert batch.length == 7
    assert batch.alone(0).length == 5
    assert batch.alone(1).masks == batch.masks[1:]


def test_a_bias_of_one_head_has_one_key_however_it_is_nested():
    """(n, n) and (1, n, n) are one array to the runner, (h, n, n) is another."""
    runner = FakeRunner()
    flat, nested, full = (unit(1, runner, N, bias=np.zeros(s, np.float32)) for s in ((N, N), (1, N, N), (3, N, N)))

    assert flat.key == nested.key != full.key


def test_a_window_shorter_than_the_sequence_takes_a_mask_and_a_longer_one_none():
    """A mask costs n² bytes and the masked graph: only those who need one get one."""
    runner = FakeRunner()
    near, far = unit(1, runner, N, window=2, is_causal=True), unit(1, runner, N, window=N, is_causal=True)

    assert near.key != far.key == unit(1, runner, N, is_causal=True).key
    (mask,) = batch_of([near]).masks
    np.testing.assert_array_equal(mask, np.tri(N, dtype=bool) & ~np.tri(N, k=-2, dtype=bool))
    assert not batch_of([near]).is_causal
    assert batch_of([far]).masks is None
    assert batch_of([far]).is_causal


def test_callers_with_matrices_of_their_own_never_share_a_batch():
    """Equal numbers in different arrays are different matrices: comparing them would cost more than it brings."""
    runner, matrix = FakeRunner(), np.eye(2, dtype=np.float32)
    one, two = Projections(matrix, matrix, matrix), Projections(matrix, matrix, matrix)

    units = [unit(1, runner), unit(2, runner)]
    keys = {
        Unit(dataclasses.replace(u.job, projections=own), u.sequence, u.pointer).key
        for u in units
        for own in (None, one, two)
    }

    assert len(keys) == 3


@pytest.mark.parametrize(
    ("tokens", "length", "most", "expected"), [(8, 2, 64, 4), (9, 2, 64, 4), (8, 2, 3, 3), (8, 8, 9, 1), (0, 5, 9, 1)]
)
def test_a_batch_may_grow_as_far_as_it_pays(tokens, length, most, expected):
    assert batch_limit(unit(1, FakeRunner(batch_tokens=tokens), length), most) == expected


def test_a_batch_holds_what_its_units_hold_in_their_order():
    runner = FakeRunner()
    units = [unit(number, runner, N, scale=0.25, **{"return": ("weights", "outputs")}) for number in (3, 1, 2)]

    batch = batch_of(units)

    assert [x[0, 0] for x in batch.inputs] == [3, 1, 2]
    assert all(x is u.sequence.inputs for x, u in zip(batch.inputs, units, strict=True))
    assert (batch.length, batch.scale, batch.wanted) == (N, 0.25, ("outputs", "weights"))
    assert (batch.masks, batch.biases, batch.projections, batch.is_causal) == (None, None, None, False)


def test_causality_alone_needs_no_mask():
    """The flag lets a runtime take its fast way."""
    batch = batch_of([unit(1, FakeRunner(), N, is_causal=True)])

    assert batch.is_causal
    assert batch.masks is None


def test_with_a_mask_causality_goes_into_it():
    """Both apply, and a runner never gets both."""
    mask = np.ones((N, N), bool)
    mask[2, 1] = False

    batch = batch_of([unit(1, FakeRunner(), N, mask=mask, is_causal=True)])

    assert not batch.is_causal
    np.testing.assert_array_equal(batch.masks[0], mask & np.tri(N, dtype=bool))
    assert mask[0, 3], "the caller's own mask stays as it is"


def test_a_bias_always_has_an_axis_of_heads():
    flat, full = np.zeros((N, N), np.float32), np.zeros((3, N, N), np.float32)

    assert batch_of([unit(1, FakeRunner(), N, bias=flat)]).biases[0].shape == (1, N, N)
    assert batch_of([unit(1, FakeRunner(), N, bias=full)]).biases[0].shape == (3, N, N)


# ---- answers


def test_one_head_has_no_axis_of_heads():
    found, dead = answer(asking(*TENSOR_NAMES), tensors(TENSOR_NAMES))

    assert {name: value.shape for name, value in found.items()} == {
        "outputs": (N, 3), "weights": (N, N), "scores": (N, N), "query": (N, 3), "key": (N, 3), "value": (N, 3),
    }  # fmt: skip
    assert dead == []


def test_several_heads_have_an_axis_each():
    made = tensors(TENSOR_NAMES, heads=2)

    found, _ = answer(asking(*TENSOR_NAMES), made)

    for name in TENSOR_NAMES:
        np.testing.assert_array_equal(found[name], made[name])


def test_heads_are_averaged_in_weights_and_scores_only():
    """The mean of queries of different heads means nothing."""
    made = tensors(TENSOR_NAMES, heads=3)

    found, _ = answer(asking(*TENSOR_NAMES, average_heads=True), made)

    for name in ("weights", "scores"):
        np.testing.assert_array_equal(found[name], made[name].mean(axis=0))
        assert found[name].dtype == np.float32
    for name in ("outputs", "query", "key", "value"):
        np.testing.assert_array_equal(found[name], made[name])


def test_the_mean_of_masked_scores_is_masked_without_a_warning():
    mask = np.tri(N, dtype=bool)
    made = tensors(["scores"], heads=2)
    made["scores"][:, ~mask] = -np.inf

    found, _ = answer(unit(1, FakeRunner(), N, mask=mask, average_heads=True, **{"return": ("scores",)}), made)

    np.testing.assert_array_equal(np.isneginf(found["scores"]), ~mask)


@pytest.mark.parametrize("garbage", [np.nan, 0.25, np.inf], ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_rows_that_see_nothing_are_zero_whatever_a_runtime_made_of_them(heads, garbage):
    """Exports disagree: zeros, the mean of V, or NaN."""
    mask = np.ones((N, N), bool)
    mask[[0, 2]] = False
    made = tensors(("outputs", "weights", "scores"), heads)
    made["outputs"][[0, 2]] = made["weights"][:, [0, 2]] = made["scores"][:, [0, 2]] = garbage
    before = {name: value.copy() for name, value in made.items()}

    found, dead = answer(unit(1, FakeRunner(), N, mask=mask, **{"return": ("outputs", "weights", "scores")}), made)

    assert dead == [0, 2]
    assert not found["outputs"][[0, 2]].any()
    assert not found["weights"][..., [0, 2], :].any()
    assert np.isneginf(found["scores"][..., [0, 2], :]).all()
    np.testing.assert_array_equal(found["outputs"][[1, 3]], before["outputs"][[1, 3]])
    np.testing.assert_array_equal(found["weights"][..., [1, 3], :], before["weights"].squeeze()[..., [1, 3], :])


def test_a_row_that_sees_nothing_by_mask_and_causality_together_is_found():
    """Row 0 may see itself only by causality, and the mask forbids that."""
    mask = np.ones((N, N), bool)
    mask[0, 0] = False

    _, dead = answer(unit(1, FakeRunner(), N, mask=mask, is_causal=True), tensors(["outputs"]))

    assert dead == [0]


# ---- overflow


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("name", TENSOR_NAMES)
def test_no_tensor_leaves_that_is_not_finite(name, value):
    """Never NaN. Where nothing is masked, a score of -inf has overflowed, and must not pass for a masked one."""
    made = tensors(TENSOR_NAMES)
    made[name].ravel()[5] = value

    with pytest.raises(NumericOverflow, match=f"{name} overflow float32") as error:
        answer(asking(*TENSOR_NAMES), made)

    assert error.value.fields[0].pointer == "/inputs/1"


def test_large_numbers_are_finite_though_their_squares_are_not():
    """Squares are asked first, for they are cheap; what they say is not the last word."""
    made = tensors(["outputs"])
    made["outputs"][:] = 3e38

    found, _ = answer(asking("outputs"), made)

    assert (found["outputs"] == np.float32(3e38)).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_masked_score_is_minus_infinity_and_right(is_causal):
    mask = None if is_causal else np.tri(N, dtype=bool)
    made = tensors(["scores"])
    made["scores"][:, ~np.tri(N, dtype=bool)] = -np.inf
    masked = unit(1, FakeRunner(), N, mask=mask, is_causal=is_causal, **{"return": ("scores",)})

    found, _ = answer(masked, made)
    np.testing.assert_array_equal(np.isneginf(found["scores"]), ~np.tri(N, dtype=bool))

    for value, place in ((np.nan, (0, 3)), (np.inf, (0, 3)), (-np.inf, (3, 0))):
        broken = made["scores"].copy()
        broken[0][place] = value
        with pytest.raises(NumericOverflow):
            answer(masked, {"scores": broken})


# ---- the k largest


def test_top_k_lists_the_largest_first_and_ties_by_column():
    weights = np.array([[0.25, 0.5, 0.25], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]], np.float32)

    found = top_k(weights, 2)

    assert found.indices.tolist() == [[1, 0], [2, 0], [0, 2]]
    assert found.values.tolist() == [[0.5, 0.25], [1.0, 0.0], [0.5, 0.5]]
    assert (found.indices.dtype, found.values.dtype) == (np.int32, np.float32)


def test_top_k_of_more_than_there_are_is_all_of_them():
    weights = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)

    assert top_k(weights, 9).values.tolist() == [[0.75, 0.25], [1.0, 0.0]]


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 6), st.integers(1, 8))
@hypothesis_settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_top_k_keeps_every_head_and_row_to_itself(seed, heads, n, k):
    """The values are those at the indices, none left out is larger, and each index comes once."""
    weights = np.random.default_rng(seed).integers(0, 4, (heads, n, n)).astype(np.float32)

    found = top_k(weights, k)

    assert found.indices.shape == found.values.shape == (heads, n, min(k, n))
    for head in range(heads):
        for row in range(n):
            order = sorted(range(n), key=lambda column: (-weights[head, row, column], column))[:k]
            assert found.indices[head, row].tolist() == order
            assert found.values[head, row].tolist() == weights[head, row, order].tolist()


def test_top_k_is_for_weights_alone_and_after_the_mean_over_heads():
    made = tensors(("weights", "scores"), heads=2)
    mean = made["weights"].mean(axis=0)

    found, _ = answer(asking("weights", "scores", average_heads=True, top_k=2), made)

    np.testing.assert_array_equal(found["weights"].values, np.sort(mean)[:, ::-1][:, :2])
    assert found["scores"].shape == (N, N)


# ---- float16

within = st.floats(-65519, 65519, width=32) | st.floats(-(2**-13), 2**-13, width=32)


@hypothesis_settings(deadline=None, derandomize=True)
@given(st.lists(within, min_size=1, max_size=9))
def test_an_answer_is_rounded_to_the_nearest_float16(numbers):
    """Bit by bit as NumPy rounds, denormals and -0.0 too; indices stay."""
    tensor = np.array(numbers, np.float32)

    found = as_float16({"outputs": tensor, "weights": TopK(np.arange(3, dtype=np.int32), tensor)}, "/inputs")

    assert found["outputs"].dtype == found["weights"].values.dtype == np.float16
    assert found["outputs"].tobytes() == found["weights"].values.tobytes() == tensor.astype(np.float16).tobytes()
    assert found["weights"].indices.dtype == np.int32


def test_of_two_equally_near_float16_the_even_one_is_taken():
    """IEEE 754's default, so that nothing drifts."""
    (rounded,) = as_float16({"outputs": np.array([2049, 2051, 65519.996], np.float32)}, "").values()

    assert rounded.tolist() == [2048, 2052, 65504]


@pytest.mark.parametrize("number", [65520, -65520, 3e38])
@pytest.mark.parametrize("sparse", [True, False])
def test_what_float16_cannot_hold_is_refused_by_name(number, sparse):
    """An infinity would be the mask's."""
    tensor = np.array([1, number], np.float32)
    value = TopK(np.zeros(2, np.int32), tensor) if sparse else tensor

    with pytest.raises(NumericOverflow, match=r"^/text/1: layers.5.key would hold .*65504; leave `dtype` out"):
        as_float16({"layers.5.key": value}, "/text/1")


def test_a_masked_score_stays_minus_infinity_in_float16():
    """It was before."""
    (rounded,) = as_float16({"scores": np.array([-np.inf, 1], np.float32)}, "").values()

    assert rounded.tolist() == [-np.inf, 1]
