"""From the torch module to ONNX, and from one exported graph to the smaller ones that requests need.

A layer is exported once, with every output and with mask and bias as inputs. `specialise` then drops what a request
does not use: ONNX Runtime computes every node whatever is fetched, so a graph without `scores` is a faster graph.
"""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, helper, numpy_helper
from torch import nn
from torch.export import Dim

from models.eager import Intermediates, Projections, SelfAttention
from models.encoder_eager import Encoder
from models.encoder_spec import EncoderSpec, encoder_tensor_names
from models.encoder_weights import EncoderWeights
from models.errors import ArtifactError
from models.spec import AttentionSpec
from models.types import TENSOR_NAMES
from models.weights import AttentionWeights

OPSET = 20
EXPORTER = f"self-attention/3 opset/{OPSET} torch/{torch.__version__.split('+')[0]} onnx/{onnx.__version__}"
"""Whatever makes two exports of equal weights differ."""

BATCH, TOKENS = "batch", "tokens"
AXES: dict[str, list[str | None]] = {
    "ids": [BATCH, TOKENS],
    "inputs": [BATCH, TOKENS, None],
    "attn_mask": [BATCH, TOKENS, TOKENS],
    "attn_bias": [BATCH, "bias_heads", TOKENS, TOKENS],
}
"""Names of the symbolic axes; None stays as exported. `bias_heads` is 1 or the model's heads."""


MAX_BYTES = (1 << 31) - (1 << 20)
"""What the numbers of one graph may take: a protobuf message holds less than 2 GiB."""


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


def export_layer(spec: AttentionSpec, weights: AttentionWeights) -> ModelProto:
    """The layer as a graph of inputs `inputs, scale, attn_mask, attn_bias` and every output of `Intermediates`.

    Raises:
        ArtifactError: if the exporter fails, the checker refuses the graph, or an axis that must be free is not.
    """
    return _export(SelfAttention(spec, weights), {"inputs": (3, 5, spec.embed_dim)}, {}, weights.tensor_names)


def export_projections() -> ModelProto:
    """One head whose matrices are the graph inputs `query_projection, key_projection, value_projection`.

    Raises:
        ArtifactError: see `export_layer`.
    """
    d, d_k, d_v = Dim("embed_dim"), Dim("head_dim"), Dim("value_dim")
    matrices = {"query_projection": (7, 4), "key_projection": (7, 4), "value_projection": (7, 6)}
    axes = {"inputs": {2: d}} | {name: {0: d, 1: d_v if name[0] == "v" else d_k} for name in matrices}
    return _export(Projections(), {"inputs": (3, 5, 7), **matrices}, axes, TENSOR_NAMES)


def export_encoder(spec: EncoderSpec, weights: EncoderWeights) -> ModelProto:
    """The encoder as a graph of one input, `ids` (batch, tokens) int64, and the outputs of `encoder_tensor_names`.

    Raises:
        ArtifactError: see `export_layer`; or if the numbers are more than one graph can hold.
    """
    if (size := sum(tensor.nbytes for tensor in weights.tensors().values())) > MAX_BYTES:
        raise ArtifactError(f"{spec.id} has {size} bytes of numbers, but a graph holds {MAX_BYTES} at most")
    args = {"ids": torch.zeros(3, 5, dtype=torch.int64)}
    return to_onnx(Encoder(spec, weights), args, {"ids": {0: Dim(BATCH), 1: Dim(TOKENS)}}, encoder_tensor_names(spec))


def _export(
    module: nn.Module, shapes: dict[str, tuple[int, ...]], axes: dict[str, dict[int, Dim]], names: Sequence[str]
) -> ModelProto:
    """A module that takes and gives what `SelfAttention` does, `shapes` being those of its tensors of numbers."""
    batch, tokens = Dim(BATCH), Dim(TOKENS)
    example = {name: torch.randn(shape) for name, shape in shapes.items()}
    inputs = example.pop("inputs")
    args = {
        "inputs": inputs,
        "scale": torch.tensor(0.5),
        **example,
        "attn_mask": torch.ones(3, 5, 5, dtype=torch.bool),
        "attn_bias": torch.zeros(3, 1, 5, 5),
    }
    dynamic = {
        "inputs": {0: batch, 1: tokens, **axes.pop("inputs", {})},
        "scale": {},
        **axes,
        "attn_mask": {0: batch, 1: tokens, 2: tokens},
        "attn_bias": {0: batch, 2: tokens, 3: tokens},
    }
    return to_onnx(module, args, dynamic, [name for name in Intermediates._fields if name in names])


