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
from models.types import F64

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


KERNEL_OPSET = 23
"""Of the operator `Attention`."""


def with_kernel(
    model: ModelProto, num_heads: int, wanted: Sequence[str], *, masked: bool = False, is_causal: bool = False
) -> ModelProto:
    """A graph in which one operator makes weights and outputs: it transposes nothing and takes causality as a flag.

    A row that a mask lets see nothing is unspecified: whoever projects outputs takes `specialise`'s graph. So is one
    whose scores are as low as float32 goes, of which the operator thinks that it sees nothing: it takes no bias here.

    Args:
        model: what `export_layer` or `export_projections` made of a layer with `AttentionSpec.plain_scores`; it is not
            changed.
        num_heads: query heads.
        wanted: output names, in the order the graph gives them: some that take outputs, and no scores.
        masked: takes `attn_mask`.
        is_causal: rows see earlier columns only.

    Source:
        https://onnx.ai/onnx/operators/onnx__Attention.html. Its scale is an attribute, so queries are scaled first.
    """
    small = specialise(model, Variant(("query", "key", "value")))
    graph = small.graph
    graph.initializer.append(numpy_helper.from_array(np.array([0, 0, -1], np.int64), "flat"))
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axis_of_heads"))
    graph.input.extend(value for value in model.graph.input if value.name in ("scale", "attn_mask"))
    # (b, h, n, c) as the operator takes them, (b, n, h * c); what splits heads and what merges them again cancels out.
    graph.node.append(helper.make_node("Mul", ["query", "scale"], ["kernel_query"]))
    for name in ("kernel_query", "key", "value"):
        graph.node.append(helper.make_node("Transpose", [name], [f"{name}_by_token"], perm=[0, 2, 1, 3]))
        graph.node.append(helper.make_node("Reshape", [f"{name}_by_token", "flat"], [f"{name}_flat"]))
    taken = ["kernel_query_flat", "key_flat", "value_flat"]
    if masked:
        graph.node.append(helper.make_node("Unsqueeze", ["attn_mask", "axis_of_heads"], ["mask_of_heads"]))
        taken.append("mask_of_heads")
    node = helper.make_node(
        "Attention",
        taken,
        ["outputs", "", "", "weights"] if "weights" in wanted else ["outputs"],
        q_num_heads=num_heads,
        kv_num_heads=num_heads,
        scale=1.0,
        is_causal=int(is_causal),
        qk_matmul_output_mode=3,  # weights are what comes out of the softmax
    )
    graph.node.append(node)
    if "projected" in wanted:
        last = projecting(model).graph
        graph.node.extend(last.node)
        mine = {tensor.name for tensor in graph.initializer}
        graph.initializer.extend(tensor for tensor in last.initializer if tensor.name not in mine)
    next(domain for domain in small.opset_import if not domain.domain).version = KERNEL_OPSET
    keep(graph.output, list(model.graph.output))
    return _narrowed(small, wanted)


