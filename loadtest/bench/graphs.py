"""The same layers as plain ONNX graphs: what raw ONNX Runtime is timed with, and what other servers serve."""

from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper, parser

from loadtest.bench.work import Layer

_HEADER = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>'
_OPERATOR_HEADER = '<ir_version: 10, opset_import: ["" : 23]>'


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


def by_operator(layer: Layer, *, weights: bool) -> ModelProto:
    """The same by ONNX's own operator for attention; outputs come alone unless `weights` says otherwise."""
    attributes = f"q_num_heads = {layer.heads}, kv_num_heads = {layer.heads}, scale = 1.0, qk_matmul_output_mode = 3"
    made = 'outputs, "", "", weights' if weights else "outputs"
    lines = [*_projected(), f"{made} = Attention<{attributes}>(query, key, value)"]
    given = f"float[b,n,{layer.width}] outputs" + (f", float[b,{layer.heads},n,n] weights" if weights else "")
    return _model(layer, f"(float[b,n,{layer.width}] inputs) => ({given})", lines, _OPERATOR_HEADER)


def projection(layer: Layer, name: str) -> ModelProto:
    """One of `query`, `key` and `value`, (b, heads, n, size) or of one head (b, n, size), of inputs (b, n, width)."""
    if layer.heads == 1:
        signature = f"(float[b,n,{layer.width}] inputs) => (float[b,n,{layer.width}] {name})"
        return _model(layer, signature, [f"{name} = MatMul(inputs, {name}_projection)"])
    lines = [
        f"joined = MatMul(inputs, {name}_projection)",
        "by_token = Reshape(joined, by_head)",
        f"{name} = Transpose<perm = [0, 2, 1, 3]>(by_token)",
    ]
    given = f"float[b,{layer.heads},n,{layer.width // layer.heads}] {name}"
    return _model(layer, f"(float[b,n,{layer.width}] inputs) => ({given})", lines)


def tile(*, weights: bool, fused: bool) -> ModelProto:
    """Outputs (1, rows, c), and weights (1, rows, n) if wanted, of a head's query (1, rows, c), and key and value.

    Args:
        weights: whether they are wanted.
        fused: whether outputs alone are made by the kernel of ONNX Runtime that holds no matrix of scores.
    """
    taken = "float[1,rows,c] query, float[1,n,c] key, float[1,n,c] value"
    if fused and not weights:
        lines = ["outputs = com.microsoft.MultiHeadAttention<num_heads = 1, scale = 1.0>(query, key, value)"]
        return _parsed(f"({taken}) => (float[1,rows,c] outputs)", lines)
    lines = [
        "key_turned = Transpose<perm = [0, 2, 1]>(key)",
        "scores = MatMul(query, key_turned)",
        "weights = Softmax<axis = -1>(scores)",
        "outputs = MatMul(weights, value)",
    ]
    given = "float[1,rows,c] outputs" + (", float[1,rows,n] weights" if weights else "")
    return _parsed(f"({taken}) => ({given})", lines)


def _projected() -> list[str]:
    return ["all = MatMul(inputs, projections)", "query, key, value = Split<axis = 2>(all, thirds)"]


def _split(name: str, order: str) -> list[str]:
    return [f"{name}_heads = Reshape({name}, by_head)", f"{name}_split = Transpose<perm = [{order}]>({name}_heads)"]


def _model(layer: Layer, signature: str, lines: list[str], header: str = _HEADER) -> ModelProto:
    query, key, value = layer.weights()
    size = layer.width // layer.heads
    query = query / np.sqrt(np.float32(size))  # what scores are scaled by: one pass over a matrix of scores less
    constants: dict[str, Any] = {
        "projections": np.concatenate([query, key, value], axis=1),
        "query_projection": query,
        "key_projection": key,
        "value_projection": value,
        "thirds": np.array([layer.width] * 3),
        "by_head": np.array([0, 0, layer.heads, size]),
        "flat": np.array([0, 0, layer.width]),
        "row_axes": np.array([1]),
        "head_axes": np.array([1, 2]),
    }
    model = _parsed(signature, lines, header)
    used = {name for node in model.graph.node for name in node.input}
    for name in sorted(used & constants.keys()):
        model.graph.initializer.append(numpy_helper.from_array(constants[name], name))
    onnx.checker.check_model(model)
    return model


def _parsed(signature: str, lines: list[str], header: str = _HEADER) -> ModelProto:
    model: ModelProto = parser.parse_model(f"{header} attention {signature} {{ {' '.join(lines)} }}")
    return model
