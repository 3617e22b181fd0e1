"""Self-attention as a torch module: the names and the order of `models.reference`, batched, in float32."""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch's own documentation uses
from torch import Tensor, nn

from models.spec import AttentionSpec
from models.weights import AttentionWeights


class Intermediates(NamedTuple):
    """What an answer may hold, for b sequences of n tokens and h heads.

    Attributes:
        query, key: (b, h, n, head_dim).
        value: (b, h, n, value_dim).
        scores: scaled, biased and masked, (b, h, n, n).
        weights: (b, h, n, n).
        outputs: (b, n, h * value_dim).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scores: Tensor
    weights: Tensor
    outputs: Tensor


def split_heads(flat: Tensor, heads: int, group: int = 1) -> Tensor:
    """(b, n, heads * c) to (b, heads * group, n, c): each head repeated for the `group` query heads it serves."""
    if heads == group == 1:  # one head needs no transposition
        return flat.unsqueeze(-3)
    split = flat.reshape(*flat.shape[:-1], heads, -1)  # (b, n, heads, c)
    if group > 1:  # not repeat_interleave: exported, that reshapes with the tokens where `models.export` expects none
        split = torch.stack([split] * group, dim=-2).flatten(-3, -2)  # (b, n, heads * group, c)
    return split.transpose(-3, -2)


def merge_heads(split: Tensor) -> Tensor:
    """(b, h, n, c) to (b, n, h * c): the heads side by side."""
    return split.squeeze(-3) if split.shape[-3] == 1 else split.transpose(-3, -2).flatten(-2)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: Tensor, attn_mask: Tensor | None, attn_bias: Tensor | None
) -> Intermediates:
    """softmax(query keyᵀ * scale + bias) value, with zeros where a row may attend to nothing.

    Args:
        query: as in `Intermediates`.
        key: as in `Intermediates`.
        value: as in `Intermediates`.
        scale: factor of the scores, 0-d.
        attn_mask: (b, n, n) booleans, True = may attend, or None.
        attn_bias: (b, 1, n, n) or (b, h, n, n), added to the scaled scores, or None.
    """
    scores = query @ key.transpose(-1, -2) * scale  # (b, h, n, n)
    if attn_bias is not None:
        scores = scores + attn_bias
    if attn_mask is not None:
        keep = attn_mask.unsqueeze(-3)  # (b, 1, n, n)
        scores = torch.where(keep, scores, -torch.inf)
    weights = torch.softmax(scores, dim=-1)  # (b, h, n, n)
    if attn_mask is not None:
        weights = torch.where(keep, weights, 0.0)  # also turns the NaN of a row that sees nothing into 0
    outputs = merge_heads(weights @ value)  # (b, n, h * value_dim)
    return Intermediates(query, key, value, scores, weights, outputs)


class SelfAttention(nn.Module):
    """A layer of the repository."""

    def __init__(self, spec: AttentionSpec, weights: AttentionWeights) -> None:
        """Hold copies of `weights`; `spec` gives the sizes."""
        super().__init__()
        self.num_heads, self.kv_heads = spec.num_heads, spec.kv_heads
        for name in ("query", "key", "value"):
            matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
            # Not plain `query`: an ONNX graph uses a name once, and that is the output's.
            self.register_buffer(f"{name}_projection", torch.tensor(matrix))
            self.register_buffer(f"{name}_bias", None if bias is None else torch.tensor(bias))

    def project(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Token embeddings (b, n, embed_dim) to query, key and value (b, h, n, ·)."""
        group = self.num_heads // self.kv_heads
        return (
            split_heads(self._linear(inputs, "query"), self.num_heads),
            split_heads(self._linear(inputs, "key"), self.kv_heads, group),
            split_heads(self._linear(inputs, "value"), self.kv_heads, group),
        )

    def _linear(self, inputs: Tensor, name: str) -> Tensor:
        flat: Tensor = inputs @ getattr(self, f"{name}_projection")
        bias: Tensor | None = getattr(self, f"{name}_bias")
        return flat if bias is None else flat + bias

    def forward(
        self, inputs: Tensor, scale: Tensor, attn_mask: Tensor | None = None, attn_bias: Tensor | None = None
    ) -> Intermediates:
        """Every intermediate of (b, n, embed_dim) inputs; see `attend` for the rest."""
        return attend(*self.project(inputs), scale, attn_mask, attn_bias)


class Projections(nn.Module):
    """One head whose matrices come with the call: no bias, no state."""

    def forward(
        self,
        inputs: Tensor,
        scale: Tensor,
        query_projection: Tensor,
        key_projection: Tensor,
        value_projection: Tensor,
        attn_mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
    ) -> Intermediates:
        """Every intermediate of (b, n, d) inputs projected by (d, d_k), (d, d_k) and (d, d_v) matrices."""
        query, key, value = (
            split_heads(inputs @ matrix, 1) for matrix in (query_projection, key_projection, value_projection)
        )
        return attend(query, key, value, scale, attn_mask, attn_bias)


def fused_outputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    attn_mask: Tensor | None,
    attn_bias: Tensor | None,
    *,
    is_causal: bool,
) -> Tensor:
    """Outputs alone, (b, n, h * value_dim), without ever holding an (n, n) matrix of scores.

    Takes what `attend` takes; `is_causal` excludes a mask and a bias. A row that sees nothing is unspecified: the
    caller makes it zero.
    """
    extra = attn_bias
    if attn_mask is not None:
        keep = attn_mask.unsqueeze(-3)
        extra = keep if attn_bias is None else torch.where(keep, attn_bias, -torch.inf)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=extra, is_causal=is_causal, scale=scale)
    return merge_heads(mixed)
