"""The tensors of the Open Inference Protocol, version 2: which there are, and how answers become some."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.errors import ShapeMismatch
from models.types import Array
from service.codecs.base import flat_tensors, named, nearest
from service.errors import UnknownField, WrongType
from service.messages import AttentionOutput

FLOATS = ("FP32", "FP16", "FP64")
INTEGERS = ("INT64", "INT32")

INPUTS: Mapping[str, tuple[str, ...]] = {
    "inputs": FLOATS,
    "attn_mask": ("BOOL",),
    "attn_bias": FLOATS,
    "lengths": INTEGERS,
    "projections.query": FLOATS,
    "projections.key": FLOATS,
    "projections.value": FLOATS,
}
"""Datatypes that each input may have; the first is the one to tell of."""

DATATYPES: dict[str, np.dtype[Any]] = {
    "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"), "BOOL": np.dtype("?"),
    "INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"),
}  # fmt: skip
"""Datatypes that are read or answered, of those the protocol has."""

MOST_AXES = 8

SQUARE = ("weights", "scores")
"""Tensors of which the columns are tokens too."""


def check_described(name: Any, shape: Any, datatype: Any, pointer: str) -> None:
    """Raise `InvalidInput` unless there is such an input, with such a datatype, and the shape is one."""
    if not isinstance(name, str) or name not in INPUTS:
        hint = nearest(name, tuple(INPUTS)) if isinstance(name, str) else f"known are {', '.join(INPUTS)}"
        raise UnknownField.at(f"{pointer}/name", f"no such input; {hint}")
    if not isinstance(shape, list) or not all(type(axis) is int and 0 <= axis < 2**40 for axis in shape):
        raise WrongType.at(f"{pointer}/shape", f"{name}: expected a list of sizes")
    if len(shape) > MOST_AXES:
        raise ShapeMismatch.at(f"{pointer}/shape", f"{name}: no tensor here has more than {MOST_AXES} axes")
    if datatype not in INPUTS[name]:
        hint = ", true = may attend; numbers to be added belong in attn_bias" if name == "attn_mask" else ""
        expected = f"expected {' or '.join(INPUTS[name])}{hint}"
        raise WrongType.at(f"{pointer}/datatype", f"{name}: {expected}, got {datatype!r}")


def datatype_of(array: Array) -> str:
    """What the protocol calls the numbers of an answered tensor."""
    return next(name for name, dtype in DATATYPES.items() if dtype == array.dtype)


def answered(output: AttentionOutput, padded_to: int) -> dict[str, Array]:
    """An answer's tensors by name, with a leading axis of sequences where there is more than one.

    Args:
        output: the answer.
        padded_to: tokens that each sequence is to have, with zeros beyond its own; 0 for sequences of one length.
    """
    if not padded_to:
        return flat_tensors(output)
    parts = [named(answer) for answer in output.answers]
    return {name: _padded(name, [part[name] for part in parts], padded_to) for name in parts[0]}


def _padded(name: str, parts: Sequence[Array], tokens: int) -> Array:
    """Tensors of sequences, (..., n, columns) each, as one (sequences, ..., tokens, columns)."""
    columns = tokens if name in SQUARE else max(part.shape[-1] for part in parts)
    whole = np.zeros((len(parts), *parts[0].shape[:-2], tokens, columns), parts[0].dtype)
    for rows, part in zip(whole, parts, strict=True):
        rows[..., : part.shape[-2], : part.shape[-1]] = part
    return whole
