"""safetensors: an 8-byte length, a JSON header, raw little-endian tensors.

Format: https://github.com/huggingface/safetensors#format. Read and written here rather than by the library so that a
tensor is a view into the body, not a copy, and every fault is named.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from models.errors import AttentionError, ShapeMismatch
from models.types import Array, Projections
from service.backends.base import BackendInfo
from service.codecs.answers import flat_tensors, joined, metadata, origin, raw_pieces
from service.codecs.base import LONG_ANSWER, ReadsAtOnce
from service.codecs.options import check_format, nearest, query_options
from service.codecs.requests import FLOAT32, PROJECTION_NAMES, assemble, check_count, float32, lone_sequence, reshaped
from service.errors import UnknownField, Unparsable, WrongType
from service.lane import ALONE, Piece, Team
from service.messages import AttentionInput, AttentionOutput, Form, Options

DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?"}
ANSWERED: dict[type[np.generic], str] = {np.float32: "F32", np.float16: "F16", np.int32: "I32"}
NAMES: dict[int, tuple[str, int]] = {
    np.dtype(kind).num: (name, np.dtype(kind).itemsize) for kind, name in ANSWERED.items()
}
"""Name and width of an answered dtype, by NumPy's number of it."""
LENGTH = struct.Struct("<Q")
"""Of the header, before it."""
MAX_HEADER = 1 << 20
PLAIN = ("inputs", "attn_mask", "attn_bias", *(f"projections.{name}" for name in PROJECTION_NAMES))
NUMBERED = re.compile(r"(inputs|attn_mask|attn_bias)\.(0|[1-9]\d{0,6})")


class SafetensorsCodec(ReadsAtOnce):
    """`application/x-safetensors`, both ways."""

    media_type = "application/x-safetensors"
    long_answer = LONG_ANSWER

    def decode(self, body: bytes, query: str) -> AttentionInput:
        """See `Decoder.decode`. Tensors: `inputs` or `inputs.0, inputs.1, …`, and what goes with them."""
        if (lone := _lone(body, query)) is not None:
            return lone
        tensors = _read(body)
        sequences: dict[str, dict[int, Array]] = {"inputs": {}, "attn_mask": {}, "attn_bias": {}}
        for name, tensor in tensors.items():
            if numbered := NUMBERED.fullmatch(name):
                sequences[numbered[1]][int(numbered[2])] = tensor
            elif name not in PLAIN:
                raise UnknownField.at(f"/{name}", f"no such tensor; {nearest(name, PLAIN)}")
        given = sequences["inputs"]
        form: Form = "list" if given else "one"
        if given and "inputs" in tensors:
            raise UnknownField.at("/inputs", "give `inputs` or `inputs.0`, `inputs.1`, …, not both")
        if not given and "inputs" not in tensors:
            raise UnknownField.at("/inputs", "there is no tensor `inputs`, nor `inputs.0`")
        if missing := [i for i in range(len(given)) if i not in given]:
            raise UnknownField.at(f"/inputs/{missing[0]}", f"`inputs.{missing[0]}` is missing between the others")
        inputs = [given[i] for i in range(len(given))] if given else [tensors["inputs"]]
        if form == "one" and inputs[0].ndim == 3:
            check_count(len(inputs[0]), "/inputs")
            inputs, form = list(inputs[0]), "stack"
        arrays = [float32(_floats(x, p), p) for i, x in enumerate(inputs) for p in [_pointer("inputs", form, i)]]
        masks = _beside("attn_mask", tensors, sequences, form, len(inputs))
        biases = _beside("attn_bias", tensors, sequences, form, len(inputs))
        return assemble(
            arrays,
            _each(masks, "attn_mask", form, _booleans),
            _each(biases, "attn_bias", form, lambda bias, pointer: float32(_floats(bias, pointer), pointer)),
            form,
            query_options(query, Options),
            _projections(tensors),
        )

    def encode(self, output: AttentionOutput) -> bytes:
        """See `Encoder.encode`. What is not a tensor stands in `__metadata__`, as JSON strings."""
        return joined(*_laid_out(output))

    def pieces(self, output: AttentionOutput, team: Team = ALONE) -> list[Piece]:
        """See `Encoder.pieces`."""
        head, tensors = _laid_out(output)
        return [head, *(piece for array in tensors for piece in raw_pieces(array))]


