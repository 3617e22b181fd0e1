"""An encoder as a torch module: the names and the order of `models.encoder_reference`, batched.

Dtypes are as in `models.eager`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch's own documentation uses
from torch import Tensor, nn

from models.eager import Intermediates, SelfAttention, product
from models.encoder_spec import Activation, EncoderSpec
from models.encoder_weights import EncoderWeights, LayerWeights
from models.types import ALL_TENSOR_NAMES

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Layer(nn.Module):
    """One layer: attention and what follows it."""

    feed_in: Tensor
    feed_in_bias: Tensor
    feed_out: Tensor
    feed_out_bias: Tensor

    def __init__(self, spec: EncoderSpec, weights: LayerWeights, dtype: torch.dtype) -> None:
        """Hold copies of `weights`; products are computed in `dtype`."""
        super().__init__()
        self.attention = SelfAttention(spec.layer, weights.attention, dtype)
        self.eps, self.activation = spec.layer_norm_eps, ACTIVATIONS[spec.activation]
        for name in weights.tensors().keys() - weights.attention.tensors().keys():
            tensor = torch.tensor(getattr(weights, name))
            self.register_buffer(name, tensor.to(dtype) if name in ("feed_in", "feed_out") else tensor)

    def feed(self, hidden: Tensor, found: Intermediates) -> Tensor:
        """What the next layer is given, (b, n, embed_dim), from what this one was given and what attention found."""
        assert found.projected is not None, "every layer of an encoder has an output projection"
        attended = self._norm(hidden + found.projected, "norm1")
        dtype = self.attention.dtype
        inner = self.activation(product(attended, self.feed_in, dtype) + self.feed_in_bias)  # (b, n, intermediate_dim)
        return self._norm(attended + (product(inner, self.feed_out, dtype) + self.feed_out_bias), "norm2")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.get_buffer(name), self.get_buffer(f"{name}_bias"), self.eps)


class Encoder(nn.Module):
    """A stack of layers over token ids. All sequences of a batch have one length: no mask, no padding."""

    scale: Tensor
    word: Tensor
    position: Tensor
    token_type: Tensor | None

    def __init__(self, spec: EncoderSpec, weights: EncoderWeights, dtype: torch.dtype = torch.float32) -> None:
        """Hold copies of `weights`; `spec` gives the sizes; products are computed in `dtype`."""
        super().__init__()
        self.position_offset, self.eps = spec.position_offset, spec.layer_norm_eps
        self.register_buffer("scale", torch.tensor(spec.layer.effective_scale, dtype=torch.float32))
        for name in ("word", "position", "token_type", "norm", "norm_bias"):
            tensor = getattr(weights, name)
            self.register_buffer(name, None if tensor is None else torch.tensor(tensor))
        self.layers = nn.ModuleList(Layer(spec, layer, dtype) for layer in weights.layers)

    def _stack(self) -> list[Layer]:
        return cast(list[Layer], list(self.layers))

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids (b, n) to what the first layer is given, (b, n, embed_dim)."""
        # Counted from the ids, not from their shape: a graph for a GPU would have to ask the CPU for that.
        places = (ids[0] * 0 + 1).cumsum(0) - 1 + self.position_offset  # (n,)
        x = F.embedding(ids, self.word)
        if self.token_type is not None:
            x = x + self.token_type[0]
        x = x + F.embedding(places, self.position)
        return F.layer_norm(x, x.shape[-1:], self.get_buffer("norm"), self.get_buffer("norm_bias"), self.eps)

    def intermediates(self, ids: Tensor) -> Iterator[Intermediates]:
        """What attention does in each layer, one after the other: a layer is computed when it is asked for."""
        hidden = self.embed(ids)
        for i, layer in enumerate(self._stack()):
            found: Intermediates = layer.attention(hidden, self.scale)
            yield found
            if i + 1 < len(self.layers):
                hidden = layer.feed(hidden, found)

    def hidden_states(self, ids: Tensor) -> list[Tensor]:
        """The embeddings and what each layer makes of them, num_layers + 1 times (b, n, embed_dim)."""
        states = [self.embed(ids)]
        for layer in self._stack():
            states.append(layer.feed(states[-1], layer.attention(states[-1], self.scale)))
        return states

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Every tensor of every layer for token ids (b, n) int64, in the order of `encoder_tensor_names`."""
        return tuple(getattr(found, name) for found in self.intermediates(ids) for name in ALL_TENSOR_NAMES)