def to_onnx(
    module: nn.Module, args: dict[str, torch.Tensor], dynamic: dict[str, dict[int, Dim]], names: Sequence[str]
) -> ModelProto:
    """The graph of a module, checked, its free axes named as in `AXES`.

    Args:
        module: it is traced in inference mode.
        args: an example of each input, in the order of the module's parameters.
        dynamic: the free axes of each input.
        names: of the outputs, in the order the module returns them; None is not one.

    Raises:
        ArtifactError: see `export_layer`.
    """
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                tuple(args.values()),
                dynamo=True,
                dynamic_shapes=tuple(dynamic.values()),
                input_names=list(args),
                output_names=list(names),
                opset_version=OPSET,
                verbose=False,
            )
    except Exception as error:  # the exporter raises whatever its layers raise
        raise ArtifactError(f"torch could not export the layer: {type(error).__name__}: {error}") from error
    finally:
        quiet.setLevel(level)
    if program is None:
        raise ArtifactError("torch exported nothing")
    model: ModelProto = program.model_proto
    for value in model.graph.input:
        _name_axes(value)
    _constant_reshapes(model.graph)
    _anonymous_axes(model)
    checked(model)
    return model


def _name_axes(value: onnx.ValueInfoProto) -> None:
    """Give the free axes of a graph input their public names, and insist that they are free."""
    for axis, name in zip(value.type.tensor_type.shape.dim, AXES.get(value.name, []), strict=False):
        if name is None:
            continue
        if name != "bias_heads" and not axis.dim_param:
            raise ArtifactError(f"the exporter froze axis {name} of {value.name} at {axis.dim_value}")
        axis.dim_param = name


def _constant_reshapes(graph: onnx.GraphProto) -> None:
    """Turn each shape that the graph computes at run time into the constant that says the same.

    Splitting and merging heads keeps the first two axes, (batch, tokens), and knows all others but one: ONNX writes
    that as (0, 0, ..., -1). It saves the nodes, and unties the graph from whichever input the exporter measured.
    """
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    computed = {node.output[0]: node for node in graph.node if node.op_type == "Concat"}
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] not in computed:
            continue
        parts = computed[node.input[1]].input
        shape = [int(constants[p].item()) if p in constants else (0 if i < 2 else -1) for i, p in enumerate(parts)]
        name = f"{node.output[0]}_shape"
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
        node.input[1] = name
        _keep(node.attribute, [a for a in node.attribute if a.name != "allowzero"])  # 0 = as it was, not empty
    _prune(graph)


def _anonymous_axes(model: ModelProto) -> None:
    """Drop the shapes the exporter inferred inside the graph: they hold for one bias shape only."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.ClearField("dim_param")


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
    _keep(graph.node, [*graph.node[:at], *made, *graph.node[at + 1 :]])
    small.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    _prune(graph)
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
    _keep(graph.node, [node for node in graph.node if set(parts).isdisjoint(node.output)])
    graph.input.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * 4) for name in parts)
    for value in graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == TOKENS:
                axis.ClearField("dim_param")
    _prune(graph)
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
    _keep(model.graph.output, [outputs[name] for name in wanted])
    _prune(model.graph)
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
    _keep(graph.node, kept)


def _prune(graph: onnx.GraphProto) -> None:
    """Remove nodes, initialisers and inputs that no output needs."""
    needed = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(node.input)
    _keep(graph.node, list(reversed(kept)))
    _keep(graph.initializer, [t for t in graph.initializer if t.name in needed])
    _keep(graph.input, [v for v in graph.input if v.name in needed])


def _keep(field: Any, items: list[Any]) -> None:
    """Replace what a repeated field of a protobuf message holds."""
    del field[:]
    field.extend(items)
