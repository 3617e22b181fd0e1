"""From the torch module to ONNX. A layer is exported once, with every output and with mask and bias as inputs."""

import logging
import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx
import torch
from onnx import ModelProto, numpy_helper
from torch import nn
from torch.export import Dim

from models.eager import Intermediates, Projections, SelfAttention
from models.encoder_eager import Encoder
from models.encoder_spec import EncoderSpec, encoder_tensor_names
from models.encoder_weights import EncoderWeights
from models.errors import ArtifactError
from models.graphs import TOKENS, checked, keep, prune
from models.spec import AttentionSpec
from models.types import TENSOR_NAMES
from models.weights import AttentionWeights

OPSET = 20
EXPORTER = f"self-attention/4 opset/{OPSET} torch/{torch.__version__.split('+')[0]} onnx/{onnx.__version__}"
"""Whatever makes two exports of equal weights differ."""

BATCH = "batch"
AXES: dict[str, list[str | None]] = {
    "ids": [BATCH, TOKENS],
    "inputs": [BATCH, TOKENS, None],
    "attn_mask": [BATCH, TOKENS, TOKENS],
    "attn_bias": [BATCH, "bias_heads", TOKENS, TOKENS],
}
"""Names of the symbolic axes; None stays as exported. `bias_heads` is 1 or the model's heads."""


SLIP = "AST constructor recursion depth mismatch"
"""What Python 3.11 now and then says of right source (python/cpython#106905); the next time it does not."""

MAX_BYTES = (1 << 31) - (1 << 20)
"""What the numbers of one graph may take: a protobuf message holds less than 2 GiB."""


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
            export = partial(
                torch.onnx.export,
                module.eval(),
                tuple(args.values()),
                dynamo=True,
                dynamic_shapes=tuple(dynamic.values()),
                input_names=list(args),
                output_names=list(names),
                opset_version=OPSET,
                verbose=False,
            )
            try:
                program = export()
            except Exception as error:
                if SLIP not in str(error):
                    raise
                program = export()
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
        keep(node.attribute, [a for a in node.attribute if a.name != "allowzero"])  # 0 = as it was, not empty
    prune(graph)


def _anonymous_axes(model: ModelProto) -> None:
    """Drop the shapes the exporter inferred inside the graph: they hold for one bias shape only."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.ClearField("dim_param")
