"""The laws of every backend: one test each, over all of them and over layers of every shape."""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.types import TENSOR_NAMES, Projections, SequenceInput
from service.backends import BACKENDS
from service.backends.base import Runner
from tests.contract.layers import (
    LAYERS,
    ORDERLESS,
    STEADY,
    WIDE,
    Found,
    assert_close,
    attend,
    by_reference,
    draw_sequence,
    layer_runner,
    projections_runner,
    skip_unless_exact,
)

law = settings(deadline=None, derandomize=True, max_examples=12)

TOLERANCE = 1e-5
"""Of the largest value: what the contract allows between backends in float32."""

LENGTHS = (1, 2, 3, 5, 8, 13, 33, 64)
"""Around the widths of vector registers, and far from them."""

WANTED = (("outputs",), ("outputs", "weights"), ("weights",), ("scores", "value"), TENSOR_NAMES)
"""Sets of tensors that take different paths: fused, explicit, without a product by the values, all."""


@dataclass(frozen=True)
class Loaded:
    """A layer of `LAYERS` on a backend."""

    backend: str
    layer: str
    artifacts: Path

    @property
    def entry(self):
        return (LAYERS | WIDE)[self.layer]

    @property
    def runner(self) -> Runner:
        return layer_runner(self.backend, self.layer, self.artifacts)

    def attend(self, sequences: list[SequenceInput], **options) -> list[Found]:
        """`wanted` of `TENSOR_NAMES`, the default, is every tensor that the layer has."""
        spec = self.entry.spec
        if options.get("wanted", TENSOR_NAMES) == TENSOR_NAMES:
            options["wanted"] = self.entry.weights.tensor_names
        return attend(self.runner, sequences, **{"scale": spec.effective_scale, "window": spec.window, **options})


@dataclass(frozen=True)
class Recipe:
    """A sequence to draw, small enough for hypothesis to print: all numbers come from the seed."""

    n: int
    seed: int
    masked: bool
    biased: bool
    is_causal: bool

    def draw(self, entry) -> SequenceInput:
        return draw_sequence(entry, self.n, self.seed, masked=self.masked, biased=self.biased)

    def visible(self, sequence: SequenceInput, window: int | None) -> np.ndarray:
        """(n, n), written out once more and independently of `models.masks`."""
        mask, reach = sequence.attn_mask, self.n if window is None else window
        return np.array(
            [
                [
                    (mask is None or bool(mask[i, j])) and (j <= i or not self.is_causal) and abs(i - j) < reach
                    for j in range(self.n)
                ]
                for i in range(self.n)
            ]
        )


recipes = st.builds(
    Recipe,
    n=st.integers(1, 18),
    seed=st.integers(0, 2**32 - 1),
    masked=st.booleans(),
    biased=st.booleans(),
    is_causal=st.booleans(),
)


@pytest.fixture(scope="module", params=[f"{b}/{name}" for b in BACKENDS for name in LAYERS])
def loaded(request: pytest.FixtureRequest, artifacts: Path) -> Loaded:
    """Every layer on every backend."""
    backend, _, layer = request.param.partition("/")
    return Loaded(backend, layer, artifacts)


@pytest.fixture(scope="module", params=[f"{b}/{name}" for b in BACKENDS for name in ORDERLESS])
def orderless(request: pytest.FixtureRequest, artifacts: Path) -> Loaded:
    """Every layer without positions on every backend."""
    backend, _, layer = request.param.partition("/")
    return Loaded(backend, layer, artifacts)


@given(recipe=recipes, factor=st.sampled_from([0.25, 1.0, 2.0]))
@law
def test_every_tensor_equals_the_reference(loaded: Loaded, recipe: Recipe, factor: float):
    """The float64 mathematics decide what is right, for the model's own scale and for a caller's."""
    sequence, scale = recipe.draw(loaded.entry), loaded.entry.spec.effective_scale * factor
    want = by_reference(loaded.entry, sequence, scale=scale, is_causal=recipe.is_causal)

    (found,) = loaded.attend([sequence], scale=scale, is_causal=recipe.is_causal)

    for name in loaded.entry.weights.tensor_names:
        assert_close(found[name], want[name], TOLERANCE, name)


