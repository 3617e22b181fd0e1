"""Self-attention in NumPy float64, every intermediate kept: the oracle of all backends and the tutor's source."""

from dataclasses import dataclass, replace

import numpy as np

from models.errors import ShapeMismatch
from models.masks import visible
from models.positions import alibi_slopes, distances, relative_bias, rotate
from models.spec import Alibi, AttentionSpec, QueryKeyNorm, Relative, Rope
from models.types import F32, F64, Array, Bool
from models.weights import AttentionWeights


@dataclass(frozen=True, slots=True)
class Trace:
    """Every intermediate of one sequence, float64; h heads, n tokens.

    Attributes:
        query, key: (h, n, head_dim), normalised and rotated where the layer does that. A key head shared by several
            query heads is repeated for each.
        value: (h, n, value_dim), repeated likewise.
        raw_scores: query keyᵀ, (h, n, n).
        scaled_scores: raw_scores * scale, soft-capped where the layer is, plus biases where there are some, (h, n, n).
        masked_scores: scaled_scores with -inf where a row may not attend, (h, n, n); the contract's `scores`.
        softmax_max: the largest masked score of a row, 0 for a row that sees nothing, (h, n, 1).
        softmax_exp: exp(masked_scores - softmax_max), (h, n, n).
        softmax_sum: row sums of softmax_exp, (h, n, 1).
        weights: softmax_exp / softmax_sum; zeros for a row that sees nothing, (h, n, n).
        outputs: weights value, the heads side by side, (n, h * value_dim).
        projected: outputs W_o + b_o, (n, embed_dim), of a layer with an output projection.
    """

    query: F64
    key: F64
    value: F64
    raw_scores: F64
    scaled_scores: F64
    masked_scores: F64
    softmax_max: F64
    softmax_exp: F64
    softmax_sum: F64
    weights: F64
    outputs: F64
    projected: F64 | None = None

    def tensor(self, name: str) -> F64:
        """The contract's tensor of that name; per-head ones keep their axis of heads."""
        value: F64 = getattr(self, "masked_scores" if name == "scores" else name)
        return value


def attention(
    query: F64,
    key: F64,
    value: F64,
    *,
    attn_mask: Bool | None = None,
    attn_bias: Array | None = None,
    is_causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    logit_softcap: float | None = None,
    position_bias: Array | None = None,
) -> Trace:
    """Attend from `query` to `key` and mix `value`.

    softmax(query keyᵀ * scale + bias) value, with the row maximum subtracted before `exp` so that large scores cannot
    overflow. A row that may attend to nothing has zero weights and a zero output.

    Args:
        query: (h, n, head_dim).
        key: (h, n, head_dim).
        value: (h, n, value_dim).
        attn_mask: (n, n) booleans, True = may attend.
        attn_bias: (n, n) or (h, n, n), added to the scaled scores.
        is_causal: row i sees columns 0..i only.
        window: row i sees columns less than this many tokens away only, itself counted.
        scale: factor of the scores; default 1/sqrt(head_dim).
        logit_softcap: scaled scores become cap * tanh(scores / cap), before any bias.
        position_bias: (h, n, n), added like `attn_bias`.

    Returns:
        A `Trace`; each row of `weights` sums to 1 within 1e-12, or is all zeros.

    Raises:
        ShapeMismatch: if the tensors do not fit one another.

    Source:
        Vaswani et al. 2017, equation 1, arXiv:1706.03762.
    """
    heads, n, head_dim = query.shape
    if key.shape != (heads, n, head_dim) or value.shape[:2] != (heads, n):
        raise ShapeMismatch(f"query {query.shape}, key {key.shape} and value {value.shape} do not fit one another")
    if attn_mask is not None and attn_mask.shape != (n, n):
        raise ShapeMismatch(f"attn_mask has shape {attn_mask.shape}, expected {(n, n)}")
    if attn_bias is not None and attn_bias.shape not in ((n, n), (heads, n, n)):
        raise ShapeMismatch(f"attn_bias has shape {attn_bias.shape}, expected {(n, n)} or {(heads, n, n)}")
    keep = visible(n, attn_mask, is_causal=is_causal, window=window)
    raw_scores = query @ key.swapaxes(-1, -2)  # (h, n, n)
    scaled_scores = raw_scores * (1 / np.sqrt(head_dim) if scale is None else scale)  # (h, n, n)
    if logit_softcap is not None:
        scaled_scores = logit_softcap * np.tanh(scaled_scores / logit_softcap)  # (h, n, n)
    for bias in (position_bias, attn_bias):
        if bias is not None:
            scaled_scores = scaled_scores + bias  # (h, n, n)
    masked_scores = scaled_scores if keep is None else np.where(keep, scaled_scores, -np.inf)  # (h, n, n)
    row_max = masked_scores.max(axis=-1, keepdims=True)  # (h, n, 1)
    softmax_max = np.where(np.isneginf(row_max), 0.0, row_max)  # (h, n, 1)
    softmax_exp = np.exp(masked_scores - softmax_max)  # (h, n, n)
    softmax_sum = softmax_exp.sum(axis=-1, keepdims=True)  # (h, n, 1)
    weights = softmax_exp / np.where(softmax_sum == 0, 1.0, softmax_sum)  # (h, n, n)
    mixed = weights @ value  # (h, n, value_dim)
    outputs = mixed.swapaxes(0, 1).reshape(n, heads * value.shape[-1])  # (n, h * value_dim)
    return Trace(
        query,
        key,
        value,
        raw_scores,
        scaled_scores,
        masked_scores,
        softmax_max,
        softmax_exp,
        softmax_sum,
        weights,
        outputs,
    )


