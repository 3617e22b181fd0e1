import itertools
from functools import lru_cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from models.errors import ArtifactError
from models.export import OPSET, export_layer, export_projections
from models.graphs import Variant, checked, specialise
from models.types import TENSOR_NAMES, SequenceInput
from tests import exports
from tests.contract.layers import LAYERS, assert_close, by_reference, draw_sequence, make_layer, seeing_all

FULL = Variant(TENSOR_NAMES, masked=True, biased=True)
WANTED = (("outputs",), ("weights",), ("scores",), ("outputs", "weights"), ("query", "key"), ("value",), TENSOR_NAMES)
VARIANTS = [Variant(w, masked=m, biased=b) for w, m, b in itertools.product(WANTED, (False, True), (False, True))]
MATRICES = ("query_projection", "key_projection", "value_projection")


@lru_cache
def exported(layer: str) -> onnx.ModelProto:
    """A layer's full graph, which tests must not change."""
    return exports.graph(LAYERS[layer])


@lru_cache
def exported_projections() -> onnx.ModelProto:
    """The full graph of a caller's own matrices."""
    return export_projections()


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of a graph in ONNX Runtime, fed with no more than it takes."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    taken = {value.name for value in session.get_inputs()}
    return dict(zip(names, session.run(names, {k: v for k, v in feed.items() if k in taken}), strict=True))


def feed_of(sequences: list[SequenceInput], scale: float) -> dict[str, np.ndarray]:
    """What the full graph takes; sequences without a bias are fed zeros."""
    n = len(sequences[0].inputs)
    everything, zeros = np.ones((n, n), bool), np.zeros((1, n, n), np.float32)
    biases = [zeros if s.attn_bias is None else s.attn_bias.reshape(-1, n, n) for s in sequences]
    return {
        "inputs": np.stack([s.inputs for s in sequences]),
        "scale": np.array(scale, np.float32),
        "attn_mask": np.stack([everything if s.attn_mask is None else s.attn_mask for s in sequences]),
        "attn_bias": np.stack(biases),
    }


def draw(entry, n, count, *, masked=True, bias_heads=None):
    """Sequences with a bias of 1 or of all heads, or none."""
    random = np.random.default_rng(n)
    sequences = [draw_sequence(entry, n, seed, masked=masked) for seed in range(count)]
    if bias_heads is None:
        return sequences
    shape = (bias_heads, n, n)
    return [SequenceInput(s.inputs, s.attn_mask, random.standard_normal(shape, np.float32)) for s in sequences]


def reference_of(entry, sequence: SequenceInput, scale: float):
    """The oracle, which takes a bias of one head without its axis."""
    bias = sequence.attn_bias
    if bias is not None and len(bias) == 1:
        sequence = SequenceInput(sequence.inputs, sequence.attn_mask, bias[0])
    return by_reference(entry, sequence, scale=scale)


def names_of(values) -> list[str]:
    return [value.name for value in values]


def takes(variant: Variant) -> set[str]:
    """The inputs a graph of that variant takes beside the embeddings and matrices: those that steer scores."""
    if {"outputs", "weights", "scores"}.isdisjoint(variant.wanted):
        return set()
    optional = {"scale": True, "attn_mask": variant.masked, "attn_bias": variant.biased}
    return {name for name, taken in optional.items() if taken}


def axes_of(model: onnx.ModelProto) -> dict[str, list[str | int]]:
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}


@pytest.mark.parametrize("layer", LAYERS)
def test_batch_and_tokens_are_symbolic(layer):
    """Trap 52 (pytorch#152018): an axis frozen in silence works until somebody sends another length."""
    model = exported(layer)

    assert axes_of(model) == {
        "inputs": ["batch", "tokens", LAYERS[layer].spec.embed_dim],
        "scale": [],
        "attn_mask": ["batch", "tokens", "tokens"],
        "attn_bias": ["batch", "bias_heads", "tokens", "tokens"],
    }
    assert set(names_of(model.graph.output)) == set(LAYERS[layer].weights.tensor_names)
    assert [o.version for o in model.opset_import if o.domain == ""] == [OPSET]
    assert {node.domain for node in model.graph.node} == {""}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("n", [1, 2, 31, 33, 257])
