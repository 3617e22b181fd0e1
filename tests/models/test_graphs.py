"""Graphs that are no cut of an export: one operator for attention, tiles, the output projection alone."""

import itertools
from dataclasses import replace

import numpy as np
import onnx
import pytest

from models.errors import ArtifactError
from models.export import export_layer
from models.graphs import Variant, folded, projecting, specialise, tile, with_kernel
from tests.contract.layers import LAYERS, assert_close, by_reference, make_layer, seeing_all
from tests.models.test_export import draw, exported, feed_of, names_of, reference_of, run

PLAIN = [name for name, entry in LAYERS.items() if entry.spec.plain_scores]


@pytest.mark.parametrize("layer", PLAIN)
@pytest.mark.parametrize("steered", ["nothing", "causality", "mask"])
@pytest.mark.parametrize("wanted", [("outputs", "weights"), ("outputs",), ("query", "outputs")], ids=",".join)
def test_the_operator_equals_the_reference(layer, steered, wanted):
    """At lengths and batches nobody exported; weights that are masked are exactly 0."""
    entry = seeing_all(LAYERS[layer])
    masked, is_causal = steered == "mask", steered == "causality"

    model = with_kernel(exported(layer), entry.spec.num_heads, wanted, masked=masked, is_causal=is_causal)

    assert names_of(model.graph.output) == list(wanted)
    for n, count in ((1, 1), (7, 3), (33, 2)):
        sequences = draw(entry, n, count, masked=masked)
        found = run(model, feed_of(sequences, 0.6))
        for i, sequence in enumerate(sequences):
            want = by_reference(entry, sequence, scale=0.6, is_causal=is_causal)
            seen = np.ones((n, n), bool) if sequence.attn_mask is None else sequence.attn_mask
            seen = seen & np.tri(n, dtype=bool) if is_causal else seen
            alive = seen.any(axis=-1)
            for name in wanted:
                rows = (slice(None), alive) if name != "outputs" else alive
                assert_close(found[name][i][rows], want[name][rows], 1e-5, name)
            if "weights" in wanted:
                assert (found["weights"][i][:, alive][:, ~seen[alive]] == 0).all()


def test_the_operator_leaves_the_graph_alone_and_computes_nothing_in_vain():
    """The graph is shared by every variant; and what the operator replaces must be gone."""
    full = exported("heads")
    before = full.SerializeToString(deterministic=True)

    model = with_kernel(full, LAYERS["heads"].spec.num_heads, ("outputs", "weights"))

    assert full.SerializeToString(deterministic=True) == before
    assert {"Softmax", "Where"}.isdisjoint(node.op_type for node in model.graph.node)
    assert names_of(model.graph.input) == ["inputs", "scale"]


def test_the_operator_takes_keys_that_are_the_queries():
    """Two equal matrices are one in the export, and the keys a name for the queries that nothing before asked for."""
    entry = make_layer("tied", embed_dim=5, head_dim=3)
    entry = replace(entry, weights=replace(entry.weights, key=entry.weights.query))
    sequence = draw(entry, 4, 1, masked=False)[0]

    found = run(with_kernel(export_layer(entry.spec, entry.weights), 1, ("outputs",)), feed_of([sequence], 0.6))

    assert_close(found["outputs"][0], reference_of(entry, sequence, 0.6)["outputs"], 1e-5)


FOLDING = [
    make_layer("square", embed_dim=6, head_dim=6),
    make_layer("deep", embed_dim=4, head_dim=9, value_dim=3, with_biases=True, with_output=True),
    make_layer("one", embed_dim=1, head_dim=1, with_biases=True),
]


@pytest.mark.parametrize("entry", FOLDING, ids=lambda entry: entry.spec.name)
@pytest.mark.parametrize("way", ["whole", "kernel"])
@pytest.mark.parametrize("masked", [False, True])
def test_one_matrix_stands_for_those_of_queries_and_keys(entry, way, masked):
    """What is left of a layer's biases is what a softmax does not take out."""
    assert entry.spec.foldable
    wanted = ("outputs", "weights", "value")
    graph = export_layer(entry.spec, entry.weights)
    before = graph.SerializeToString(deterministic=True)
    base = folded(graph)
    assert base is not None

    made = (
        specialise(base, Variant(wanted, masked=masked))
        if way == "whole"
        else with_kernel(base, 1, wanted, masked=masked)
    )

    assert graph.SerializeToString(deterministic=True) == before
    assert len([node for node in made.graph.node if "inputs" in node.input and node.op_type == "MatMul"]) == 2
    for n, count in ((1, 1), (7, 3)):
        sequences = draw(entry, n, count, masked=masked)
        found = run(made, feed_of(sequences, 0.6))
        for i, sequence in enumerate(sequences):
            want = by_reference(entry, sequence, scale=0.6)
            alive = np.ones(n, bool) if sequence.attn_mask is None else sequence.attn_mask.any(axis=-1)
            for name in wanted:
                rows = alive if name == "outputs" else (slice(None), alive if name == "weights" else slice(None))
                assert_close(found[name][i][rows], want[name][rows], 1e-5, name)


