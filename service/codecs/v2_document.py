"""The document of a request over REST, read the fast way where it is long: numbers do not become Python objects."""

import math
from typing import Any

import numpy as np
import simdjson

from service.codecs.strict_json import json_object

FAST_FROM = 1 << 11
"""Bytes of JSON from which it pays: below, as with binary tensors, there are hardly any numbers in it."""


class _Unusual(Exception):
    """The fast way does not apply."""


def document_of(text: bytes) -> dict[str, Any]:
    """The JSON object, where it is large with the numbers of `data` as arrays; errors as in `json_object`."""
    found = _fast_document(text) if len(text) >= FAST_FROM else None
    return json_object(text, "inputs") if found is None else found


def _fast_document(text: bytes) -> dict[str, Any] | None:
    """The object, or None where something in it is not plain: it is then read to the letter."""
    brackets = 0
    try:
        document: Any = simdjson.Parser().parse(text)
        found: dict[str, Any] = {}
        for name in _unique(document):
            value = document[name]
            if name != "inputs":
                found[name], more = _plain(value)
                brackets += more
                continue
            brackets += 1
            found[name] = []
            for item in value:
                entry: dict[str, Any] = {}
                for key in _unique(item):
                    entry[key], more = _numbers(item[key]) if key == "data" else _plain(item[key])
                    brackets += more
                found[name].append(entry)
    except (ValueError, TypeError, RuntimeError, _Unusual):
        return None
    # A row such as [1, [2]] would have been flattened unseen: then there are more brackets than arrays were found.
    return found if brackets == np.count_nonzero(np.frombuffer(text, np.uint8) == ord("[")) else None


def _unique(value: Any) -> list[str]:
    """The names of an object, each once: to look up a name is to search for it."""
    if not isinstance(value, simdjson.Object):
        raise _Unusual
    names: list[str] = list(value.keys())
    if len(names) > 8 or len(set(names)) != len(names):
        raise _Unusual
    return names


def _plain(value: Any) -> tuple[Any, int]:
    """A Python object, and how many JSON arrays it holds."""
    if isinstance(value, simdjson.Object):
        value = value.as_dict()
    elif isinstance(value, simdjson.Array):
        value = value.as_list()
    return value, _arrays(value)


def _arrays(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(_arrays(item) for item in value if isinstance(item, (list, dict)))
    return sum(_arrays(item) for item in value.values()) if isinstance(value, dict) else 0


def _numbers(value: Any) -> tuple[Any, int]:
    """The numbers of `data` as an array, float64, in the shape they are nested in, and how many JSON arrays it is."""
    if not isinstance(value, simdjson.Array) or not len(value):
        raise _Unusual
    first = value[0]
    if isinstance(first, bool) or (isinstance(first, simdjson.Array) and isinstance(_innermost(first), bool)):
        return _plain(value)
    shape, arrays = _nesting(value)
    flat = np.frombuffer(value.as_buffer(of_type="d"), np.float64)
    if flat.size != math.prod(shape):
        raise _Unusual
    return flat.reshape(shape), arrays


def _innermost(value: Any) -> Any:
    while isinstance(value, simdjson.Array) and len(value):
        value = value[0]
    return value


def _nesting(value: Any) -> tuple[tuple[int, ...], int]:
    """Lengths of the axes, which are the same everywhere, and the number of arrays."""
    if not isinstance(value[0], simdjson.Array):
        return (len(value),), 1
    inner: set[tuple[int, ...]] = set()
    arrays = 1
    for part in value:
        if not isinstance(part, simdjson.Array) or not len(part):
            raise _Unusual
        axes, more = _nesting(part)
        inner.add(axes)
        arrays += more
    if len(inner) != 1:
        raise _Unusual
    return (len(value), *inner.pop()), arrays