def test_one_export_runs_at_every_length_and_batch(layer, n):
    """Traps 51 and 52: it was exported at 5 tokens and a batch of 3, and must not remember."""
    entry = seeing_all(LAYERS[layer])
    for count, heads in ((1, entry.spec.num_heads), (5, 1)) if n < 100 else ((1, 1),):
        sequences = draw(entry, n, count, bias_heads=heads)

        found = run(exported(layer), feed_of(sequences, 0.6))

        for i, sequence in enumerate(sequences):
            want = reference_of(entry, sequence, 0.6)
            for name in entry.weights.tensor_names:
                assert_close(found[name][i], want[name], 1e-5, f"{name} at n={n}, batch={count}")


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{'+'.join(v.wanted)}-{v.masked}-{v.biased}")
def test_a_specialised_graph_takes_and_gives_what_it_should(layer, variant):
    """Inputs a request does not use are gone, outputs stand in the order asked for, and the numbers are the same."""
    entry = seeing_all(LAYERS[layer])

    small = specialise(exported(layer), variant)

    onnx.checker.check_model(small, full_check=True)
    assert names_of(small.graph.output) == list(variant.wanted)
    assert set(names_of(small.graph.input)) == {"inputs"} | takes(variant)
    for bias_heads in {1, entry.spec.num_heads} if variant.biased else {None}:
        sequences = draw(entry, 7, 2, masked=variant.masked, bias_heads=bias_heads)
        found = run(small, feed_of(sequences, 0.6))
        for i, sequence in enumerate(sequences):
            want = reference_of(entry, sequence, 0.6)
            for name in variant.wanted:
                assert_close(found[name][i], want[name], 1e-5, name)


@pytest.mark.parametrize("wanted", WANTED, ids="+".join)
def test_a_specialised_graph_computes_nothing_in_vain(wanted):
    """ONNX Runtime computes every node whatever is fetched, so each one must lead to an output."""
    small = specialise(exported("grouped"), Variant(wanted))

    used = set(names_of(small.graph.output)) | {name for node in small.graph.node for name in node.input}
    assert all(not used.isdisjoint(node.output) for node in small.graph.node)
    assert used >= set(names_of(small.graph.initializer))
    assert used >= set(names_of(small.graph.input))


def test_specialising_leaves_the_full_graph_alone():
    """It is shared by every variant, and by threads."""
    before = exported("heads").SerializeToString(deterministic=True)

    for variant in VARIANTS:
        specialise(exported("heads"), variant)

    assert exported("heads").SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("layer", LAYERS)
def test_a_row_that_sees_nothing_is_zeros_in_the_graph_itself(layer):
    """Trap 7 (onnxscript#2479): an export that softens -inf gives the mean of the values, [2, 3] in case B."""
    entry = seeing_all(LAYERS[layer])
    sequences = [draw_sequence(entry, 5, 0), draw_sequence(entry, 5, 1)]
    feed = feed_of(sequences, 0.6)
    feed["attn_mask"][0, 3] = False
    feed["attn_mask"][1] = False

    for wanted in (("outputs",), ("outputs", "weights"), TENSOR_NAMES):
        found = run(specialise(exported(layer), Variant(wanted, masked=True)), feed)

        assert (found["outputs"][0, 3] == 0).all()
        assert (found["outputs"][1] == 0).all()
        assert (found["outputs"][0, :3] != 0).any()
        if "weights" in wanted:
            assert (found["weights"][0, :, 3] == 0).all()
            assert (found["weights"][1] == 0).all()
        assert all(not np.isnan(tensor).any() for tensor in found.values())


def test_a_masked_weight_is_exactly_zero_in_the_graph_itself():
    """Not 1e-38: the contract says 0."""
    entry = LAYERS["grouped"]
    sequence = draw_sequence(entry, 9, 0, masked=True)

    found = run(specialise(exported("grouped"), FULL), feed_of([sequence], 0.6))

    assert (found["weights"][0][:, ~sequence.attn_mask] == 0).all()
    assert np.isneginf(found["scores"][0][:, ~sequence.attn_mask]).all()


def test_the_graph_of_projections_has_symbolic_widths_too():
    """A caller's matrices may have any size; queries and keys share one width, values have their own."""
    axes = axes_of(exported_projections())

    assert axes["inputs"][:2] == ["batch", "tokens"]
    width, head_dim = axes["query_projection"]
    assert axes["inputs"][2] == width
    assert axes["key_projection"] == [width, head_dim]
    assert axes["value_projection"][0] == width
    assert all(isinstance(axis, str) for name in MATRICES for axis in axes[name])
    assert axes["value_projection"][1] != head_dim


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{'+'.join(v.wanted)}-{v.masked}-{v.biased}")
@pytest.mark.parametrize(("n", "sizes"), [(1, (1, 1, 1)), (2, (4, 2, 3)), (33, (7, 5, 9))])
def test_the_graph_of_projections_equals_the_layer_that_has_them(variant, n, sizes):
    """Every variant, at widths and lengths nobody exported."""
    d, d_k, d_v = sizes
    entry = make_layer("own", embed_dim=d, head_dim=d_k, value_dim=d_v)
    sequences = draw(entry, n, 2, masked=variant.masked, bias_heads=1 if variant.biased else None)
    matrices = {name: getattr(entry.weights, name.partition("_")[0]) for name in MATRICES}

    small = specialise(exported_projections(), variant)
    found = run(small, feed_of(sequences, 0.6) | matrices)

    assert names_of(small.graph.output) == list(variant.wanted)
    assert set(names_of(small.graph.input)) - set(MATRICES) == {"inputs"} | takes(variant)
    for i, sequence in enumerate(sequences):
        want = reference_of(entry, sequence, 0.6)
        for name in variant.wanted:
            assert_close(found[name][i], want[name], 1e-5, name)