def _heads(x: F64, matrix: F32, bias: F32 | None, heads: int) -> F64:
    """X W + b, split into heads: (n, d) to (heads, n, columns / heads)."""
    return _linear(x, matrix, bias).reshape(len(x), heads, -1).swapaxes(0, 1)


def _linear(x: F64, matrix: F32, bias: F32 | None) -> F64:
    """X W + b."""
    flat: F64 = x @ matrix.astype(np.float64)
    return flat if bias is None else flat + bias


def _normalised(x: F64, norm: QueryKeyNorm, weight: F32 | None) -> F64:
    """X over its root mean square, times `weight`: (heads, n, head_dim) to the same."""
    assert weight is not None, "the weights were checked against the spec"
    axes = -1 if norm.scope == "head" else (0, 2)
    square = (x * x).mean(axis=axes, keepdims=True)
    by_head = weight if norm.scope == "head" else weight.reshape(len(x), 1, -1)
    normalised: F64 = x / np.sqrt(square + norm.eps) * by_head
    return normalised


def _position_bias(spec: AttentionSpec, weights: AttentionWeights, n: int) -> F64 | None:
    """What the position scheme adds to the scores, (h, n, n), or None."""
    gaps = distances(n)  # (n, n)
    if isinstance(spec.position, Alibi):
        loss: F64 = alibi_slopes(spec.num_heads)[:, None, None] * np.abs(gaps)
        return -loss
    if isinstance(spec.position, Relative):
        assert weights.relative_bias is not None, "the weights were checked against the spec"
        most = spec.position.max_distance
        by_distance = relative_bias(spec.position, weights.relative_bias)  # (2 * most + 1, h)
        bias: F64 = by_distance[np.clip(gaps, -most, most) + most].transpose(2, 0, 1).astype(np.float64)
        return bias
    return None


def self_attention(
    inputs: Array,
    weights: AttentionWeights,
    spec: AttentionSpec,
    *,
    attn_mask: Bool | None = None,
    attn_bias: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Trace:
    """Project `inputs` to queries, keys and values, then attend.

    Args:
        inputs: token embeddings, (n, embed_dim), n >= 1.
        weights: the layer's matrices.
        spec: the layer's sizes; its causality holds even if `is_causal` is false.
        attn_mask: see `attention`.
        attn_bias: see `attention`.
        is_causal: see `attention`.
        scale: factor of the scores; default `spec.effective_scale`.

    Raises:
        ShapeMismatch: if `inputs` is not (n, embed_dim) with n >= 1, or mask and bias do not fit it.
    """
    if inputs.ndim != 2 or inputs.shape[1] != spec.embed_dim or not len(inputs):
        raise ShapeMismatch(f"inputs have shape {inputs.shape}, expected (n >= 1, {spec.embed_dim})")
    x = inputs.astype(np.float64)
    query = _heads(x, weights.query, weights.query_bias, spec.num_heads)
    key = _heads(x, weights.key, weights.key_bias, spec.kv_heads)
    value = _heads(x, weights.value, weights.value_bias, spec.kv_heads)
    if (norm := spec.query_key_norm) is not None:
        query, key = _normalised(query, norm, weights.query_norm), _normalised(key, norm, weights.key_norm)
    if isinstance(spec.position, Rope):
        query, key = rotate(query, spec.position), rotate(key, spec.position)
    group = spec.num_heads // spec.kv_heads
    trace = attention(
        query,
        key.repeat(group, axis=0),
        value.repeat(group, axis=0),
        attn_mask=attn_mask,
        attn_bias=attn_bias,
        is_causal=is_causal or spec.is_causal,
        window=spec.window,
        scale=spec.effective_scale if scale is None else scale,
        logit_softcap=spec.logit_softcap,
        position_bias=_position_bias(spec, weights, len(x)),
    )
    if weights.output is None:
        return trace
    return replace(trace, projected=_linear(trace.outputs, weights.output, weights.output_bias))
