"""The numbers of a layer: from a seed, from a spec, or from safetensors. Convention: y = x W + b."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from models.errors import InvalidModel
from models.spec import AttentionSpec, Relative
from models.tensor_file import Forms, check_forms, numbers, read_tensors
from models.types import ALL_TENSOR_NAMES, F32, TENSOR_NAMES, Array, TensorName


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Projection matrices and biases of a layer, float32, C-contiguous.

    Attributes:
        query: (embed_dim, num_heads * head_dim).
        key: (embed_dim, num_kv_heads * head_dim).
        value: (embed_dim, num_kv_heads * value_dim).
        query_bias, key_bias, value_bias: (columns of their matrix,), or None.
        query_norm, key_norm: weights of `spec.query_key_norm`, (head_dim,) or (columns of the matrix,), or None.
        relative_bias: bias by bucket of distances, (num_buckets, num_heads), or None.
        output, output_bias: (num_heads * value_dim, embed_dim) and (embed_dim,), or None. They make `projected`;
            `outputs` are the heads' values side by side.
    """

    query: F32
    key: F32
    value: F32
    query_bias: F32 | None = None
    key_bias: F32 | None = None
    value_bias: F32 | None = None
    query_norm: F32 | None = None
    key_norm: F32 | None = None
    relative_bias: F32 | None = None
    output: F32 | None = None
    output_bias: F32 | None = None

    def tensors(self) -> dict[str, F32]:
        """The tensors that are there, by name."""
        return {f.name: t for f in fields(self) if (t := getattr(self, f.name)) is not None}

    @property
    def tensor_names(self) -> tuple[TensorName, ...]:
        """The tensors that the layer can answer with."""
        return TENSOR_NAMES if self.output is None else ALL_TENSOR_NAMES

    def digest(self) -> str:
        """SHA-256 over names, shapes and bytes: equal numbers, equal digest."""
        sha = hashlib.sha256()
        for name, tensor in sorted(self.tensors().items()):
            sha.update(f"{name}{tensor.shape}".encode())
            sha.update(np.ascontiguousarray(tensor, "<f4").tobytes())
        return sha.hexdigest()


def shapes(spec: AttentionSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor a weights file for `spec` may hold."""
    q, k, v = spec.num_heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.v_dim
    found: dict[str, tuple[int, ...]] = {
        "query": (spec.embed_dim, q),
        "key": (spec.embed_dim, k),
        "value": (spec.embed_dim, v),
        "query_bias": (q,),
        "key_bias": (k,),
        "value_bias": (v,),
        "output": (spec.output_dim, spec.embed_dim),
        "output_bias": (spec.embed_dim,),
    }
    if spec.query_key_norm is not None:
        whole = spec.query_key_norm.scope == "all"
        found |= {"query_norm": (q if whole else spec.head_dim,), "key_norm": (k if whole else spec.head_dim,)}
    if isinstance(spec.position, Relative):
        found["relative_bias"] = (spec.position.num_buckets, spec.num_heads)
    return found


def needed(spec: AttentionSpec) -> list[str]:
    """The tensors a layer cannot do without."""
    optional = ("query_bias", "key_bias", "value_bias", "output", "output_bias")
    return [name for name in shapes(spec) if name not in optional]


def size(spec: AttentionSpec) -> int:
    """Bytes of the tensors a layer cannot do without, float32."""
    want = shapes(spec)
    return 4 * sum(math.prod(want[name]) for name in needed(spec))


def seeded(spec: AttentionSpec, seed: int) -> AttentionWeights:
    """Weights from a seed, the same on every machine and numpy version: normal, matrices of variance 1/embed_dim.

    Source:
        `numpy.random.RandomState`, whose streams are frozen by NEP 19, unlike `Generator`'s.
    """
    stream = np.random.RandomState(seed)
    want = shapes(spec)
    drawn = {}
    for name in needed(spec):
        numbers = stream.standard_normal(want[name])
        matrix = name in ("query", "key", "value")
        drawn[name] = (numbers / np.sqrt(spec.embed_dim) if matrix else numbers).astype(np.float32)
    return AttentionWeights(**drawn)


def checked(spec: AttentionSpec, tensors: Mapping[str, Array], where: str) -> AttentionWeights:
    """The weights of a layer from named tensors.

    Raises:
        InvalidModel: if a tensor is unknown, missing, of a wrong shape or dtype, or not finite; the message names it.
    """
    _check_forms(spec, {name: (t.shape, str(t.dtype)) for name, t in tensors.items()}, where)
    return AttentionWeights(**{name: numbers(name, tensor, where) for name, tensor in tensors.items()})


def load(spec: AttentionSpec, path: Path) -> AttentionWeights:
    """Read a weights.safetensors. No tensor is read before the header says that all of them fit.

    Raises:
        InvalidModel: if the file is not safetensors, or does not fit `spec` (see `checked`).
    """
    tensors = read_tensors(path, lambda forms: _check_forms(spec, forms, path.name))
    return AttentionWeights(**{name: numbers(name, tensor, path.name) for name, tensor in tensors.items()})


def _check_forms(spec: AttentionSpec, forms: Forms, where: str) -> None:
    """Raise `InvalidModel` unless these are the tensors of a layer; see `checked`."""
    check_forms(forms, shapes(spec), needed(spec), spec.id, where)
    if "output_bias" in forms and "output" not in forms:
        raise InvalidModel(f"{where}: there is output_bias, but no output for it to be added to")


def save(weights: AttentionWeights, path: Path) -> None:
    """Write a weights.safetensors that `load` reads back bit by bit."""
    save_file(weights.tensors(), path)
