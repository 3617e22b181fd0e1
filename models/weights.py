"""The numbers of a layer: from a seed, from a spec, or from safetensors. Convention: y = x W + b."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from models.errors import InvalidModel
from models.spec import AttentionSpec
from models.types import F32, Array


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Projection matrices and biases of a layer, float32, C-contiguous.

    Attributes:
        query: (embed_dim, num_heads * head_dim).
        key: (embed_dim, num_kv_heads * head_dim).
        value: (embed_dim, num_kv_heads * value_dim).
        query_bias, key_bias, value_bias: (columns of their matrix,), or None.
        output, output_bias: (num_heads * value_dim, embed_dim) and (embed_dim,), or None: carried with the layer, not
            part of `outputs`, which are the heads' values side by side.
    """

    query: F32
    key: F32
    value: F32
    query_bias: F32 | None = None
    key_bias: F32 | None = None
    value_bias: F32 | None = None
    output: F32 | None = None
    output_bias: F32 | None = None

    def tensors(self) -> dict[str, F32]:
        """The tensors that are there, by name."""
        return {f.name: t for f in fields(self) if (t := getattr(self, f.name)) is not None}

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
    return {
        "query": (spec.embed_dim, q),
        "key": (spec.embed_dim, k),
        "value": (spec.embed_dim, v),
        "query_bias": (q,),
        "key_bias": (k,),
        "value_bias": (v,),
        "output": (spec.output_dim, spec.embed_dim),
        "output_bias": (spec.embed_dim,),
    }


def seeded(spec: AttentionSpec, seed: int) -> AttentionWeights:
    """Normal weights of variance 1/embed_dim from a seed, the same on every machine and numpy version.

    Source:
        `numpy.random.RandomState`, whose streams are frozen by NEP 19, unlike `Generator`'s.
    """
    stream = np.random.RandomState(seed)
    want = shapes(spec)
    query, key, value = (
        (stream.standard_normal(want[name]) / np.sqrt(spec.embed_dim)).astype(np.float32)
        for name in ("query", "key", "value")
    )
    return AttentionWeights(query, key, value)


def checked(spec: AttentionSpec, tensors: Mapping[str, Array], where: str) -> AttentionWeights:
    """The weights of a layer from named tensors.

    Raises:
        InvalidModel: if a tensor is unknown, missing, of a wrong shape or dtype, or not finite; the message names it.
    """
    want = shapes(spec)
    if unknown := sorted(tensors.keys() - want.keys()):
        raise InvalidModel(f"{where}: unknown tensor {unknown[0]!r}; known are {', '.join(want)}")
    if missing := [name for name in ("query", "key", "value") if name not in tensors]:
        raise InvalidModel(f"{where}: tensor {missing[0]!r} is missing")
    for name, tensor in tensors.items():
        if tensor.shape != want[name]:
            raise InvalidModel(f"{where}: {name} has shape {tensor.shape}, but {spec.id} needs {want[name]}")
        if tensor.dtype not in (np.float16, np.float32, np.float64):
            raise InvalidModel(f"{where}: {name} has dtype {tensor.dtype}; float16, float32 or float64 are served")
        with np.errstate(over="ignore"):  # what overflows float32 becomes infinite, and is refused for that
            finite = np.isfinite(tensor.astype(np.float32)).all()
        if not finite:
            raise InvalidModel(f"{where}: {name} holds NaN or infinity, or numbers too large for float32")
    return AttentionWeights(**{name: np.ascontiguousarray(t, np.float32) for name, t in tensors.items()})


def load(spec: AttentionSpec, path: Path) -> AttentionWeights:
    """Read a weights.safetensors.

    Raises:
        InvalidModel: if the file is not safetensors, or does not fit `spec` (see `checked`).
    """
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, TypeError) as error:
        raise InvalidModel(f"{path.name}: not readable as safetensors: {error}") from error
    return checked(spec, tensors, path.name)


def save(weights: AttentionWeights, path: Path) -> None:
    """Write a weights.safetensors that `load` reads back bit by bit."""
    save_file(weights.tensors(), path)
