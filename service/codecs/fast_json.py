"""The fields of a JSON body, read the fast way: numbers go from text to an array without becoming Python objects.

simdjson parses straight into buffers, and this way ends at the first thing that is not plain.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import simdjson

from models.types import F64
from service.codecs.base import PROJECTION_NAMES, check_count


class _Unusual(Exception):
    """The fast way does not apply."""


def fast_fields(body: bytes, known: Sequence[str]) -> dict[str, Any] | None:
    """The body's fields with plain number arrays made into arrays, float64; None where something is not plain.

    Args:
        body: as it came.
        known: names of the fields that there are.
    """
    try:
        document = simdjson.Parser().parse(body)
        if not isinstance(document, simdjson.Object):
            return None
        names = list(document.keys())
        if len(names) > len(known) or len(set(names)) != len(names):  # to look up a name is to search for it
            return None
        arrays = _Brackets()
        fields = {name: _fast_value(name, document[name], arrays) for name in names}
    except (ValueError, TypeError, RuntimeError, _Unusual):
        return None
    # A row such as [1, [2]] would have been flattened unseen: then there are more brackets than arrays were found.
    brackets = np.count_nonzero(np.frombuffer(body, np.uint8) == ord("["))  # bytes.count takes longer
    return fields if brackets == arrays.found else None


class _Brackets:
    """How many JSON arrays the fast way has accounted for."""

    found = 0


def _fast_value(name: str, value: Any, arrays: _Brackets) -> Any:
    if name == "projections" and isinstance(value, simdjson.Object):
        return {key: _fast_value("matrix", value[key], arrays) for key in _unique(value)}
    if isinstance(value, simdjson.Object):
        return _plain(value.as_dict(), arrays)
    if not isinstance(value, simdjson.Array):
        return value
    if name not in ("inputs", "attn_bias", "matrix"):
        return _plain(value.as_list(), arrays)
    if not len(value):
        raise _Unusual
    if isinstance(value[0], simdjson.Object):
        return _plain(value.as_list(), arrays)
    depth = _depth(value)
    if depth == 2:
        return _fast_matrix(value, arrays)
    if depth == 3 and name != "matrix":
        check_count(len(value), f"/{name}")
        arrays.found += 1
        return [_fast_matrix(item, arrays) for item in value]
    raise _Unusual


def _unique(value: Any) -> list[str]:
    names: list[str] = list(value.keys())
    if len(names) != len(PROJECTION_NAMES) or len(set(names)) != len(names):
        raise _Unusual
    return names


def _depth(value: Any) -> int:
    depth = 0
    while isinstance(value, simdjson.Array) and len(value):
        depth += 1
        value = value[0]
    return depth


def _fast_matrix(value: Any, arrays: _Brackets) -> F64:
    """Rows of one length, into one array, (rows, columns)."""
    if not isinstance(value, simdjson.Array):
        raise _Unusual
    lengths = {len(row) if isinstance(row, simdjson.Array) else -1 for row in value}
    if len(lengths) != 1 or -1 in lengths:
        raise _Unusual
    rows, columns = len(value), lengths.pop()
    flat = np.frombuffer(value.as_buffer(of_type="d"), np.float64)
    if flat.size != rows * columns:
        raise _Unusual
    arrays.found += 1 + rows
    return flat.reshape(rows, columns)


def _plain(value: Any, arrays: _Brackets) -> Any:
    """Python objects, their arrays counted."""
    if isinstance(value, list):
        arrays.found += 1
        for item in value:
            _plain(item, arrays)
    elif isinstance(value, dict):
        for item in value.values():
            _plain(item, arrays)
    return value