@given(recipe=recipes)
@law
def test_weights_are_a_distribution_over_what_a_row_sees(loaded: Loaded, recipe: Recipe):
    """Rows sum to 1, masked weights are exactly 0, and a row that sees nothing is all zeros and listed."""
    sequence = recipe.draw(loaded.entry)
    visible = recipe.visible(sequence, loaded.entry.spec.window)
    alive = visible.any(axis=-1)

    (found,) = loaded.attend([sequence], is_causal=recipe.is_causal)

    assert found.dead == np.flatnonzero(~alive).tolist()
    assert (found["weights"] >= 0).all()
    np.testing.assert_allclose(found["weights"].sum(axis=-1)[:, alive], 1, rtol=0, atol=1e-6)
    assert (found["weights"][:, ~visible] == 0).all()
    assert (found["outputs"][~alive] == 0).all()
    assert np.isneginf(found["scores"][:, ~visible]).all()
    assert np.isfinite(found["scores"][:, visible]).all()


@given(recipe=recipes)
@law
def test_fewer_tensors_are_the_same_tensors(loaded: Loaded, recipe: Recipe):
    """Outputs alone take a fused kernel or a smaller graph; nobody may be able to tell from the numbers."""
    sequence = recipe.draw(loaded.entry)
    (everything,) = loaded.attend([sequence], is_causal=recipe.is_causal)

    for wanted in WANTED:
        (found,) = loaded.attend([sequence], wanted=wanted, is_causal=recipe.is_causal)

        assert found.dead == everything.dead
        for name in wanted:
            assert_close(found[name], everything[name], TOLERANCE, f"{name} of {wanted}")


@given(n=st.integers(2, 18), seed=st.integers(0, 2**32 - 1), masked=st.booleans(), biased=st.booleans())
@law
def test_tokens_in_another_order_give_the_same_rows_in_that_order(orderless: Loaded, n, seed, masked, biased):
    """Attention without positions knows no order: permuting tokens permutes rows and columns, and nothing else."""
    sequence = draw_sequence(orderless.entry, n, seed, masked=masked, biased=biased)
    order = np.random.default_rng(seed).permutation(n)
    square = np.ix_(order, order)
    shuffled = SequenceInput(
        sequence.inputs[order],
        None if sequence.attn_mask is None else sequence.attn_mask[square],
        None if sequence.attn_bias is None else np.ascontiguousarray(sequence.attn_bias[..., *square]),
    )

    (found,) = orderless.attend([sequence])
    (moved,) = orderless.attend([shuffled])

    assert_close(moved["outputs"], found["outputs"][order], TOLERANCE)
    assert_close(moved["weights"], found["weights"][:, *square], TOLERANCE)
    assert sorted(order[moved.dead]) == found.dead


@pytest.fixture(scope="module", params=[f"{b}/{name}" for b in BACKENDS for name in STEADY])
def steady(request: pytest.FixtureRequest, artifacts: Path) -> Loaded:
    """Every layer whose positions do not depend on how many tokens follow, on every backend."""
    backend, _, layer = request.param.partition("/")
    return Loaded(backend, layer, artifacts)


@given(n=st.integers(1, 17), more=st.integers(1, 6), seed=st.integers(0, 2**32 - 1), masked=st.booleans())
@law
def test_later_tokens_do_not_change_earlier_causal_rows(steady: Loaded, n, more, seed, masked):
    """What causality is for: a prefix may be answered before the rest is known."""
    whole = draw_sequence(steady.entry, n + more, seed, masked=masked)
    prefix = SequenceInput(whole.inputs[:n], whole.attn_mask[:n, :n].copy() if masked else None)

    (early,) = steady.attend([prefix], is_causal=True)
    (late,) = steady.attend([whole], is_causal=True)

    assert_close(late["outputs"][:n], early["outputs"], TOLERANCE)
    assert_close(late["weights"][:, :n, :n], early["weights"], TOLERANCE)
    assert (late["weights"][:, :n, n:] == 0).all()


