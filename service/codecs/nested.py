"""Arrays as JSON has them: rows of numbers or booleans, or base64 tensor objects; every fault with its place."""

import binascii
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pybase64

from models.errors import InvalidInput, ShapeMismatch
from models.types import F64, Bool
from service.codecs.options import nearest
from service.codecs.requests import PROJECTION_NAMES, reshaped
from service.codecs.strict_json import escaped, json_type
from service.errors import UnknownField, WrongType

TENSOR_OBJECT = ("shape", "dtype", "data")
BOOLEANS: dict[str, np.dtype[Any]] = {"bool": np.dtype(np.bool_)}


def mask(value: Any, pointer: str) -> Bool:
    """A mask, (n, n), as its sender shaped it.

    Raises:
        WrongType: if there is anything but booleans in it.
        ShapeMismatch: if rows have different lengths.
    """
    if is_tensor(value):
        whole: Bool = tensor(value, pointer, BOOLEANS)
        return whole
    if isinstance(value, np.ndarray) and value.dtype == np.bool_:
        return value
    found = rows(value, pointer)
    for i, row in enumerate(found):
        for j, item in enumerate(row):
            if not isinstance(item, bool):
                raise WrongType.at(
                    f"{pointer}/{i}/{j}",
                    f"expected true (may attend) or false, got {json_type(item)}; "
                    "numbers to be added belong in attn_bias",
                )
    keep: Bool = np.array(found, np.bool_).reshape(len(found), len(found[0]))
    return keep


def rows(value: Any, pointer: str) -> list[list[Any]]:
    """Rows of one length, their elements unseen."""
    if not isinstance(value, list):
        raise WrongType.at(pointer, f"expected rows, got {json_type(value)}")
    if not value:
        raise ShapeMismatch.at(pointer, "there are no rows; at least one is needed")
    for i, row in enumerate(value):
        if not isinstance(row, list):
            raise WrongType.at(f"{pointer}/{i}", f"expected a row, got {json_type(row)}")
        if len(row) != len(value[0]):
            raise ShapeMismatch.at(f"{pointer}/{i}", f"the row has {len(row)} elements, but row 0 has {len(value[0])}")
    return value


def matrix(value: Any, pointer: str) -> F64:
    """Rows of numbers; integers beyond float64 are infinite.

    Raises:
        WrongType: if there is anything but numbers in it.
        ShapeMismatch: if rows have different lengths.
    """
    found = rows(value, pointer)
    result = np.empty((len(found), len(found[0])), np.float64)
    for i, row in enumerate(found):
        for j, item in enumerate(row):
            if isinstance(item, bool) or not isinstance(item, (int, float)):
                raise WrongType.at(f"{pointer}/{i}/{j}", f"expected a number, got {json_type(item)}")
            try:
                result[i, j] = item
            except OverflowError:  # an integer beyond float64
                result[i, j] = math.inf if item > 0 else -math.inf
    return result


def each_projection(value: Any) -> dict[str, Any]:
    """The caller's own matrices by name, not read yet.

    Raises:
        InvalidInput: if they are no object, or one is missing or unknown.
    """
    if not isinstance(value, dict):
        raise WrongType.at("/projections", f"expected an object of query, key and value, got {json_type(value)}")
    for name in value:
        if name not in PROJECTION_NAMES:
            raise UnknownField.at(f"/projections/{escaped(name)}", f"no such matrix; {nearest(name, PROJECTION_NAMES)}")
    for name in PROJECTION_NAMES:
        if name not in value:
            raise ShapeMismatch.at(f"/projections/{name}", "the matrix is missing")
    return {name: value[name] for name in PROJECTION_NAMES}


def decoded_base64(text: str) -> bytes:
    """What a text encodes; raises a `ValueError` that says what is wrong with it."""
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        return binascii.a2b_base64(text, strict_mode=True)


def is_tensor(value: Any) -> bool:
    """Whether it should be a tensor object."""
    return isinstance(value, dict)


def tensor(value: Mapping[str, Any], pointer: str, dtypes: Mapping[str, np.dtype[Any]]) -> Any:
    """The array of a tensor object, read-only.

    Args:
        value: the object.
        pointer: where it stands in the request.
        dtypes: those that it may have.

    Raises:
        InvalidInput: if it is no tensor object, or its data do not fit its shape.
    """
    for name in value:
        if name not in TENSOR_OBJECT:
            raise UnknownField.at(f"{pointer}/{escaped(name)}", f"no such field; {nearest(name, TENSOR_OBJECT)}")
    for name in TENSOR_OBJECT:
        if name not in value:
            raise WrongType.at(f"{pointer}/{name}", "the tensor object lacks this field; it has shape, dtype and data")
    shape, dtype, data = value["shape"], value["dtype"], value["data"]
    if not isinstance(shape, list) or not all(type(axis) is int and 0 <= axis < 2**40 for axis in shape):
        raise WrongType.at(f"{pointer}/shape", "expected a list of sizes")
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise WrongType.at(f"{pointer}/dtype", f"expected {' or '.join(dtypes)}, got {dtype!r}")
    if not isinstance(data, (str, memoryview)):
        raise WrongType.at(f"{pointer}/data", f"expected a base64 string, got {json_type(data)}")
    try:
        raw = decoded_base64(data) if isinstance(data, str) else data
    except (ValueError, binascii.Error) as error:
        raise InvalidInput.at(f"{pointer}/data", f"not base64: {error}") from error
    need = math.prod(shape) * dtypes[dtype].itemsize
    if len(raw) != need:
        raise ShapeMismatch.at(f"{pointer}/data", f"it holds {len(raw)} bytes; {shape} of {dtype} takes {need}")
    if dtype == "bool" and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
        raise InvalidInput.at(f"{pointer}/data", "a boolean is a byte 0 or 1")
    return reshaped(np.frombuffer(raw, dtypes[dtype]), shape, f"{pointer}/shape")
