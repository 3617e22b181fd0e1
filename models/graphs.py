"""Smaller graphs cut from an exported one, as requests need them.

ONNX Runtime computes every node whatever is fetched, so a graph without `scores` is a faster graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from models.errors import ArtifactError

TOKENS = "tokens"
"""Name of the axis of tokens, in every graph."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a specialised graph takes and gives.

    Attributes:
        wanted: output names, in the order the graph gives them.
        masked: takes `attn_mask` (batch, tokens, tokens).
        biased: takes `attn_bias` (batch, 1 or heads, tokens, tokens).
    """

    wanted: tuple[str, ...]
    masked: bool = False
    biased: bool = False


def checked(model: ModelProto) -> None:
    """Raise `ArtifactError` unless ONNX's own checker accepts the graph."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ArtifactError(f"onnx.checker refuses the graph: {error}") from error


def specialise(model: ModelProto, variant: Variant) -> ModelProto:
    """A smaller graph with the same numbers: unused mask, bias and outputs removed.

    Args:
        model: what `export_layer` or `export_projections` made; it is not changed.
        variant: what to keep.

    Raises:
        ArtifactError: if `model` lacks an output or does not use mask and bias as this module exports them.
    """
    small = ModelProto()
    small.CopyFrom(model)
    if not variant.biased:
        _bypass(small.graph, "attn_bias", "Add")
    if not variant.masked:
        _bypass(small.graph, "attn_mask", "Where")
    return _narrowed(small, variant.wanted)


def fused(model: ModelProto, num_heads: int) -> ModelProto:
    """The graph with outputs made by one kernel that holds no matrix of scores, so that memory grows with the tokens.

    Args:
        model: what `specialise` made without mask and bias, of a layer with `AttentionSpec.plain_scores`.
        num_heads: query heads.

    Source:
        `com.microsoft.MultiHeadAttention` of ONNX Runtime, which on a CPU tiles as FlashAttention does (Dao 2023,
        arXiv:2307.08691) where there is neither mask nor bias. Its scale is an attribute, so queries are scaled first.
    """
    small = ModelProto()
    small.CopyFrom(model)
    graph = small.graph
    # (b, h, n, c) as the kernel takes them, (b, n, h * c); what splits heads and what merges them again cancels out.
    graph.initializer.append(numpy_helper.from_array(np.array([0, 0, -1], np.int64), "flat"))
    made = [helper.make_node("Mul", ["query", "scale"], ["scaled_query"])]
    for name in ("scaled_query", "key", "value"):
        made.append(helper.make_node("Transpose", [name], [f"{name}_by_token"], perm=[0, 2, 1, 3]))
        made.append(helper.make_node("Reshape", [f"{name}_by_token", "flat"], [f"{name}_flat"]))
    taken = ["scaled_query_flat", "key_flat", "value_flat"]
    kernel = helper.make_node(
        "MultiHeadAttention", taken, ["outputs"], domain="com.microsoft", num_heads=num_heads, scale=1.0
    )
    made.append(kernel)
    at = next(i for i, node in enumerate(graph.node) if "outputs" in node.output)
    keep(graph.node, [*graph.node[:at], *made, *graph.node[at + 1 :]])
    small.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    prune(graph)
    return small


def attending(model: ModelProto) -> ModelProto:
    """The part of a graph that comes after the projections: it takes `query`, `key` and `value` as they enter scores.

    The rows of a mask, a bias and the answer are those of the query, which may have fewer tokens than key and value.

    Args:
        model: what `specialise` made, with outputs or projected outputs and none of those three.
    """
    small = ModelProto()
    small.CopyFrom(model)
    graph = small.graph
    parts = ("query", "key", "value")
    keep(graph.node, [node for node in graph.node if set(parts).isdisjoint(node.output)])
    graph.input.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * 4) for name in parts)
    for value in graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == TOKENS:
                axis.ClearField("dim_param")
    prune(graph)
    checked(small)
    return small


def narrow(model: ModelProto, wanted: Sequence[str]) -> ModelProto:
    """A smaller graph that gives some outputs only: of an encoder's, no layer after the last one asked for is left.

    Args:
        model: what this module exported; it is not changed.
        wanted: output names, in the order the graph is to give them.

    Raises:
        ArtifactError: if `model` lacks an output.
    """
    small = ModelProto()
    small.CopyFrom(model)
    return _narrowed(small, wanted)


def _narrowed(model: ModelProto, wanted: Sequence[str]) -> ModelProto:
    """The same graph, changed in place."""
    outputs = {value.name: value for value in model.graph.output}
    if missing := [name for name in wanted if name not in outputs]:
        raise ArtifactError(f"the graph has no output {missing[0]!r}")
    keep(model.graph.output, [outputs[name] for name in wanted])
    prune(model.graph)
    checked(model)
    return model


def _bypass(graph: onnx.GraphProto, name: str, op_type: str) -> None:
    """Take a graph input out: each `op_type` node it steers passes its other tensor through."""
    steered = {name}
    rename: dict[str, str] = {}
    for node in graph.node:
        if steered.isdisjoint(node.input):
            continue
        if node.op_type == "Unsqueeze":  # the mask's axis of heads
            steered.update(node.output)
            continue
        if node.op_type != op_type:
            raise ArtifactError(f"the graph uses {name!r} in a node {node.op_type}; only {op_type} can be bypassed")
        others = [i for i in node.input if i not in steered]
        rename[node.output[0]] = others[0]
    if not rename:
        raise ArtifactError(f"the graph does not use {name!r} in a node {op_type}")

    def resolve(tensor: str) -> str:
        while tensor in rename:
            tensor = rename[tensor]
        return tensor

    public = {value.name for value in graph.output}
    kept = [node for node in graph.node if node.output[0] not in rename]
    for node in kept:
        for i, tensor in enumerate(node.input):
            node.input[i] = resolve(tensor)
    for dropped in rename.keys() & public:  # an output keeps its name: its new producer takes it over
        source = resolve(dropped)
        for node in kept:
            node.output[:] = [dropped if t == source else t for t in node.output]
            node.input[:] = [dropped if t == source else t for t in node.input]
    keep(graph.node, kept)


def prune(graph: onnx.GraphProto) -> None:
    """Remove nodes, initialisers and inputs that no output needs."""
    needed = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(node.input)
    keep(graph.node, list(reversed(kept)))
    keep(graph.initializer, [t for t in graph.initializer if t.name in needed])
    keep(graph.input, [v for v in graph.input if v.name in needed])


def keep(field: Any, items: list[Any]) -> None:
    """Replace what a repeated field of a protobuf message holds."""
    del field[:]
    field.extend(items)
