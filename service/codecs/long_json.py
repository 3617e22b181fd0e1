"""Long JSON answers, written a piece at a time: what stays short is written first, with a place held for each array."""

import binascii
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import orjson

from models.types import Array

NUMBERS = 6_000
"""Numbers written at a time, which takes about 0.1 ms; a row that has more is written in one go."""

BYTES = 3 << 15
"""Bytes written as base64 at a time: a multiple of 3."""

PIECE = 1 << 17
"""Bytes that a piece has at least, but the last."""

Pieces = Iterator[bytes]
Hold = Callable[[Pieces], orjson.Fragment]
"""Keeps a place in the document for a JSON value that comes in pieces."""


def in_pieces(document: Callable[[Hold], Any]) -> Pieces:
    """The bytes of `document(hold)` as `orjson.dumps` would write them."""
    held: list[Pieces] = []

    def hold(pieces: Pieces) -> orjson.Fragment:
        held.append(pieces)
        return orjson.Fragment(b"\0%d\0" % (len(held) - 1))  # no JSON text has such a byte

    text = orjson.dumps(document(hold), option=orjson.OPT_SERIALIZE_NUMPY)
    return _evenly(
        piece for i, part in enumerate(text.split(b"\0")) for piece in (held[int(part)] if i % 2 else [part])
    )


def _evenly(pieces: Iterable[bytes]) -> Pieces:
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
        else:
            yield b""  # nothing to send yet, but a moment has passed
    yield b"".join(waiting)


def number_pieces(array: Array, written: Callable[[Array], Array]) -> Pieces:
    """An array of numbers, nested as it is.

    Args:
        array: any shape but ().
        written: makes of a part of it the array whose shortest digits are wanted, element by element.
    """
    if array.size <= NUMBERS:
        yield orjson.dumps(written(array), option=orjson.OPT_SERIALIZE_NUMPY)
        return
    count = NUMBERS * len(array) // array.size
    before = b"["
    for start in range(0, len(array), max(1, count)):
        if count or array.ndim == 1:
            text = orjson.dumps(written(array[start : start + max(1, count)]), option=orjson.OPT_SERIALIZE_NUMPY)
            yield b"".join((before, memoryview(text)[1:-1]))
        else:
            yield before
            yield from number_pieces(array[start], written)
        before = b","
    yield b"]"


def base64_pieces(array: Array) -> Pieces:
    """A string: the array's elements as base64."""
    yield b'"'
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(raw), BYTES):
        yield binascii.b2a_base64(raw[start : start + BYTES].data, newline=False)
    yield b'"'