def test_exporting_twice_gives_one_graph():
    """The example that the exporter traces is random; the graph is not."""
    entry = LAYERS["odd"]

    again = export_layer(entry.spec, entry.weights)

    assert specialise(again, FULL).graph == specialise(exported("odd"), FULL).graph


def test_weights_travel_unchanged_into_the_graph():
    """Bit by bit: an export that rounds is no export."""
    entry = LAYERS["grouped"]
    held = {onnx.numpy_helper.to_array(t).tobytes() for t in exported("grouped").graph.initializer}

    for name, tensor in entry.weights.tensors().items():
        assert tensor.tobytes() in held, name


def test_an_output_that_does_not_exist_is_refused():
    """A graph cut for `weights` has no `scores` to give."""
    small = specialise(exported("odd"), Variant(("outputs", "weights"), masked=True, biased=True))

    with pytest.raises(ArtifactError, match="the graph has no output 'scores'"):
        specialise(small, FULL)


@pytest.mark.parametrize("name", ["attn_mask", "attn_bias"])
def test_an_input_that_is_gone_cannot_be_taken_out_again(name):
    """A graph that does not use its mask is not one of ours."""
    keep = {"masked": name != "attn_mask", "biased": name != "attn_bias"}
    small = specialise(exported("odd"), Variant(TENSOR_NAMES, **keep))

    with pytest.raises(ArtifactError, match=f"does not use '{name}'"):
        specialise(small, Variant(TENSOR_NAMES, **keep))


def test_a_graph_that_uses_its_mask_otherwise_is_refused():
    """A new exporter may write it another way; then this fails at load instead of answering wrongly."""
    odd = onnx.ModelProto()
    odd.CopyFrom(exported("odd"))
    for node in odd.graph.node:
        if node.op_type == "Where":
            node.op_type = "Mul"

    with pytest.raises(ArtifactError, match=r"uses 'attn_mask' in a node Mul; only Where can be bypassed"):
        specialise(odd, Variant(("outputs",)))


def test_a_graph_the_checker_refuses_is_an_artifact_error():
    """Ours, with the checker's own words."""
    broken = onnx.ModelProto()
    broken.CopyFrom(exported("odd"))
    broken.graph.node[0].op_type = "Nonsense"

    with pytest.raises(ArtifactError, match=r"onnx\.checker refuses the graph: .*Nonsense"):
        checked(broken)


def test_a_failing_exporter_is_an_artifact_error(monkeypatch):
    """torch raises whatever its layers raise; a model that cannot be exported must not stop the others."""

    def fail(*args, **kwargs):
        raise ZeroDivisionError("inside torch")

    monkeypatch.setattr(torch.onnx, "export", fail)

    with pytest.raises(ArtifactError, match="could not export the layer: ZeroDivisionError: inside torch"):
        export_layer(LAYERS["odd"].spec, LAYERS["odd"].weights)


def test_a_slip_of_the_interpreter_is_no_reason_not_to_serve_a_layer(monkeypatch):
    export, tries = torch.onnx.export, []

    def slip(*args, **kwargs):
        tries.append(1)
        if len(tries) == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=69, after=51)")
        return export(*args, **kwargs)

    monkeypatch.setattr(torch.onnx, "export", slip)

    assert export_projections().graph.output
    assert len(tries) == 2


def test_a_frozen_axis_is_an_artifact_error(monkeypatch):
    """Trap 52: the exporter specialises without a word where it may; the graph is refused, not served."""
    export = torch.onnx.export

    def freeze(*args, **kwargs):
        return export(*args, **{**kwargs, "dynamic_shapes": None})

    monkeypatch.setattr(torch.onnx, "export", freeze)

    with pytest.raises(ArtifactError, match="the exporter froze axis batch of inputs at 3"):
        export_layer(LAYERS["odd"].spec, LAYERS["odd"].weights)