@given(recipe=recipes)
@law
def test_outputs_lie_within_the_values_a_row_sees(loaded: Loaded, recipe: Recipe):
    """A mixture with weights that sum to 1 leaves the box of what is mixed only by rounding."""
    sequence = recipe.draw(loaded.entry)
    visible = recipe.visible(sequence, loaded.entry.spec.window)

    (found,) = loaded.attend([sequence], is_causal=recipe.is_causal)

    heads, n, width = found["value"].shape
    outputs = found["outputs"].reshape(n, heads, width)
    slack = TOLERANCE * np.abs(found["value"]).max()
    for i in np.flatnonzero(visible.any(axis=-1)):
        seen = found["value"][:, visible[i]]  # (h, visible, value_dim)
        assert (outputs[i] >= seen.min(axis=1) - slack).all()
        assert (outputs[i] <= seen.max(axis=1) + slack).all()


@given(recipe=recipes, constant=st.sampled_from([-20.0, -1.0, 0.5, 20.0]))
@law
def test_a_constant_added_to_a_row_of_the_bias_changes_nothing(loaded: Loaded, recipe: Recipe, constant: float):
    """Softmax sees differences only, so a bias that is the same for a whole row is no bias."""
    sequence = replace(recipe, biased=True).draw(loaded.entry)
    raised = sequence.attn_bias.copy()
    raised[..., recipe.seed % recipe.n, :] += np.float32(constant)

    (found,) = loaded.attend([sequence], is_causal=recipe.is_causal)
    (same,) = loaded.attend([replace(sequence, attn_bias=raised)], is_causal=recipe.is_causal)

    # The raised scores are larger, and so is the last bit of each.
    assert_close(same["weights"], found["weights"], TOLERANCE)
    assert_close(same["outputs"], found["outputs"], TOLERANCE)


@given(
    n=st.integers(2, 18), seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1e3, 1e6, 1e12]), biased=st.booleans()
)
@law
def test_what_stands_behind_a_mask_cannot_be_seen(loaded: Loaded, n, seed, size, biased):
    """A padding token full of garbage leaves every other row alone, whichever tensors are asked for."""
    clean = draw_sequence(loaded.entry, n, seed, masked=True, biased=biased)
    hidden = seed % n
    clean.attn_mask[:, hidden] = False
    inputs = clean.inputs.copy()
    inputs[hidden] = size
    others = np.arange(n) != hidden

    for wanted in WANTED:
        (before,) = loaded.attend([clean], wanted=wanted)
        (after,) = loaded.attend([replace(clean, inputs=inputs)], wanted=wanted)

        if "outputs" in wanted:
            assert np.isfinite(after["outputs"]).all()
            assert_close(after["outputs"][others], before["outputs"][others], TOLERANCE)
        if "weights" in wanted:
            assert (after["weights"][:, :, hidden] == 0).all()
            assert_close(after["weights"][:, others], before["weights"][:, others], TOLERANCE)


@given(recipe=recipes)
@law
def test_an_answer_may_be_changed_by_whoever_gets_it(loaded: Loaded, recipe: Recipe):
    """The service zeroes rows in place: that must reach neither the neighbours, nor the inputs, nor a later answer."""
    sequences = [recipe.draw(loaded.entry), replace(recipe, seed=recipe.seed ^ 1).draw(loaded.entry)]
    if sequences[0].attn_bias is not None:  # units of one batch have biases of one shape
        sequences[1] = replace(sequences[1], attn_bias=sequences[0].attn_bias)
    inputs = [sequence.inputs.copy() for sequence in sequences]
    first, second = loaded.attend(sequences, is_causal=recipe.is_causal)
    kept = {name: tensor.copy() for name, tensor in second.tensors.items()}

    for tensor in first.tensors.values():
        tensor[...] = 7

    (again, _) = loaded.attend(sequences, is_causal=recipe.is_causal)
    for name, tensor in kept.items():
        np.testing.assert_array_equal(second[name], tensor)
        assert not (again[name] == 7).all()
    for sequence, before in zip(sequences, inputs, strict=True):
        np.testing.assert_array_equal(sequence.inputs, before)