def _lone(body: bytes, query: str) -> AttentionInput | None:
    """The request in a body of one float32 tensor with two axes, as most are; None if it is another, or wrong."""
    if len(body) < 8:
        return None
    (length,) = LENGTH.unpack_from(body)
    plan = _plan(body[: 8 + length], len(body), query) if length <= MOST_REMEMBERED else None
    if plan is None or (sequence := lone_sequence(body, plan.begin, plan.shape)) is None:
        return None
    return AttentionInput((sequence,), "one", plan.options)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was found of a body with one tensor: it holds for all that begin the same, and are as long."""

    begin: int
    shape: tuple[int, int]
    options: Options


@lru_cache(maxsize=256)
def _plan(head: bytes, size: int, query: str) -> _Plan | None:
    """How to read a body of `size` bytes with this length and header; None where `_lone` does not."""
    try:
        (entry,) = _entries(head[8:], size - len(head))
        options = query_options(query, Options)
        check_format(options)
    except (AttentionError, ValueError):  # of these, `decode` says what they are
        return None
    if entry.name != "inputs" or entry.dtype != FLOAT32 or len(entry.shape) != 2 or not entry.count:
        return None
    n, d = entry.shape
    return _Plan(len(head), (n, d), options)


def _laid_out(output: AttentionOutput) -> tuple[bytes, list[Array]]:
    """What comes before the tensors, and those in their order."""
    tensors = flat_tensors(output)
    layout = tuple([(name, array.dtype.num, array.shape) for name, array in tensors.items()])
    if output.tokens is None and not any(output.fully_masked_rows):
        head, order = _plain_head(layout, output.model, output.backend)
    else:
        head, order = _head(layout, metadata(output))
    return head, [tensors[name] for name in order]


Layout = tuple[tuple[str, int, tuple[int, ...]], ...]
"""Of each tensor its name, NumPy's number of its dtype, and its shape."""

Head = tuple[bytes, list[str]]
"""What comes before the tensors, and their names in the order in which they come."""


@lru_cache(maxsize=256)
def _plain_head(layout: Layout, model: tuple[str, str], backend: BackendInfo) -> Head:
    """The same for callers who ask for the same again and again; nothing stands in it but where answers come from."""
    return _head(layout, origin(model, backend))


def _head(layout: Layout, told: Mapping[str, Any]) -> Head:
    """The length and the header of a file of these tensors, with what is told beside them, as JSON."""
    header: dict[str, Any] = {"__metadata__": {name: orjson.dumps(value).decode() for name, value in told.items()}}
    offset = 0
    # Wide numbers first, as the format's own library writes them: each then starts at a multiple of its width.
    ordered = sorted(layout, key=lambda tensor: NAMES[tensor[1]][1], reverse=True)
    for name, number, shape in ordered:
        letters, width = NAMES[number]
        end = offset + math.prod(shape) * width
        header[name] = {"dtype": letters, "shape": shape, "data_offsets": (offset, end)}
        offset = end
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    return LENGTH.pack(len(text)) + text, [name for name, _, _ in ordered]


MOST_REMEMBERED = 1_024
"""Bytes of a header up to which it is remembered: callers send the same again and again."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor of a file: where it begins, counted from the end of the header, and where errors say that it stands."""

    name: str
    place: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    count: int
    begin: int


def _read(body: bytes) -> dict[str, Array]:
    """The tensors by name, as views into `body`.

    Raises:
        Unparsable: if the body is not safetensors.
        WrongType: if a tensor has a dtype that nobody here computes with.
    """
    if len(body) < 8:
        raise Unparsable(f"{len(body)} bytes are no safetensors: a length of 8 bytes comes first")
    (length,) = LENGTH.unpack_from(body)
    if length > min(MAX_HEADER, len(body) - 8):
        raise Unparsable(f"the header is said to have {length} bytes; {len(body) - 8} follow, {MAX_HEADER} are allowed")
    start = 8 + length
    entries = (_entries if length <= MOST_REMEMBERED else _entries.__wrapped__)(body[8:start], len(body) - start)
    return {e.name: reshaped(np.frombuffer(body, e.dtype, e.count, start + e.begin), e.shape, e.place) for e in entries}


