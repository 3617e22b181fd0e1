"""What every answer with attention in it must satisfy, whatever the weights of the model.

Pure. A load test that does not look at answers rewards a service for being wrong quickly.
"""

import base64
import binascii
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from loadtest.payloads import HEADER_LENGTH, Format, Payload
from loadtest.wire import Answer

Array = npt.NDArray[Any]
Body = bytes | bytearray

ROW_SUM_TOLERANCE: Final = 1e-4
"""How far the sum of a row of float32 weights may be from 1."""

_JSON_DTYPES: Final = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}
_HEADER_LENGTH: Final = struct.Struct("<Q")
_MEDIA_TYPES: Final[dict[Format, str]] = {
    "json": "application/json",
    "base64": "application/json",
    "safetensors": "application/x-safetensors",
    "v2": "application/octet-stream",
}


class WrongAnswer(Exception):
    """The service answered 200, and what it answered cannot be right. The message says why."""


@dataclass(frozen=True, slots=True)
class _Attention:
    outputs: Array  # (n, d_v)
    weights: Array  # (n, n) or (heads, n, n)
    fully_masked_rows: tuple[int, ...]


def check_answer(payload: Payload, answer: Answer) -> None:
    """Check that an answer fits its request.

    Outputs are finite and (n, d_v). Weights are finite, not negative, (n, n) or (heads, n, n), and every row sums to
    1 within ROW_SUM_TOLERANCE; the rows that `fully_masked_rows` lists, which must be those the payload expects, are
    zeros in both. A causal answer has exact zeros above the diagonal.

    Args:
        payload: the request.
        answer: to it, with status 200 and not compressed.

    Raises:
        WrongAnswer: at the first thing that is wrong.
    """
    found = _read(payload, answer)
    _check_shapes(payload, found)
    check_finite("outputs", found.outputs)
    check_finite("weights", found.weights)
    _check_masked_rows(payload, found)
    check_weights(found.weights, zero_rows=payload.fully_masked_rows, causal=payload.causal)


def check_finite(name: str, tensor: Array) -> None:
    """Check that there is no NaN and no infinity.

    Raises:
        WrongAnswer: with the place of the first.
    """
    if not np.isfinite(tensor).all():
        place = _first(~np.isfinite(tensor))
        raise WrongAnswer(f"{name}{place} is {tensor[tuple(place)]}, which is not finite")


def check_weights(weights: Array, *, zero_rows: Sequence[int] = (), causal: bool = False) -> None:
    """Check that every row of finite weights, (..., n, n), is a distribution over what it may see.

    Args:
        weights: to check.
        zero_rows: rows that need not sum to 1.
        causal: whether row i sees columns 0..i only.

    Raises:
        WrongAnswer: with the first row that is not.
    """
    if (weights < 0).any():
        place = _first(weights < 0)
        raise WrongAnswer(f"weights{place} is {weights[tuple(place)]}, which is negative")
    sums = weights.sum(axis=-1, dtype=np.float64)  # (..., n)
    off = np.abs(sums - 1) > ROW_SUM_TOLERANCE  # (..., n)
    off[..., list(zero_rows)] = False
    if off.any():
        place = _first(off)
        raise WrongAnswer(f"weights{place} sum to {sums[tuple(place)]:.6g}, expected 1 within {ROW_SUM_TOLERANCE:g}")
    future = np.triu(weights, 1)
    if causal and future.any():
        place = _first(future != 0)
        raise WrongAnswer(f"weights{place} is {weights[tuple(place)]:.6g}, but a causal row sees no later column")


def _check_shapes(payload: Payload, answer: _Attention) -> None:
    n, shape = payload.n, answer.weights.shape
    square = shape[-2:] == (n, n)
    if payload.heads is None:
        right = square and len(shape) in (2, 3)
    elif payload.heads == 1:
        right = shape == (n, n)
    else:
        right = shape == (payload.heads, n, n)
    if not right:
        expected = f"[{n}][{n}]" if payload.heads == 1 else f"[{payload.heads or 'heads'}][{n}][{n}]"
        raise WrongAnswer(f"weights have shape {list(shape)}, expected {expected}")
    width = payload.output_dim
    shape = answer.outputs.shape
    if len(shape) != 2 or shape[0] != n or shape[1] < 1 or (width is not None and shape[1] != width):
        raise WrongAnswer(f"outputs have shape {list(shape)}, expected [{n}][{width or 'd_v'}]")


def _check_masked_rows(payload: Payload, answer: _Attention) -> None:
    rows = answer.fully_masked_rows
    if rows != payload.fully_masked_rows:
        raise WrongAnswer(f"fully_masked_rows is {list(rows)}, expected {list(payload.fully_masked_rows)}")
    for row in rows:
        if answer.weights[..., row, :].any() or answer.outputs[row].any():
            raise WrongAnswer(f"row {row} is fully masked, but its weights or its outputs are not all 0")


def _first(where: Array) -> list[int]:
    """Indices of the first true element."""
    return [int(i) for i in np.argwhere(where)[0]]


def _read(payload: Payload, answer: Answer) -> _Attention:
    media_type = answer.header("Content-Type").partition(";")[0].strip().lower()
    expected = _MEDIA_TYPES[payload.format]
    if media_type != expected:
        raise WrongAnswer(f"the answer is {media_type or 'of no media type'}, expected {expected}")
    if payload.format == "v2":
        return _read_v2(answer.body, answer.header(HEADER_LENGTH))
    return _read_safetensors(answer.body) if payload.format == "safetensors" else _read_json(payload, answer.body)