def test_equal_matrices_of_queries_and_keys_are_folded_too():
    entry = make_layer("tied", embed_dim=3, head_dim=5)
    entry = replace(entry, weights=replace(entry.weights, key=entry.weights.query))
    sequence = draw(entry, 4, 1, masked=False)[0]

    graph = folded(export_layer(entry.spec, entry.weights))
    assert graph is not None
    found = run(specialise(graph, Variant(("outputs",))), feed_of([sequence], 0.6))

    assert_close(found["outputs"][0], reference_of(entry, sequence, 0.6)["outputs"], 1e-5)


@pytest.mark.parametrize("size", [1e20, 1e-20])
def test_matrices_whose_product_float32_does_not_hold_are_not_folded(size):
    entry = make_layer("far", embed_dim=2, head_dim=2)
    matrix = np.full((2, 2), size, np.float32)

    assert folded(export_layer(entry.spec, replace(entry.weights, query=matrix, key=matrix))) is None


@pytest.mark.parametrize("layer", ["odd", "heads", "capped"])
def test_a_layer_that_does_not_fold_says_so(layer):
    assert not LAYERS[layer].spec.foldable
    if layer != "odd":  # which would fold, and gain nothing
        with pytest.raises(ArtifactError, match="cannot be folded"):
            folded(exported(layer))


def test_outputs_that_the_operator_made_can_be_projected():
    entry = LAYERS["projecting"]
    sequence = draw(entry, 4, 1, masked=False)[0]
    wanted = ("projected", "weights", "value")

    model = with_kernel(exported("projecting"), entry.spec.num_heads, wanted, is_causal=True)
    found = run(model, feed_of([sequence], 0.6))

    want = by_reference(entry, sequence, scale=0.6, is_causal=True)
    assert names_of(model.graph.output) == list(wanted)
    for name in wanted:
        assert_close(found[name][0], want[name], 1e-5, name)


WANTED = [w for size in (1, 2, 3) for w in itertools.combinations(("scores", "weights", "outputs"), size)]
TILES = [Variant(w, masked=m, biased=b) for w, m, b in itertools.product(WANTED, (False, True), (False, True))]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("variant", TILES, ids=lambda v: f"{'+'.join(v.wanted)}-{v.masked}-{v.biased}")
def test_a_tile_is_a_few_rows_of_the_whole(variant, fused):
    """By the textbook, in float64; a row that sees nothing has zeros."""
    random = np.random.default_rng(0)
    for rows, columns, width, mixed in ((1, 1, 1, 1), (3, 7, 5, 2), (16, 40, 8, 8)):
        query, key = (random.standard_normal((1, n, width), np.float32) for n in (rows, columns))
        value, bias = (random.standard_normal((1, n, m), np.float32) for n, m in ((columns, mixed), (rows, columns)))
        mask = random.random((1, rows, columns)) < 0.6
        mask[0, 0] = False
        scores = query.astype(np.float64) @ key.transpose(0, 2, 1)
        if variant.biased:
            scores = scores + bias
        if variant.masked:
            scores = np.where(mask, scores, -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
        weights = np.nan_to_num(weights)
        want = {"scores": scores, "weights": weights, "outputs": weights @ value}

        model = tile(variant, fused=fused)
        found = run(model, {"query": query, "key": key, "value": value, "attn_mask": mask, "attn_bias": bias})

        onnx.checker.check_model(model)
        assert names_of(model.graph.output) == list(variant.wanted)
        for name in variant.wanted:
            assert_close(found[name], want[name], 1e-5, name)


def test_the_output_projection_alone_equals_the_one_of_the_whole_graph():
    """From outputs that another graph made."""
    entry = LAYERS["projecting"]
    sequence = draw(entry, 7, 1, masked=False)[0]
    want = reference_of(entry, sequence, 0.6)

    model = projecting(exported("projecting"))
    found = run(model, {"outputs": want["outputs"][None].astype(np.float32)})

    assert names_of(model.graph.input) == ["outputs"]
    assert names_of(model.graph.output) == ["projected"]
    assert_close(found["projected"][0], want["projected"], 1e-5)
