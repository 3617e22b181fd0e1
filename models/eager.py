"""Self-attention as a torch module: the names and the order of `models.reference`, batched.

All is float32, but the products, where a layer is made with another dtype: their operands are rounded to that, and so
is each result, once it has been summed in float32 where the device does so. Softmax, biases, norms and rotations stay
float32, and so does what is answered.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch's own documentation uses
from torch import Tensor, nn

from models.positions import alibi_slopes, dynamic_powers, relative_bias, rope_frequencies, rope_growth
from models.spec import Alibi, AttentionSpec, DynamicScaling, LongropeScaling, Relative, Rope
from models.weights import AttentionWeights


class Intermediates(NamedTuple):
    """What an answer may hold, for b sequences of n tokens and h heads.

    Attributes:
        query, key: (b, h, n, head_dim).
        value: (b, h, n, value_dim).
        scores: scaled, biased and masked, (b, h, n, n).
        weights: (b, h, n, n).
        outputs: (b, n, h * value_dim).
        projected: (b, n, embed_dim) of a layer with an output projection, or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scores: Tensor
    weights: Tensor
    outputs: Tensor
    projected: Tensor | None = None


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


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An operand of a product, rounded to float16 or bfloat16, or as it is for float32.

    What is too large becomes NaN, not infinity, of which a softmax would make a weight of 0.
    """
    if dtype in (torch.float32, x.dtype):
        return x
    low = x.to(dtype)
    return low.masked_fill(low.isinf(), torch.nan)


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of matrices, in the dtype of `a`, computed in `dtype`; see `rounded`."""
    return a @ b if dtype == torch.float32 else (rounded(a, dtype) @ rounded(b, dtype)).to(a.dtype)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Tensor,
    attn_mask: Tensor | None,
    attn_bias: Tensor | None,
    *,
    logit_softcap: float | None = None,
    position_bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Intermediates:
    """softmax(query keyᵀ * scale + bias) value, with zeros where a row may attend to nothing.

    Args:
        query: as in `Intermediates`.
        key: as in `Intermediates`.
        value: as in `Intermediates`.
        scale: factor of the scores, 0-d.
        attn_mask: (b, n, n) booleans, True = may attend, or None.
        attn_bias: (b, 1, n, n) or (b, h, n, n), added to the scaled scores, or None.
        logit_softcap: scaled scores become cap * tanh(scores / cap), before any bias.
        position_bias: (h, n, n), added likewise, or None.
        dtype: of the products.
    """
    scores = product(query * scale, key.transpose(-1, -2), dtype)  # (b, h, n, n); scaled before it is so large
    if logit_softcap is not None:
        scores = torch.tanh(scores / logit_softcap) * logit_softcap
    if position_bias is not None:
        scores = scores + position_bias
    if attn_bias is not None:
        scores = scores + attn_bias
    if attn_mask is not None:
        keep = attn_mask.unsqueeze(-3)  # (b, 1, n, n)
        scores = torch.where(keep, scores, -torch.inf)
    weights = torch.softmax(scores, dim=-1)  # (b, h, n, n)
    if attn_mask is not None:
        weights = torch.where(keep, weights, 0.0)  # also turns the NaN of a row that sees nothing into 0
    outputs = merge_heads(product(weights, value, dtype))  # (b, n, h * value_dim)
    return Intermediates(query, key, value, scores, weights, outputs)


