"""An encoder in NumPy float64: the oracle of all backends. Each layer's attention is `models.reference`'s."""

import math
from collections.abc import Iterator

import numpy as np

from models.encoder_spec import Activation, EncoderSpec, checked_ids
from models.encoder_weights import EncoderWeights, LayerWeights
from models.reference import Trace, self_attention
from models.types import F32, F64, I64, Array

_erf = np.vectorize(math.erf, otypes=[np.float64])


def encode(ids: Array, spec: EncoderSpec, weights: EncoderWeights) -> list[Trace]:
    """What attention does in every layer.

    Args:
        ids: token ids, (n,) integers, 1 <= n <= max_positions.
        spec: the encoder's sizes.
        weights: its numbers.

    Returns:
        One `Trace` per layer, `projected` included.

    Raises:
        ShapeMismatch, InvalidInput: see `models.encoder_spec.checked_ids`.

    Source:
        Devlin et al. 2019, arXiv:1810.04805.
    """
    return [trace for trace, _ in _layers(embedded(checked_ids(ids, spec), spec, weights), spec, weights)]


def hidden_states(ids: Array, spec: EncoderSpec, weights: EncoderWeights) -> list[F64]:
    """The embeddings and what each layer makes of them, num_layers + 1 times (n, embed_dim); see `encode`."""
    first = embedded(checked_ids(ids, spec), spec, weights)
    return [first, *(hidden for _, hidden in _layers(first, spec, weights))]


def embedded(ids: I64, spec: EncoderSpec, weights: EncoderWeights) -> F64:
    """What the first layer is given, (n, embed_dim): words, type 0 and positions, every token counted."""
    places = spec.position_offset + np.arange(len(ids))  # (n,)
    x = weights.word[ids].astype(np.float64)  # (n, d)
    if weights.token_type is not None:
        x = x + weights.token_type[0]
    return layer_norm(x + weights.position[places], weights.norm, weights.norm_bias, spec.layer_norm_eps)


def _layers(hidden: F64, spec: EncoderSpec, weights: EncoderWeights) -> Iterator[tuple[Trace, F64]]:
    """Each layer's attention, and the hidden states it leaves to the next, (n, embed_dim)."""
    attention = spec.layer
    for layer in weights.layers:
        trace = self_attention(hidden, layer.attention, attention)
        assert trace.projected is not None, "every layer of an encoder has an output projection"
        hidden = _fed(hidden, trace.projected, layer, spec)
        yield trace, hidden


def _fed(hidden: F64, projected: F64, layer: LayerWeights, spec: EncoderSpec) -> F64:
    """All of a layer that comes after attention, (n, embed_dim)."""
    eps = spec.layer_norm_eps
    attended = layer_norm(hidden + projected, layer.norm1, layer.norm1_bias, eps)  # (n, d)
    inner = activated(attended @ layer.feed_in.astype(np.float64) + layer.feed_in_bias, spec.activation)  # (n, m)
    outer = inner @ layer.feed_out.astype(np.float64) + layer.feed_out_bias  # (n, d)
    return layer_norm(attended + outer, layer.norm2, layer.norm2_bias, eps)


def layer_norm(x: F64, weight: F32, bias: F32, eps: float) -> F64:
    """Rows shifted to mean 0 and scaled to variance 1, times `weight` plus `bias`, (n, d).

    Source:
        Ba et al. 2016, arXiv:1607.06450.
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    normalised: F64 = centred / np.sqrt(variance + eps) * weight + bias
    return normalised


def activated(x: F64, activation: Activation) -> F64:
    """The activation of every number.

    Source:
        Hendrycks and Gimpel 2016, arXiv:1606.08415, for both kinds of `gelu`.
    """
    match activation:
        case "relu":
            found: F64 = np.maximum(x, 0.0)
        case "gelu":
            found = x / 2 * (1 + _erf(x / math.sqrt(2)))
        case "gelu_tanh":
            found = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return found
