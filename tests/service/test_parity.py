from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest

from models.types import Projections
from service import parity
from service.backends.base import Batch, Runner, Tensors
from service.backends.onnx import TILE_FROM
from service.backends.reference import ReferenceBackend
from service.devices import Device
from service.errors import ParityError
from tests.contract.layers import LAYERS, backend, make_layer

ENTRY = LAYERS["grouped"]


def layer_of(entry) -> parity.Layer:
    return parity.Layer(entry.spec.embed_dim, entry.spec.num_heads, entry.spec.effective_scale)


LAYER = layer_of(ENTRY)


@dataclass
class Played:
    """A runner that is right but for what `change` does to an answer."""

    right: Runner
    change: object
    batch_tokens: int = 0
    exact: bool = True

    def warm(self) -> None:
        """Nothing to prepare."""

    def run(self, batch: Batch) -> list[Tensors]:
        found = self.right.run(batch)
        for i, tensors in enumerate(found):
            self.change(batch, i, tensors)
        return found


@pytest.fixture
def right(settings) -> Runner:
    """The reference itself."""
    return ReferenceBackend(Device("cpu"), settings).layer(ENTRY)


def skewed(by):
    """Every output a little too large."""

    def change(batch, i, tensors):
        if "outputs" in tensors:
            tensors["outputs"] *= np.float32(1 + by)

    return change


@pytest.mark.parametrize("layer", LAYERS)
def test_good_runners_pass_and_every_pair_is_measured(layer, artifacts):
    """What `GET /v1/models` and the metrics show."""
    names = ("eager", "onnx", "reference")
    runners = {name: backend(name, artifacts).layer(LAYERS[layer]) for name in names}

    worst = parity.check(layer_of(LAYERS[layer]), runners)

    assert list(worst) == [f"{a}-{b}" for a, b in combinations(names, 2)]
    assert all(0 <= difference < 2e-6 for difference in worst.values())
    assert worst["eager-reference"] > 0


def test_a_causal_layer_passes(artifacts):
    """Its batches are tried with and without causality, and every backend must obey the batch."""
    entry = make_layer("decoder", embed_dim=6, num_heads=2, head_dim=3, is_causal=True)
    runners = {name: backend(name, artifacts).layer(entry) for name in ("eager", "onnx", "reference")}

    assert max(parity.check(layer_of(entry), runners).values()) < 1e-5


def test_runners_of_projections_pass(artifacts):
    """They are checked with matrices of uneven widths."""
    random = np.random.default_rng(0)
    own = Projections(*(random.standard_normal(s, dtype=np.float32) for s in ((7, 5), (7, 5), (7, 3))))
    runners = {name: backend(name, artifacts).projections() for name in ("eager", "onnx", "reference")}

    assert max(parity.check(parity.Layer(7, 1, 0.5, projections=own), runners).values()) < 1e-5


def test_a_difference_of_a_thousandth_is_an_error(right):
    """It says who, how much, how much is allowed, and at which case."""
    with pytest.raises(ParityError, match=r"^eager-reference differ by 1\.0e-03 relative, allowed 1e-04: n=33$"):
        parity.check(LAYER, {"eager": Played(right, skewed(1e-3)), "reference": right})


def test_two_backends_must_agree_better_than_each_with_the_reference(right):
    """The contract allows 1e-5 between eager and onnx; float32 against float64 may be coarser."""
    near = {"eager": Played(right, skewed(3e-5)), "reference": right}

    assert parity.check(LAYER, near)["eager-reference"] == pytest.approx(3e-5, rel=0.02)
    with pytest.raises(ParityError, match=r"^eager-onnx differ by 3\.0e-05 relative, allowed 1e-05: n=33$"):
        parity.check(LAYER, {**near, "onnx": right})


def test_a_score_that_cancels_is_not_a_difference(right):
    """Of a single token, float32 may round 0.014 wrong by 1e-7: 1e-5 of itself, but nothing beside the other scores."""

    def change(batch, i, tensors):
        if batch.length == 1 and "scores" in tensors:
            tensors["scores"] += np.float32(1e-7)

    def shrink(batch, i, tensors):
        if batch.length == 1 and "scores" in tensors:
            tensors["scores"] *= np.float32(1e-3)

    small = Played(right, shrink)
    assert parity.check(LAYER, {"eager": Played(small, change), "onnx": small})["eager-onnx"] < 1e-6


@pytest.mark.parametrize("tensor", ["weights", "scores", "query", "key", "value"])
def test_every_tensor_is_compared(right, tensor):
    """A caller may ask for any of them."""

    def change(batch, i, tensors):
        if tensor in tensors:
            tensors[tensor][..., -1] *= np.float32(1.01)

    with pytest.raises(ParityError, match="eager-reference differ by"):
        parity.check(LAYER, {"eager": Played(right, change), "reference": right})


@pytest.mark.parametrize(
    ("guilty", "case"),
    [
        (lambda batch: batch.length == 1, "n=1"),
        (lambda batch: batch.length == 7, "n=7"),
        (lambda batch: batch.wanted == ("outputs",), "n=33, outputs alone, causal"),
        (lambda batch: batch.masks is not None, "n=33, every tensor, masked"),
        (lambda batch: batch.biases is not None, "n=33, every tensor, causal, biased"),
    ],
)
def test_a_fault_in_one_path_alone_is_found(right, guilty, case):
    """Lengths, fused outputs, masks and biases are where backends have differed."""

    def change(batch, i, tensors):
        if guilty(batch):
            skewed(0.01)(batch, i, tensors)

    with pytest.raises(ParityError, match=rf"{case}$"):
        parity.check(LAYER, {"eager": Played(right, change), "reference": right})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_answer_that_is_not_finite_is_an_error(right, value):
    """NaN compares as neither smaller nor larger; it must not slip through."""

    def change(batch, i, tensors):
        tensors["outputs"][-1, -1] = value

    with pytest.raises(ParityError, match=r"^eager-reference differ by inf relative, allowed 1e-04: n=33$"):
        parity.check(LAYER, {"eager": Played(right, change), "reference": right})