@pytest.mark.parametrize("wanted", [("projected",), ("projected", "weights")], ids=",".join)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
def test_outputs_are_projected_whatever_else_is_asked_for(name: str, wanted, is_causal: bool, artifacts: Path):
    """By the fused way and by the explicit one; a row that sees nothing is projected too: what is left is the bias."""
    loaded = Loaded(name, "projecting", artifacts)
    sequence = draw_sequence(loaded.entry, 9, 0, masked=True)
    sequence.attn_mask[4] = False
    want = by_reference(loaded.entry, sequence, scale=loaded.entry.spec.effective_scale, is_causal=is_causal)

    (found,) = loaded.attend([sequence], wanted=wanted, is_causal=is_causal)

    assert_close(found["projected"], want["projected"], TOLERANCE)
    np.testing.assert_array_equal(found["projected"][4], loaded.entry.weights.output_bias)


def assert_same_alone(run, sequences: list[SequenceInput], label: str) -> None:
    """Every sequence has the same bits alone as in the company of the others, and twice over."""
    together = run(sequences)
    for sequence, in_company in zip(sequences, together, strict=True):
        (alone,) = run([sequence])
        for name, tensor in alone.tensors.items():
            np.testing.assert_array_equal(in_company[name], tensor, err_msg=f"{name}: {label}")


@pytest.mark.parametrize("wanted", WANTED, ids=",".join)
@pytest.mark.parametrize("layer", [*LAYERS, *WIDE])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_sequence_has_the_same_bits_alone_and_in_company(name: str, layer: str, wanted, artifacts: Path):
    """The contract's hardest promise: batching is invisible to the last bit."""
    loaded = Loaded(name, layer, artifacts)
    skip_unless_exact(loaded.runner)
    for at, n in enumerate(LENGTHS):
        company = 2 + at % 5
        masked, biased, is_causal = bool(at % 2), at % 3 == 0, at % 4 > 1
        sequences = [draw_sequence(loaded.entry, n, seed, masked=masked) for seed in range(company)]
        if biased:
            random, heads = np.random.default_rng(at), loaded.entry.spec.num_heads
            sequences = [
                replace(s, attn_bias=random.standard_normal((heads, n, n), dtype=np.float32)) for s in sequences
            ]

        assert_same_alone(
            lambda batch, wanted=wanted, is_causal=is_causal: loaded.attend(batch, wanted=wanted, is_causal=is_causal),
            sequences,
            f"{company} sequences of {n} tokens, masked={masked}, biased={biased}, causal={is_causal}",
        )


@pytest.mark.parametrize("wanted", WANTED, ids=",".join)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_callers_own_projections_keep_the_same_promise(name: str, wanted, artifacts: Path):
    """Their matrices are not packed when a session opens, so they are the likelier ones to break it."""
    skip_unless_exact(projections_runner(name, artifacts))
    random = np.random.default_rng(0)
    widths = [(1, 1, 1), (3, 2, 5), (16, 16, 16), (33, 17, 9), (64, 64, 64), (13, 3, 31)]
    for n, (d, d_k, d_v) in product((1, 2, 3, 13, 33), widths):
        matrices = Projections(*(random.standard_normal((d, c), dtype=np.float32) for c in (d_k, d_k, d_v)))
        sequences = [SequenceInput(random.standard_normal((n, d), dtype=np.float32)) for _ in range(3)]

        assert_same_alone(
            lambda batch, wanted=wanted, m=matrices: attend(
                projections_runner(name, artifacts), batch, wanted=wanted, scale=0.5, is_causal=True, projections=m
            ),
            sequences,
            f"{n} tokens, widths {d}, {d_k} and {d_v}",
        )


@pytest.mark.parametrize("name", BACKENDS)
def test_a_callers_own_projections_equal_the_layer_that_has_them(name: str, artifacts: Path):
    """The two runners of a backend are one mathematics."""
    entry = LAYERS["odd"]
    weights = entry.weights
    matrices = Projections(weights.query, weights.key, weights.value)
    for seed, (masked, biased) in enumerate([(False, False), (True, False), (False, True), (True, True)]):
        sequence = draw_sequence(entry, 9, seed, masked=masked, biased=biased)
        want = by_reference(entry, sequence, scale=0.3)

        (found,) = attend(projections_runner(name, artifacts), [sequence], scale=0.3, projections=matrices)

        for tensor in TENSOR_NAMES:
            assert_close(found[tensor], want[tensor], TOLERANCE, tensor)