class SelfAttention(nn.Module):
    """A layer of the repository."""

    def __init__(self, spec: AttentionSpec, weights: AttentionWeights, dtype: torch.dtype = torch.float32) -> None:
        """Hold copies of `weights`; `spec` gives the sizes and the scheme; products are computed in `dtype`."""
        super().__init__()
        self.dtype = dtype
        self.num_heads, self.kv_heads = spec.num_heads, spec.kv_heads
        self.logit_softcap, self.position, self.norm = spec.logit_softcap, spec.position, spec.query_key_norm
        self.plain_scores = spec.plain_scores
        for name in ("query", "key", "value", "output"):
            matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
            # Not plain `query`: an ONNX graph uses a name once, and that is the output's.
            self._hold(f"{name}_projection", None if matrix is None else torch.tensor(matrix).to(dtype))
            self._hold(f"{name}_bias", None if bias is None else torch.tensor(bias))
        for name in ("query", "key"):
            weight = getattr(weights, f"{name}_norm")
            self._hold(f"{name}_norm", None if weight is None else torch.tensor(weight))
        match spec.position:
            case Rope() as rope:
                self.growth = rope_growth(rope)
                width = spec.head_dim if rope.rotary_dim is None else rope.rotary_dim
                # float64: angles grow with n
                self.register_buffer("frequencies", torch.tensor(rope_frequencies(rope, spec.head_dim, 1)))
                if isinstance(rope.scaling, DynamicScaling):
                    self.register_buffer("powers", torch.tensor(dynamic_powers(width)))
                elif isinstance(rope.scaling, LongropeScaling):
                    beyond = rope_frequencies(rope, spec.head_dim, rope.scaling.original_max_positions + 1)
                    self.register_buffer("long_frequencies", torch.tensor(beyond))
            case Alibi():
                slopes = -alibi_slopes(spec.num_heads)[:, None, None]
                self.register_buffer("slopes", torch.tensor(slopes, dtype=torch.float32))
            case Relative() as relative:
                assert weights.relative_bias is not None, "the weights were checked against the spec"
                by_distance = relative_bias(relative, weights.relative_bias)  # (2 * max_distance + 1, h)
                self.register_buffer("by_distance", torch.tensor(by_distance))

    def _hold(self, name: str, tensor: Tensor | None) -> None:
        """Register a buffer; None as an attribute: `torch.export` counts buffers that are None, and then fails."""
        if tensor is None:
            setattr(self, name, None)
        else:
            self.register_buffer(name, tensor)

    def project(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Token embeddings (b, n, embed_dim) to query, key and value (b, h, n, ·), normalised and rotated."""
        group = self.num_heads // self.kv_heads
        query, key = self._linear(inputs, "query"), self._linear(inputs, "key")
        if self.norm is not None and self.norm.scope == "all":
            query, key = self._normalised(query, "query"), self._normalised(key, "key")
        query, key = split_heads(query, self.num_heads), split_heads(key, self.kv_heads, group)
        if self.norm is not None and self.norm.scope == "head":
            query, key = self._normalised(query, "query"), self._normalised(key, "key")
        if isinstance(self.position, Rope):
            cos, sin = self._rotations(inputs)
            query, key = _rotate(query, cos, sin, self.position), _rotate(key, cos, sin, self.position)
        return query, key, split_heads(self._linear(inputs, "value"), self.kv_heads, group)

    def _linear(self, inputs: Tensor, name: str) -> Tensor:
        flat = product(inputs, getattr(self, f"{name}_projection"), self.dtype)
        bias: Tensor | None = getattr(self, f"{name}_bias")
        return flat if bias is None else flat + bias

    def _normalised(self, x: Tensor, name: str) -> Tensor:
        assert self.norm is not None
        weight: Tensor = getattr(self, f"{name}_norm")
        return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + self.norm.eps) * weight

    def _rotations(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each token's angles, (n, rotary_dim / 2), float32 of float64 angles."""
        places = _places(inputs)
        angles = places.unsqueeze(-1) * self._frequencies(places[-1:] + 1)
        return (torch.cos(angles) * self.growth).to(inputs.dtype), (torch.sin(angles) * self.growth).to(inputs.dtype)

    def _frequencies(self, n: Tensor) -> Tensor:
        """Radians per token of each pair, (rotary_dim / 2,), for n tokens, (1,)."""
        assert isinstance(self.position, Rope)
        frequencies: Tensor = self.get_buffer("frequencies")
        match self.position.scaling:
            case DynamicScaling(factor=factor, original_max_positions=context):
                longer: Tensor = (n * (factor / context) - (factor - 1)).clamp(min=1.0)
                return frequencies * longer ** self.get_buffer("powers")
            case LongropeScaling(original_max_positions=context):
                return torch.where(n > context, self.get_buffer("long_frequencies"), frequencies)
            case _:
                return frequencies

    def project_outputs(self, outputs: Tensor) -> Tensor:
        """The outputs (b, n, h * value_dim) after the output projection, (b, n, embed_dim), of a layer that has one."""
        return self._linear(outputs, "output")

    def position_bias(self, inputs: Tensor) -> Tensor | None:
        """What the position scheme adds to the scores, (h, n, n), or None."""
        if not isinstance(self.position, (Alibi, Relative)):
            return None
        places = _places(inputs)
        gaps = places.unsqueeze(0) - places.unsqueeze(1)  # (n, n), column minus row
        if isinstance(self.position, Alibi):
            return self.get_buffer("slopes") * gaps.abs().to(inputs.dtype)
        most = self.position.max_distance
        index = (gaps.clamp(-most, most) + most).to(torch.int64)
        return self.get_buffer("by_distance")[index].permute(2, 0, 1)

    def forward(
        self, inputs: Tensor, scale: Tensor, attn_mask: Tensor | None = None, attn_bias: Tensor | None = None
    ) -> Intermediates:
        """Every intermediate of (b, n, embed_dim) inputs; see `attend` for the rest."""
        found = attend(
            *self.project(inputs),
            scale,
            attn_mask,
            attn_bias,
            logit_softcap=self.logit_softcap,
            position_bias=self.position_bias(inputs),
            dtype=self.dtype,
        )
        if self.output_projection is None:
            return found
        return found._replace(projected=self.project_outputs(found.outputs))


def _places(inputs: Tensor) -> Tensor:
    """0, 1, … n - 1 for (b, n, d) inputs, float64.

    Counted from the inputs' own numbers, not from their shape: an exporter takes a length from whichever input it
    likes, and `models.graphs` takes masks and biases out.
    """
    return (inputs[0, :, 0] * 0 + 1).to(torch.float64).cumsum(0) - 1


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, rope: Rope) -> Tensor:
    """Turn pairs of (b, h, n, head_dim) by angles given as (n, rotary_dim / 2); see `models.positions.rotate`."""
    half = cos.shape[-1]
    turning, rest = x[..., : 2 * half], x[..., 2 * half :]
    if rope.pairing == "half":
        first, second = turning[..., :half], turning[..., half:]
    else:
        first, second = turning[..., 0::2], turning[..., 1::2]
    turned = (first * cos - second * sin, second * cos + first * sin)
    if rope.pairing == "half":
        return torch.cat((*turned, rest), dim=-1)
    return torch.cat((torch.stack(turned, dim=-1).flatten(-2), rest), dim=-1)


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
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Outputs alone, (b, n, h * value_dim), without ever holding an (n, n) matrix of scores.

    Takes what `attend` takes; `is_causal` excludes a mask and a bias. A row that sees nothing is unspecified: the
    caller makes it zero. Where scores might overflow all outputs of the sequence are NaN: the kernel takes a row of
    nothing but -inf for one that sees nothing, and gives zeros. With a bias, which may be beyond any smaller dtype, it
    is computed in float32, whatever `dtype` says.
    """
    if attn_bias is not None:
        dtype = torch.float32
    extra = attn_bias
    if attn_mask is not None:
        keep = attn_mask.unsqueeze(-3)
        extra = keep if attn_bias is None else torch.where(keep, attn_bias, -torch.inf)
    q, k, v = (rounded(tensor, dtype) for tensor in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=extra, is_causal=is_causal, scale=scale)
    # (b, 1, 1, 1) each; NaN where a number is too large for `dtype`, and then no bound holds
    largest = [tensor.abs().amax(dim=(-3, -2, -1), keepdim=True).to(query.dtype) for tensor in (q, k)]
    bound = largest[0] * scale * query.shape[-1] * largest[1]  # no score is larger
    return merge_heads(torch.where(bound <= torch.finfo(bound.dtype).max, mixed.to(query.dtype), torch.nan))