@pytest.mark.parametrize("value", [np.nan, np.inf, np.finfo(np.float32).min])
def test_a_masked_score_must_be_minus_infinity(right, value):
    """NaN and +inf are not finite either, but they are not what the contract says."""

    def change(batch, i, tensors):
        if "scores" in tensors:
            tensors["scores"][np.isneginf(tensors["scores"])] = value

    with pytest.raises(ParityError, match="differ by inf"):
        parity.check(LAYER, {"eager": Played(right, change), "reference": right})


def test_two_runners_that_both_answer_nan_do_not_agree(right):
    """Equal nonsense is nonsense."""

    def change(batch, i, tensors):
        tensors["outputs"][...] = np.nan

    wrong = Played(right, change)
    with pytest.raises(ParityError, match="eager-onnx differ by inf"):
        parity.check(LAYER, {"eager": wrong, "onnx": wrong})


def test_a_row_that_sees_nothing_may_hold_anything(right):
    """The service makes it zero, whatever a runtime leaves there."""
    touched = []

    def change(batch, i, tensors):
        if batch.masks is not None:
            dead = ~batch.masks[i].any(axis=-1)
            touched.append(dead.any())
            tensors["outputs"][dead] = np.nan
            tensors["weights"][:, dead] = np.nan
            tensors["scores"][:, dead] = 7

    parity.check(LAYER, {"eager": Played(right, change), "reference": right})

    assert any(touched)


@pytest.mark.parametrize("tensor", ["outputs", "weights"])
def test_an_answer_that_depends_on_its_batch_is_an_error(right, tensor):
    """By one last bit, far below every tolerance."""

    def change(batch, i, tensors):
        if len(batch.inputs) > 1 and i == 1 and tensor in tensors:
            first = tensors[tensor].flat[:1]
            tensors[tensor].flat[0] = np.nextafter(first, np.float32(9))[0]

    with pytest.raises(ParityError, match=rf"^eager computes other {tensor} alone than in a batch: n=33"):
        parity.check(LAYER, {"eager": Played(right, change), "reference": right})


def test_an_answer_may_depend_on_its_batch_where_nothing_else_is_promised(right):
    """On a GPU, unless determinism is asked for; within the tolerance all the same."""

    def change(batch, i, tensors):
        if len(batch.inputs) > 1:
            tensors["outputs"] *= np.float32(1 + by)

    by = 1e-6
    parity.check(LAYER, {"eager": Played(right, change, exact=False), "reference": right})
    by = 1e-3
    with pytest.raises(ParityError, match="eager-reference differ"):
        parity.check(LAYER, {"eager": Played(right, change, exact=False), "reference": right})


@pytest.mark.parametrize(
    ("dtype", "by", "passes"),
    [("tf32", 1e-3, True), ("tf32", 0.5, False), ("float16", 1e-3, True), ("float16", 0.03, False),
     ("bfloat16", 0.03, True), ("bfloat16", 0.5, False)],
)  # fmt: skip
def test_products_may_be_as_coarse_as_they_are(right, dtype, by, passes):
    """Who allows that expects such differences, and still learns of wrong answers."""
    runners, dtypes = (
        {"eager": Played(right, skewed(by)), "reference": right},
        {"eager": dtype, "reference": "float64"},
    )

    if passes:
        parity.check(LAYER, runners, dtypes)
    else:
        with pytest.raises(ParityError, match="eager-reference differ"):
            parity.check(LAYER, runners, dtypes)


def test_the_cases_cover_masks_biases_and_causality():
    """Each length plain, fused, masked with a row that sees nothing, and biased; the same at every start."""
    first, second = (list(LAYER.cases()) for _ in range(2))

    assert len(first) == 4 * len(parity.LENGTHS) + 1
    assert first[-1][1].length == parity.LONG >= TILE_FROM
    assert all(len(batch.inputs) == 2 for _, batch in first)
    assert all(batch.masks is None or not batch.masks[0][0].any() for _, batch in first)
    assert all(batch.biases is None or batch.biases[0].shape[0] == 4 for _, batch in first)
    for (label, a), (again, b) in zip(first, second, strict=True):
        assert label == again
        np.testing.assert_array_equal(a.inputs, b.inputs)
        assert replace(a, inputs=(), masks=None, biases=None) == replace(b, inputs=(), masks=None, biases=None)


@pytest.mark.parametrize(("louder", "passes"), [(1, False), (10, True)])
def test_backends_may_differ_by_a_few_roundings_of_large_scores(settings, louder, passes):
    """Tokens drawn for a check make scores in the hundreds of a trained layer, where float32 is no finer."""
    numbers = {name: getattr(ENTRY.weights, name) * np.float32(louder) for name in ("query", "key")}
    entry = replace(ENTRY, weights=replace(ENTRY.weights, **numbers))
    right = ReferenceBackend(Device("cpu"), settings).layer(entry)
    runners = {"reference": right, "a": Played(right, skewed(2e-5)), "b": right}

    if passes:
        assert parity.check(layer_of(entry), runners)["a-b"] == pytest.approx(2e-5, rel=0.1)
    else:
        with pytest.raises(ParityError, match=r"a-b differ by 2\.0e-05 relative, allowed 1e-05"):
            parity.check(layer_of(entry), runners)
