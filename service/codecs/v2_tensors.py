"""The tensors of the Open Inference Protocol, version 2: which there are, and how answers become some."""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.errors import ShapeMismatch
from models.tokenizer import Tokens
from models.types import Array
from service.codecs.answers import flat_tensors, named
from service.codecs.options import nearest
from service.codecs.requests import MOST_SEQUENCES, reshaped
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
    "text": ("BYTES",),
}
"""Datatypes that each input may have; the first is the one to tell of."""

DATATYPES: dict[str, np.dtype[Any]] = {
    "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"), "BOOL": np.dtype("?"),
    "INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"), "BYTES": np.dtype(object),
}  # fmt: skip
"""Datatypes that are read or answered, of those the protocol has; BYTES are strings here."""

NAMES = {dtype: name for name, dtype in DATATYPES.items()}

LENGTH = struct.Struct("<I")
"""What each element of BYTES has before it."""

MOST_AXES = 8

TOKEN_TENSORS: Mapping[str, tuple[str, list[int]]] = {
    "tokens": ("BYTES", [-1, -1]),
    "token_ids": ("INT64", [-1, -1]),
    "offsets": ("INT64", [-1, -1, 2]),
    "special": ("BOOL", [-1, -1]),
    "lengths": ("INT64", [-1]),
}
"""Datatypes and shapes of what answers to texts say of their tokens, beyond those of a text 0, false or empty."""

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


def check_size(datatype: str, shape: Sequence[int], size: int, name: str, pointer: str) -> None:
    """Raise `ShapeMismatch` unless a tensor takes so many bytes; of BYTES that is seen when they are read."""
    need = math.prod(shape) * DATATYPES[datatype].itemsize
    if datatype != "BYTES" and size != need:
        raise ShapeMismatch.at(pointer, f"{name}: {size} bytes, but {[*shape]} of {datatype} takes {need}")


def from_bytes(datatype: str, shape: Sequence[int], content: bytes | memoryview, pointer: str) -> Array:
    """The tensor in binary data, a view where it holds numbers.

    Args:
        datatype: of the tensor.
        shape: of it.
        content: the data; for numbers, as much as `check_size` wants.
        pointer: where the tensor stands in the request.

    Raises:
        ShapeMismatch: if no array has the shape, or there are more or fewer strings.
        WrongType: if what should be a string is not UTF-8.
    """
    if datatype != "BYTES":
        return reshaped(np.frombuffer(content, DATATYPES[datatype]), shape, pointer)
    elements: list[bytes] = []
    at = 0
    while at < len(content):
        start = at + LENGTH.size
        at = start + LENGTH.unpack_from(content, at)[0] if start <= len(content) else start
        if at > len(content) or len(elements) == MOST_SEQUENCES:
            raise ShapeMismatch.at(pointer, f"element {len(elements)} of the BYTES is cut short, or one too many")
        elements.append(bytes(content[start:at]))
    return from_elements(elements, shape, pointer)


def from_elements(elements: Sequence[bytes], shape: Sequence[int], pointer: str) -> Array:
    """A tensor of BYTES; arguments and errors as in `from_bytes`."""
    flat = np.empty(len(elements), object)
    for i, element in enumerate(elements):
        try:
            flat[i] = element.decode()
        except UnicodeDecodeError as error:
            raise WrongType.at(f"{pointer}/{i}", f"byte {error.start} of the text is not UTF-8") from error
    return reshaped(flat, shape, pointer)


def to_bytes(array: Array) -> bytes | memoryview:
    """The binary data of an answered tensor."""
    packed = np.ascontiguousarray(array)
    if array.dtype == object:
        texts = [text.encode() for text in packed.reshape(-1)]
        return b"".join(part for text in texts for part in (LENGTH.pack(len(text)), text))
    return packed.data.cast("B") if array.size else b""


def datatype_of(array: Array) -> str:
    """What the protocol calls the numbers of an answered tensor."""
    return NAMES[array.dtype]


def answered(output: AttentionOutput, padded_to: int) -> dict[str, Array]:
    """An answer's tensors by name, with a leading axis of sequences where there is more than one, or they are texts.

    Args:
        output: the answer.
        padded_to: tokens that each sequence is to have, with zeros beyond its own; 0 for sequences of one length.
            Texts are as long as the longest of them.
    """
    if output.tokens is not None:
        padded_to = max(len(tokens.ids) for tokens in output.tokens)
    elif not padded_to:
        return flat_tensors(output)
    parts = [named(answer) for answer in output.answers]
    found = {name: _padded(name, [part[name] for part in parts], padded_to) for name in parts[0]}
    return found if output.tokens is None else found | _of_tokens(output.tokens, padded_to)


def _of_tokens(texts: Sequence[Tokens], most: int) -> dict[str, Array]:
    """What `TOKEN_TENSORS` names."""
    found = {
        "tokens": np.full((len(texts), most), "", object),
        "token_ids": np.zeros((len(texts), most), np.int64),
        "offsets": np.zeros((len(texts), most, 2), np.int64),
        "special": np.zeros((len(texts), most), np.bool_),
        "lengths": np.array([len(each.ids) for each in texts]),
    }
    for i, each in enumerate(texts):
        n = len(each.ids)
        found["tokens"][i, :n], found["token_ids"][i, :n] = each.tokens, each.ids
        found["offsets"][i, :n], found["special"][i, :n] = each.offsets, each.special
    return found


def _padded(name: str, parts: Sequence[Array], tokens: int) -> Array:
    """Tensors of sequences, (..., n, columns) each, as one (sequences, ..., tokens, columns)."""
    columns = tokens if name.rpartition(".")[2] in SQUARE else max(part.shape[-1] for part in parts)
    whole = np.zeros((len(parts), *parts[0].shape[:-2], tokens, columns), parts[0].dtype)
    for rows, part in zip(whole, parts, strict=True):
        rows[..., : part.shape[-2], : part.shape[-1]] = part
    return whole