def _read_json(payload: Payload, body: Body) -> _Attention:
    document = load_json(body, "the answer")
    tensors = {}
    for name in ("outputs", "weights"):
        if name not in document:
            raise WrongAnswer(f"the answer has no {name}")
        value = document[name]
        if isinstance(value, dict) != (payload.format == "base64"):
            expected = "a base64 tensor object" if payload.format == "base64" else "numbers"
            raise WrongAnswer(f"{name} is {'an object' if isinstance(value, dict) else 'not one'}, expected {expected}")
        tensors[name] = _tensor_object(name, value) if isinstance(value, dict) else numbers(name, value)
    return _Attention(tensors["outputs"], tensors["weights"], _rows(document.get("fully_masked_rows", [])))


def numbers(name: str, value: object) -> Array:
    """An array of nested lists of numbers.

    Raises:
        WrongAnswer: if they are not rectangular, or hold something else.
    """
    try:
        array: Array = np.array(value)
    except ValueError as error:
        raise WrongAnswer(f"{name} is not rectangular") from error
    # Not asked for as float: NumPy would then read null as NaN and "1" as 1.
    if array.dtype.kind not in "if":
        raise WrongAnswer(f"{name} holds something that is not a number")
    return array


def _tensor_object(name: str, value: Mapping[str, Any]) -> Array:
    dtype, shape, data = (value.get(key) for key in ("dtype", "shape", "data"))
    if dtype not in _JSON_DTYPES:
        raise WrongAnswer(f"{name} has dtype {dtype!r}, expected one of {', '.join(_JSON_DTYPES)}")
    try:
        raw = base64.b64decode(data if isinstance(data, str) else "?", validate=True)
    except binascii.Error as error:
        raise WrongAnswer(f"{name} has data that is not base64") from error
    return _from_bytes(name, raw, _JSON_DTYPES[dtype], shape)


def _read_safetensors(body: Body) -> _Attention:
    if len(body) < _HEADER_LENGTH.size:
        raise WrongAnswer(f"the answer has {len(body)} bytes, too few for safetensors")
    start = _HEADER_LENGTH.size + _HEADER_LENGTH.unpack_from(body)[0]
    header = load_json(body[_HEADER_LENGTH.size : start], "the safetensors header")
    tensors = {}
    for name in ("outputs", "weights"):
        entry = header.get(name)
        if not isinstance(entry, dict):
            raise WrongAnswer(f"the answer has no {name}")
        if entry.get("dtype") != "F32":
            raise WrongAnswer(f"{name} has dtype {entry.get('dtype')!r}, expected 'F32'")
        match entry.get("data_offsets"):
            case [int(first), int(last)] if 0 <= first <= last <= len(body) - start:
                raw = body[start + first : start + last]
            case offsets:
                raise WrongAnswer(f"{name} has data_offsets {offsets}, outside the {len(body) - start} bytes there are")
        tensors[name] = _from_bytes(name, raw, "<f4", entry.get("shape"))
    rows = _told_rows("__metadata__", header.get("__metadata__", {}))
    return _Attention(tensors["outputs"], tensors["weights"], rows)


def _read_v2(body: Body, header_length: str) -> _Attention:
    if not header_length.isdecimal() or int(header_length) > len(body):
        raise WrongAnswer(f"{HEADER_LENGTH} is {header_length!r} of {len(body)} bytes")
    start = int(header_length)
    document = load_json(body[:start], "the JSON part")
    tensors = {}
    for entry in document.get("outputs", []):
        name, size = str(entry.get("name")), entry.get("parameters", {}).get("binary_data_size")
        if entry.get("datatype") != "FP32" or not isinstance(size, int):
            raise WrongAnswer(f"{name} is not a binary tensor of FP32")
        tensors[name] = _from_bytes(name, body[start : start + size], "<f4", entry.get("shape"))
        start += size
    if list(tensors) != ["outputs", "weights"] or start != len(body):
        raise WrongAnswer(
            f"the answer has {', '.join(tensors) or 'no tensors'}, and {len(body) - start} bytes after them"
        )
    return _Attention(tensors["outputs"], tensors["weights"], _told_rows("parameters", document.get("parameters", {})))


def _told_rows(place: str, metadata: object) -> tuple[int, ...]:
    """`fully_masked_rows` where metadata are strings of JSON."""
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise WrongAnswer(f"{place} holds something that is not a string")
    try:
        return _rows(orjson.loads(metadata.get("fully_masked_rows", "[]")))
    except orjson.JSONDecodeError as error:
        raise WrongAnswer(f"fully_masked_rows in {place} is not JSON") from error


def _from_bytes(name: str, raw: Body, dtype: str, shape: object) -> Array:
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise WrongAnswer(f"{name} has shape {shape!r}, expected a list of sizes")
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if len(raw) != expected:
        raise WrongAnswer(f"{name} has {len(raw)} bytes, its shape {shape} needs {expected}")
    return np.frombuffer(raw, dtype).reshape(shape)


def load_json(text: Body, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        WrongAnswer: if `what` is not one.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise WrongAnswer(f"{what} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise WrongAnswer(f"{what} is not a JSON object")
    return document


def _rows(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(row) is int for row in value):
        raise WrongAnswer(f"fully_masked_rows is {value!r}, expected a list of row numbers")
    return tuple(value)
