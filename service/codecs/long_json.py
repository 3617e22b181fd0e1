"""Long JSON answers: what is short is written first, with a place held for each array; those are written in parts."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import orjson
import pybase64

from models.types import Array
from service import digits
from service.lane import ALONE, Piece, Team

LONG = 1 << 17
"""Bytes of tensors from which their text is written in a thread: 32,768 numbers, which takes 0.5 ms."""

LEAST, MOST = 1 << 14, 1 << 17
"""Numbers of a part, if the array has so many: written in 0.3 and 2 ms."""

Part = Callable[[bytes, bytes], Piece]
"""Writes a part of a JSON value, between what stands before it and behind it."""

Parts = Callable[[int], Iterable[Part]]
"""Those of a value, in order, for so many who write them."""

Hold = Callable[[Parts], orjson.Fragment]
"""Keeps a place in the document for a JSON value."""


def in_pieces(document: Callable[[Hold], Any], team: Team = ALONE) -> list[Piece]:
    """The bytes of `document(hold)` as `orjson.dumps` would write them, by a team."""
    held: list[Parts] = []

    def hold(parts: Parts) -> orjson.Fragment:
        held.append(parts)
        return orjson.Fragment(b"\0%d\0" % (len(held) - 1))  # no JSON text has such a byte

    before, *stretches = orjson.dumps(document(hold), option=orjson.OPT_SERIALIZE_NUMPY).split(b"\0")
    if not stretches:
        return [before]
    parts: list[Part] = []
    befores: list[bytes] = []
    for place, behind in zip(stretches[::2], stretches[1::2], strict=True):
        for part in held[int(place)](team.size):
            parts.append(part)
            befores.append(before)
            before = b""
        before = behind
    behinds = [b""] * (len(parts) - 1) + [before]
    pieces: list[Piece] = [b""] * len(parts)

    def write(i: int) -> None:
        pieces[i] = parts[i](befores[i], behinds[i])

    team.spread([partial(write, i) for i in range(len(parts))])
    return pieces


def number_parts(array: Array, written: Callable[[Array], Array]) -> Parts:
    """An array of numbers, nested as it is.

    Args:
        array: any shape but ().
        written: makes of a part of it the array whose shortest digits are wanted, element by element, C-contiguous.
    """

    def parts(size: int) -> Iterator[Part]:
        numbers = min(max(-(-array.size // size), LEAST), MOST)
        if array.ndim > 3 or not array.size:
            yield partial(_whole, array, written)
        elif array.ndim == 1:
            total = -(-len(array) // numbers)
            for i in range(total):
                yield partial(_rows, array[None, i * numbers : (i + 1) * numbers], written, 1, i, total, total)
        else:
            rows = array.reshape(-1, array.shape[-1])
            count = max(1, -(-numbers // rows.shape[1]))
            for first in range(0, len(rows), count):
                yield partial(
                    _rows, rows[first : first + count], written, array.ndim, first, len(rows), array.shape[-2]
                )

    return parts


def base64_parts(array: Array) -> Parts:
    """A string: the array's elements as base64."""

    def part(before: bytes, behind: bytes) -> bytes:
        return b'%b"%b"%b' % (before, pybase64.b64encode(np.ascontiguousarray(array).data), behind)

    return lambda size: [part]


def _whole(array: Array, written: Callable[[Array], Array], before: bytes, behind: bytes) -> bytes:
    return before + orjson.dumps(written(array), option=orjson.OPT_SERIALIZE_NUMPY) + behind


def _rows(
    rows: Array, written: Callable[[Array], Array], depth: int, first: int, total: int, group: int,
    before: bytes, behind: bytes,
) -> Piece:  # fmt: skip
    """Some rows of an array; see `digits.write`."""
    plain = written(rows)
    if plain.dtype == np.float32:
        start = len(before)
        out = np.empty(start + digits.room(plain) + len(behind), np.uint8)
        out[:start] = np.frombuffer(before, np.uint8)
        end = start + digits.write(plain, depth, first, total, group, out[start:])
        out[end : end + len(behind)] = np.frombuffer(behind, np.uint8)
        return out[: end + len(behind)].data
    pieces = [before]
    for i, row in enumerate(plain, first):
        text = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
        pieces += (
            b"," if i else b"[",
            b"[" if depth == 3 and i % group == 0 else b"",
            text[1:-1] if depth == 1 else text,
            b"]" if depth == 3 and (i + 1) % group == 0 else b"",
        )
    if first + len(plain) == total:
        pieces.append(b"]")
    return b"".join((*pieces, behind))
