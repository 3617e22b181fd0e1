"""The numbers of a layer: from a seed, from a spec, or from safetensors. Convention: y = x W + b."""

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from safetensors.numpy import save_file

from models.errors import InvalidModel
from models.spec import AttentionSpec, Relative
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
    _check_form(spec, {name: (t.shape, str(t.dtype)) for name, t in tensors.items()}, where)
    for name, tensor in tensors.items():
        with np.errstate(over="ignore"):  # what overflows float32 becomes infinite, and is refused for that
            finite = np.isfinite(tensor.astype(np.float32)).all()
        if not finite:
            raise InvalidModel(f"{where}: {name} holds NaN or infinity, or numbers too large for float32")
    return AttentionWeights(**{name: np.ascontiguousarray(t, np.float32) for name, t in tensors.items()})


def load(spec: AttentionSpec, path: Path) -> AttentionWeights:
    """Read a weights.safetensors. No tensor is read before the header says that all of them fit.

    The file is read, not mapped as the format's own library does: whoever cuts a mapped file short ends the process.

    Raises:
        InvalidModel: if the file is not safetensors, or does not fit `spec` (see `checked`).
    """
    try:
        with path.open("rb") as file:
            parts = _header(file)
            start = file.tell()
            form = {name: (part.shape, DTYPES.get(part.dtype, part.dtype)) for name, part in parts.items()}
            _check_form(spec, form, path.name)
            tensors = {name: _tensor(file, start, part) for name, part in parts.items()}
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{path.name}: not readable as safetensors: {error}") from error
    return checked(spec, tensors, path.name)


DTYPES = {"F16": "float16", "F32": "float32", "F64": "float64"}
"""NumPy's names of those dtypes of safetensors that are served."""

MAX_HEADER_BYTES = 1 << 20


class _Part(BaseModel):
    """A tensor, as a safetensors header tells of it; offsets count from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_HEADER = TypeAdapter(dict[str, _Part | dict[str, str]])
"""Tensors by name, and `__metadata__`, which is texts."""


def _header(file: BinaryIO) -> dict[str, _Part]:
    """The tensors of a safetensors file, which is left at the end of its header.

    Raises:
        ValueError: if there is no such header.
    """
    size = int.from_bytes(file.read(8), "little")
    if not 0 < size <= MAX_HEADER_BYTES:
        raise ValueError(f"a header of {size} bytes; 1 to {MAX_HEADER_BYTES} are allowed")
    try:
        found = _HEADER.validate_json(file.read(size))
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, ('header', *fault['loc'])))}: {fault['msg']}") from error
    return {name: part for name, part in found.items() if isinstance(part, _Part)}


def _tensor(file: BinaryIO, start: int, part: _Part) -> Array:
    """The numbers of a tensor whose shape and dtype have been checked.

    Raises:
        ValueError: if they are not where the header says.
    """
    dtype = np.dtype(DTYPES[part.dtype]).newbyteorder("<")
    begin, end = part.data_offsets
    count = math.prod(part.shape)
    if begin < 0 or end - begin != count * dtype.itemsize:
        raise ValueError(f"{count * dtype.itemsize} bytes of numbers do not lie between {begin} and {end}")
    if start + end > os.fstat(file.fileno()).st_size:  # before memory is taken for what is not there
        raise ValueError("the file ends too early")
    file.seek(start + begin)
    numbers = np.fromfile(file, dtype, count)
    if len(numbers) < count:
        raise ValueError("the file was cut short while it was read")
    return numbers.astype(dtype.newbyteorder("="), copy=False).reshape(part.shape)


def _check_form(spec: AttentionSpec, form: Mapping[str, tuple[tuple[int, ...], str]], where: str) -> None:
    """Raise `InvalidModel` unless these names, shapes and dtypes are those of a layer; see `checked`."""
    want = shapes(spec)
    if unknown := sorted(form.keys() - want.keys()):
        raise InvalidModel(f"{where}: unknown tensor {unknown[0]!r}; known are {', '.join(want)}")
    if missing := [name for name in needed(spec) if name not in form]:
        raise InvalidModel(f"{where}: tensor {missing[0]!r} is missing")
    if "output_bias" in form and "output" not in form:
        raise InvalidModel(f"{where}: there is output_bias, but no output for it to be added to")
    for name, (shape, dtype) in form.items():
        if shape != want[name]:
            raise InvalidModel(f"{where}: {name} has shape {shape}, but {spec.id} needs {want[name]}")
        if dtype not in ("float16", "float32", "float64"):
            raise InvalidModel(f"{where}: {name} has dtype {dtype}; float16, float32 or float64 are served")


def save(weights: AttentionWeights, path: Path) -> None:
    """Write a weights.safetensors that `load` reads back bit by bit."""
    save_file(weights.tensors(), path)
