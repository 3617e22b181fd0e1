"""The numbers of an encoder, from and to one safetensors file. Convention: y = x W + b."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from models import weights as layer_weights
from models.encoder_spec import EncoderSpec
from models.tensor_file import Forms, check_forms, numbers, read_tensors
from models.types import F32, Array
from models.weights import AttentionWeights


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, float32; d is embed_dim, m is intermediate_dim.

    Attributes:
        attention: with all its biases, `output` and `output_bias`.
        norm1, norm1_bias: of the normalisation after attention, (d,).
        feed_in, feed_in_bias: (d, m) and (m,), before the activation.
        feed_out, feed_out_bias: (m, d) and (d,), after it.
        norm2, norm2_bias: of the last normalisation, (d,).
    """

    attention: AttentionWeights
    norm1: F32
    norm1_bias: F32
    feed_in: F32
    feed_in_bias: F32
    feed_out: F32
    feed_out_bias: F32
    norm2: F32
    norm2_bias: F32

    def tensors(self) -> dict[str, F32]:
        """All of them by name, those of attention first."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "attention"}
        return self.attention.tensors() | own


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """A whole encoder, float32, C-contiguous; d is embed_dim.

    Attributes:
        word: (vocab_size, d).
        position: (position_offset + max_positions, d).
        token_type: (token_types, d), or None where there are no types.
        norm, norm_bias: of the normalisation of the embeddings' sum, (d,).
        layers: in the order they are applied.
    """

    word: F32
    position: F32
    token_type: F32 | None
    norm: F32
    norm_bias: F32
    layers: tuple[LayerWeights, ...]

    def tensors(self) -> dict[str, F32]:
        """The tensors that are there, by name: `word`, …, `layers.3.query`, …."""
        own = ("word", "position", "token_type", "norm", "norm_bias")
        found = {name: t for name in own if (t := getattr(self, name)) is not None}
        for i, layer in enumerate(self.layers):
            found |= {f"layers.{i}.{name}": tensor for name, tensor in layer.tensors().items()}
        return found

    def digest(self) -> str:
        """SHA-256 over names, shapes and bytes: equal numbers, equal digest."""
        sha = hashlib.sha256()
        for name, tensor in sorted(self.tensors().items()):
            sha.update(f"{name}{tensor.shape}".encode())
            sha.update(np.ascontiguousarray(tensor, "<f4").reshape(-1).data)
        return sha.hexdigest()


def shapes(spec: EncoderSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor a weights file for `spec` holds: all are needed."""
    d, m = spec.embed_dim, spec.intermediate_dim
    found: dict[str, tuple[int, ...]] = {
        "word": (spec.vocab_size, d),
        "position": (spec.position_offset + spec.max_positions, d),
        "norm": (d,),
        "norm_bias": (d,),
    }
    if spec.token_types:
        found["token_type"] = (spec.token_types, d)
    layer = layer_weights.shapes(spec.layer) | {
        "norm1": (d,),
        "norm1_bias": (d,),
        "feed_in": (d, m),
        "feed_in_bias": (m,),
        "feed_out": (m, d),
        "feed_out_bias": (d,),
        "norm2": (d,),
        "norm2_bias": (d,),
    }
    for i in range(spec.num_layers):
        found |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return found


def checked(spec: EncoderSpec, tensors: Mapping[str, Array], where: str) -> EncoderWeights:
    """The weights of an encoder from named tensors.

    Raises:
        InvalidModel: if a tensor is unknown, missing, of a wrong shape or dtype, or not finite; the message names it.
    """
    _check_forms(spec, {name: (t.shape, str(t.dtype)) for name, t in tensors.items()}, where)
    return _assembled(spec, {name: numbers(name, tensor, where) for name, tensor in tensors.items()})


def load(spec: EncoderSpec, path: Path) -> EncoderWeights:
    """Read a weights.safetensors: no number is read before the names, shapes and dtypes of all fit.

    Raises:
        InvalidModel: if the file is not safetensors, or does not fit `spec` (see `checked`).
    """
    tensors = read_tensors(path, lambda forms: _check_forms(spec, forms, path.name))
    return _assembled(spec, {name: numbers(name, tensor, path.name) for name, tensor in tensors.items()})


def save(weights: EncoderWeights, path: Path) -> None:
    """Write a weights.safetensors that `load` reads back bit by bit."""
    save_file(weights.tensors(), path)


def _check_forms(spec: EncoderSpec, forms: Forms, where: str) -> None:
    want = shapes(spec)
    check_forms(forms, want, want, spec.id, where)


def _assembled(spec: EncoderSpec, tensors: Mapping[str, F32]) -> EncoderWeights:
    attention, rest = layer_weights.shapes(spec.layer), {f.name for f in fields(LayerWeights)} - {"attention"}
    layers = tuple(
        LayerWeights(
            attention=AttentionWeights(**{name: tensors[f"layers.{i}.{name}"] for name in attention}),
            **{name: tensors[f"layers.{i}.{name}"] for name in rest},
        )
        for i in range(spec.num_layers)
    )
    return EncoderWeights(
        tensors["word"], tensors["position"], tensors.get("token_type"), tensors["norm"], tensors["norm_bias"], layers
    )
