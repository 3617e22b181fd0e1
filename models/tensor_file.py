"""Tensors in safetensors files, checked by their header before a number is read.

A file is read, not mapped as the format's own library does: whoever cuts a mapped file short ends the process.
"""

import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

from models.errors import InvalidModel
from models.types import F32, Array

Forms = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype, as NumPy calls it, of tensors by name."""


def read_tensors(path: Path, check: Callable[[Forms], None]) -> dict[str, Array]:
    """The tensors of a safetensors file.

    Args:
        path: the file.
        check: raises where the forms of its tensors are not the wanted ones.

    Raises:
        InvalidModel: if the file is not safetensors; and what `check` raises.
    """
    try:
        with path.open("rb") as file:
            parts = _header(file)
            start = file.tell()
            check({name: (part.shape, DTYPES.get(part.dtype, part.dtype)) for name, part in parts.items()})
            return {name: _tensor(file, start, part) for name, part in parts.items()}
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{path.name}: not readable as safetensors: {error}") from error


def check_forms(
    forms: Forms, want: Mapping[str, tuple[int, ...]], needed: Collection[str], owner: str, where: str
) -> None:
    """Raise `InvalidModel`, naming a tensor, unless a model may have tensors of these forms.

    Args:
        forms: of the tensors that are there.
        want: shapes of those that may be.
        needed: names of those that must be.
        owner: what to call the model.
        where: what to call the file.
    """
    if unknown := sorted(forms.keys() - want.keys()):
        known = ", ".join(want) if len(want) < 20 else f"{', '.join(list(want)[:20])}, …"
        raise InvalidModel(f"{where}: unknown tensor {unknown[0]!r}; known are {known}")
    if missing := [name for name in needed if name not in forms]:
        raise InvalidModel(f"{where}: tensor {missing[0]!r} is missing")
    for name, (shape, dtype) in forms.items():
        if shape != want[name]:
            raise InvalidModel(f"{where}: {name} has shape {shape}, but {owner} needs {want[name]}")
        if dtype not in DTYPES.values():
            raise InvalidModel(f"{where}: {name} has dtype {dtype}; float16, float32 or float64 are served")


def numbers(name: str, tensor: Array, where: str) -> F32:
    """A tensor as C-contiguous float32.

    Raises:
        InvalidModel: if a number is not finite, or too large.
    """
    with np.errstate(over="ignore"):  # what overflows float32 becomes infinite, and is refused for that
        found: F32 = np.ascontiguousarray(tensor, np.float32)
    if not np.isfinite(found).all():
        raise InvalidModel(f"{where}: {name} holds NaN or infinity, or numbers too large for float32")
    return found


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