@lru_cache(maxsize=256)
def _entries(text: bytes, room: int) -> tuple[_Entry, ...]:
    """The tensors that a header tells of; they fill the `room` behind it, without holes. Errors as in `_read`."""
    try:
        header = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Unparsable(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise Unparsable("the header is not a JSON object")
    header.pop("__metadata__", None)
    used, entries = [], []
    for name, entry in header.items():
        dtype, shape, begin, end = _entry(name, entry)
        count = math.prod(shape)
        if end - begin != count * dtype.itemsize or end > room:
            raise Unparsable(
                f"tensor {name!r}: bytes {begin} to {end} of {room}, but {list(shape)} takes {count * dtype.itemsize}"
            )
        used.append((begin, end))
        entries.append(_Entry(name, _place(name), dtype, shape, count, begin))
    expected = 0
    for begin, end in sorted(used):
        if begin != expected:
            raise Unparsable(f"the tensors leave a hole or overlap at byte {expected}")
        expected = end
    if expected != room:
        raise Unparsable(f"{room - expected} bytes follow the last tensor")
    return tuple(entries)


def _entry(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    try:
        text, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = all(type(number) is int and 0 <= number < 2**48 for number in (*shape, begin, end))
    except (TypeError, KeyError, ValueError) as error:
        raise Unparsable(f"tensor {name!r} is not described by dtype, shape and data_offsets") from error
    if not whole or len(shape) > 8:
        raise Unparsable(f"tensor {name!r} has a shape or offsets that are not sizes")
    if not isinstance(text, str) or text not in DTYPES:
        raise WrongType.at(_place(name), f"dtype {text!r}; {', '.join(DTYPES)} are read")
    return np.dtype(DTYPES[text]), tuple(shape), begin, end


def _place(name: str) -> str:
    """JSON pointer of a tensor: `attn_mask.1` stands at `/attn_mask/1`."""
    return f"/{name.replace('.', '/')}"


def _pointer(name: str, form: Form, i: int) -> str:
    return f"/{name}" if form == "one" else f"/{name}/{i}"


def _beside(
    name: str, tensors: dict[str, Array], sequences: dict[str, dict[int, Array]], form: Form, count: int
) -> list[Array | None] | None:
    """Masks or biases of the sequences: None at all, or one for each with None where there is none."""
    if form == "list":
        if name in tensors:
            raise UnknownField.at(f"/{name}", f"with `inputs.0`, … the tensors are `{name}.0`, …")
        if beyond := [i for i in sequences[name] if i >= count]:
            raise UnknownField.at(f"/{name}/{beyond[0]}", f"there is no `inputs.{beyond[0]}`")
        return [sequences[name].get(i) for i in range(count)] if sequences[name] else None
    if sequences[name]:
        raise UnknownField.at(f"/{name}", f"with one `inputs` the tensor is `{name}`")
    if name not in tensors:
        return None
    if form == "one":
        return [tensors[name]]
    if len(tensors[name].shape) < 3:
        raise ShapeMismatch.at(f"/{name}", f"its shape is {list(tensors[name].shape)}, expected one for each sequence")
    return list(tensors[name])


def _each(
    given: list[Array | None] | None, name: str, form: Form, read: Callable[[Array, str], Any]
) -> list[Any] | None:
    """Every mask or bias, checked."""
    if given is None:
        return None
    return [None if tensor is None else read(tensor, _pointer(name, form, i)) for i, tensor in enumerate(given)]


def _floats(array: Array, pointer: str) -> Array:
    if array.dtype == np.bool_:
        raise WrongType.at(pointer, "expected F16, F32 or F64, got BOOL")
    return array


def _booleans(array: Array, pointer: str) -> Any:
    if array.dtype != np.bool_:
        raise WrongType.at(pointer, "expected BOOL, true = may attend; numbers to be added belong in attn_bias")
    if array.size and array.view(np.uint8).max() > 1:
        raise WrongType.at(pointer, "a BOOL is a byte 0 or 1")
    return array


def _projections(tensors: dict[str, Array]) -> Projections | None:
    names = [f"projections.{name}" for name in PROJECTION_NAMES]
    given = [name for name in names if name in tensors]
    if not given:
        return None
    if missing := [name for name in names if name not in given]:
        raise UnknownField.at(_place(missing[0]), "the matrix is missing")
    pointers = [_place(name) for name in names]
    return Projections(*(float32(_floats(tensors[n], p), p) for n, p in zip(names, pointers, strict=True)))
