"""The same layers as plain ONNX graphs: what raw ONNX Runtime is timed with, and what other servers serve."""

from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper, parser

from loadtest.bench.work import Layer

_HEADER = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>'


def attention(layer: Layer, *, padded: bool = False) -> ModelProto:
    """Outputs (b, n, width) and weights (b, n, n), or (b, heads, n, n), of inputs (b, n, width).

    Args:
        layer: whose weights.
        padded: take `bias` (b, n) too, added to the scores of each column: 0, or -inf for padding.
    """
    several, width = layer.heads > 1, layer.width
    taken = f"float[b,n,{width}] inputs" + (", float[b,n] bias" if padded else "")
    weights = f"float[b,{layer.heads},n,n]" if several else "float[b,n,n]"
    lines = [*_projected()]
    if several:
        lines += [
            *_split("query", "0, 2, 1, 3"),
            *_split("key", "0, 2, 3, 1"),
            *_split("value", "0, 2, 1, 3"),
            "raw = MatMul(query_split, key_split)",
        ]
    else:
        lines += ["key_turned = Transpose<perm = [0, 2, 1]>(key)", "raw = MatMul(query, key_turned)"]
    if padded:
        axes = "row_axes" if not several else "head_axes"
        lines += [f"bias_by_row = Unsqueeze(bias, {axes})", "scores = Add(raw, bias_by_row)"]
    lines.append(f"weights = Softmax<axis = -1>({'scores' if padded else 'raw'})")
    if several:
        lines += [
            "mixed = MatMul(weights, value_split)",
            "mixed_by_token = Transpose<perm = [0, 2, 1, 3]>(mixed)",
            "outputs = Reshape(mixed_by_token, flat)",
        ]
    else:
        lines.append("outputs = MatMul(weights, value)")
    return _model(layer, f"({taken}) => (float[b,n,{width}] outputs, {weights} weights)", lines)


def outputs_alone(layer: Layer, *, fused: bool) -> ModelProto:
    """Outputs only, (b, n, width), with or without the kernel that holds no matrix of scores."""
    if not fused:
        model = attention(layer)
        del model.graph.output[1]
        return model
    attributes = f"num_heads = {layer.heads}, scale = 1.0"
    lines = [*_projected(), f"outputs = com.microsoft.MultiHeadAttention<{attributes}>(query, key, value)"]
    return _model(layer, f"(float[b,n,{layer.width}] inputs) => (float[b,n,{layer.width}] outputs)", lines)


def attending() -> ModelProto:
    """Outputs (1, h, rows, c) of a query with as many rows, all keys and values (1, h, n, c), and a mask (rows, n)."""
    taken = "float[1,h,rows,c] query, float[1,h,n,c] key, float[1,h,n,c] value, bool[rows,n] mask"
    lines = [
        "key_turned = Transpose<perm = [0, 1, 3, 2]>(key)",
        "raw = MatMul(query, key_turned)",
        "lowest = Constant<value = float {-3.4e38}>()",
        "scores = Where(mask, raw, lowest)",
        "weights = Softmax<axis = -1>(scores)",
        "outputs = MatMul(weights, value)",
    ]
    return _parsed(f"({taken}) => (float[1,h,rows,c] outputs)", lines)


def _projected() -> list[str]:
    return ["all = MatMul(inputs, projections)", "query, key, value = Split<axis = 2>(all, thirds)"]


def _split(name: str, order: str) -> list[str]:
    return [f"{name}_heads = Reshape({name}, by_head)", f"{name}_split = Transpose<perm = [{order}]>({name}_heads)"]


def _model(layer: Layer, signature: str, lines: list[str]) -> ModelProto:
    query, key, value = layer.weights()
    size = layer.width // layer.heads
    constants: dict[str, Any] = {
        # What scores are scaled by is in the weights: one pass over a matrix of scores less.
        "projections": np.concatenate([query / np.sqrt(np.float32(size)), key, value], axis=1),
        "thirds": np.array([layer.width] * 3),
        "by_head": np.array([0, 0, layer.heads, size]),
        "flat": np.array([0, 0, layer.width]),
        "row_axes": np.array([1]),
        "head_axes": np.array([1, 2]),
    }
    model = _parsed(signature, lines)
    used = {name for node in model.graph.node for name in node.input}
    for name in sorted(used & constants.keys()):
        model.graph.initializer.append(numpy_helper.from_array(constants[name], name))
    onnx.checker.check_model(model)
    return model


def _parsed(signature: str, lines: list[str]) -> ModelProto:
    model: ModelProto = parser.parse_model(f"{_HEADER} attention {signature} {{ {' '.join(lines)} }}")
    return model