def tile(variant: Variant, *, fused: bool) -> ModelProto:
    """A few rows of one head of any layer with `AttentionSpec.plain_scores`: what comes after the projections.

    It takes `query` (1, rows, head_dim), scaled; `key` (1, columns, head_dim) and `value` (1, columns, value_dim); and
    where the variant says so `attn_mask` and `attn_bias` (1, rows, columns). It gives those of `scores`, `weights`
    (1, rows, columns) and `outputs` (1, rows, value_dim) that are wanted.

    Args:
        variant: what it takes and gives.
        fused: whether outputs alone, without mask and bias, are to be made by one operator.

    Source:
        That one is `com.microsoft.MultiHeadAttention` of ONNX Runtime, which on a CPU tiles as FlashAttention does (Dao
        2023, arXiv:2307.08691). It takes no mask so.
    """
    if fused and variant == Variant(("outputs",)):
        sizes = {"num_heads": 1, "scale": 1.0}
        taken = ["query", "key", "value"]
        made = [helper.make_node("MultiHeadAttention", taken, ["outputs"], domain="com.microsoft", **sizes)]  # type: ignore[arg-type] # attributes
    else:
        made = _explicit(variant)
    kinds = {"attn_mask": onnx.TensorProto.BOOL}
    names = ("query", "key", "value", "attn_mask", "attn_bias")
    constants = {"nothing": -np.inf, "zero": 0.0}
    axes = [1, None, None]
    graph = helper.make_graph(
        made,
        "tile",
        [helper.make_tensor_value_info(name, kinds.get(name, onnx.TensorProto.FLOAT), axes) for name in names],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, axes) for name in variant.wanted],
        [numpy_helper.from_array(np.array(number, np.float32), name) for name, number in constants.items()],
    )
    prune(graph)
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def _explicit(variant: Variant) -> list[onnx.NodeProto]:
    """The nodes of a tile with a matrix of scores."""
    made = [
        helper.make_node("Transpose", ["key"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["query", "columns"], ["product"]),
    ]
    if variant.biased:
        made.append(helper.make_node("Add", ["product", "attn_bias"], ["biased"]))
    if variant.masked:
        made.append(helper.make_node("Where", ["attn_mask", made[-1].output[0], "nothing"], ["masked"]))
    made[-1].output[0] = "scores"
    made.append(helper.make_node("Softmax", ["scores"], ["softmax"], axis=-1))
    if variant.masked:  # also turns the NaN of a row that sees nothing into 0
        made.append(helper.make_node("Where", ["attn_mask", "softmax", "zero"], ["kept"]))
    made[-1].output[0] = "weights"
    made.append(helper.make_node("MatMul", ["weights", "value"], ["outputs"]))
    return made


def by_row(model: ModelProto, name: str) -> ModelProto:
    """Queries, keys or values alone, (1, n, c), of a layer of one head, as its last product leaves them.

    What gives them their axis of heads would copy them, where a caller says in which memory they are to be.

    Args:
        model: what `export_layer` or `export_projections` made of a layer that leaves rows as they are projected; it is
            not changed.
        name: `query`, `key` or `value`.

    Raises:
        ArtifactError: if the graph does anything else to them last.
    """
    small = specialise(model, Variant((name,)))
    graph = small.graph
    *before, last = graph.node
    if last.op_type != "Unsqueeze":
        raise ArtifactError(f"the graph makes {name!r} by {last.op_type}, which one head does not take")
    for node in before:
        node.output[:] = [name if tensor == last.input[0] else tensor for tensor in node.output]
    keep(graph.node, before)
    keep(graph.output, [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", TOKENS, None])])
    return _narrowed(small, (name,))


LARGEST_FOLDED, LEAST_FOLDED = 2.0**63, float(np.finfo(np.float32).tiny)
"""Between these the numbers of a folded matrix have to be, or 0: beyond them float32 overflows or has fewer digits."""


def folded(model: ModelProto) -> ModelProto | None:
    """A graph of one head that makes no keys: its scores are (x W_q W_kᵀ) xᵀ, where one matrix stands for two.

    In it `query` is x W_q W_kᵀ + b_q W_kᵀ, and `key` is x. Its `scores` lack what b_k adds to all of a row alike,
    which a softmax takes out again: (x W_q + b_q)(x W_k + b_k)ᵀ = (x W_q W_kᵀ + b_q W_kᵀ) xᵀ + (x W_q + b_q) b_kᵀ.

    Args:
        model: what `export_layer` made of a layer with `AttentionSpec.foldable`; it is not changed.

    Returns:
        The graph, or None where the matrix has numbers that float32 does not hold as well as those of the two.

    Raises:
        ArtifactError: if the graph does not make queries and keys as this module exports them.
    """
    small = ModelProto()
    small.CopyFrom(model)
    graph = small.graph
    makers = {tensor: node for node in graph.node for tensor in node.output}
    (query, bias), (key, _) = (_projection(graph, makers, name) for name in ("query", "key"))
    constants = {"folded_projection": query @ key.T} | ({} if bias is None else {"folded_bias": bias @ key.T})
    sizes = np.abs(np.concatenate([each.reshape(-1) for each in constants.values()]))
    if (sizes > LARGEST_FOLDED).any() or ((sizes < LEAST_FOLDED) & (sizes > 0)).any():
        return None
    graph.initializer.extend(numpy_helper.from_array(c.astype(np.float32), name) for name, c in constants.items())
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axis_of_one_head"))
    made = [helper.make_node("MatMul", ["inputs", "folded_projection"], ["folded"])]
    if bias is not None:
        made.append(helper.make_node("Add", ["folded", "folded_bias"], ["folded_and_moved"]))
    for tensor, name in ((made[-1].output[0], "query"), ("inputs", "key")):
        made.append(helper.make_node("Unsqueeze", [tensor, "axis_of_one_head"], [name]))
    keep(graph.node, made + [node for node in graph.node if {"query", "key"}.isdisjoint(node.output)])
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] == "query":  # equal matrices are one in an export
            node.input[0] = "key"
    keep(graph.value_info, [])  # what is in between has other shapes now
    for value in graph.output:
        if value.name in ("query", "key"):
            value.type.tensor_type.shape.dim[-1].dim_value = len(query)
    prune(graph)
    return small


def _projection(graph: onnx.GraphProto, makers: dict[str, onnx.NodeProto], name: str) -> tuple[F64, F64 | None]:
    """Matrix and bias that make queries or keys of one head."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    node, bias = makers[name], None
    while node.op_type in ("Unsqueeze", "Identity"):
        node = makers[node.input[0]]
    if node.op_type == "Add" and node.input[1] in constants:
        bias = numpy_helper.to_array(constants[node.input[1]]).astype(np.float64)
        node = makers[node.input[0]]
    if node.op_type != "MatMul" or node.input[0] != "inputs" or node.input[1] not in constants:
        raise ArtifactError(f"the graph makes {name!r} by {node.op_type}, which cannot be folded")
    return numpy_helper.to_array(constants[node.input[1]]).astype(np.float64), bias


def projecting(model: ModelProto) -> ModelProto:
    """The part of a graph that comes last: it takes `outputs` (batch, tokens, h * value_dim) and gives `projected`.

    Args:
        model: what `export_layer` made of a layer with an output projection; it is not changed.
    """
    small = ModelProto()
    small.CopyFrom(model)
    graph = small.graph
    keep(graph.node, [node for node in graph.node if "outputs" not in node.output])
    graph.input.append(helper.make_tensor_value_info("outputs", onnx.TensorProto.FLOAT, ["batch", TOKENS, None]))
    return _narrowed(small, ("projected",))


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
