"""JSON bodies whose numbers do not become Python objects.

Most of a body is a few matrices. They are cut out by `digits.cut`, and a mark is left in their place; so are long
strings. What is then left is short, and is read to the letter. That is the same as reading the whole: what is cut out
is `value, value, …` within an array or one value, its mark is one value, and JSON allows the one wherever it allows the
other.

Whatever does not fit that picture is not read here: then nothing is found, the body is read to the letter, and if
something is wrong with it, that names the place.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pybase64

from models.errors import AttentionError
from models.types import Array
from service import digits
from service.codecs.strict_json import json_object
from service.lane import ALONE, Team

LONG = 1 << 18
"""Bytes of a body from which it is read in a thread, which takes 0.2 ms."""

PART = 1 << 17
"""Bytes that each part of a body has at the least, where several read it at once."""

SHORT_STRING, SHORT_ROW = 1 << 10, 1 << 8
"""Bytes of a string, and elements of an array that is the value of a field, up to which they are not cut out."""

REST = 1 << 18
"""Bytes that may be left of a body."""

MOST_MARKS, MOST_HARD = 1 << 15, 1 << 12
"""Pieces cut out of a part of a body, and numbers of it that are read with more care."""

REMEMBERED = 1 << 10
"""Bytes of what is left up to which it is remembered: bodies of one client often differ in their numbers only."""

MARK = "cut:"

HOLD_ARRAYS = frozenset({"inputs", "attn_mask", "attn_bias", "query", "key", "value", "data"})
"""Fields that may hold arrays; where another one does, something is wrong."""


class _Odd(Exception):
    """The body is not such that it can be cut."""


def plain_fields(body: bytes, needed: str, team: Team = ALONE) -> dict[str, Any] | None:
    """The object in a body, with all matrices of numbers or booleans as NumPy's.

    Args:
        body: as it came.
        needed: see `json_object`.
        team: who reads it.

    Returns:
        The fields: matrices of rows are (rows, columns), long arrays of elements (elements,), each float32 and finite,
        or bool; longer nestings are lists of those. Long strings of tensor objects are what they encode, as
        memoryviews. None if the body has to be read to the letter.
    """
    try:
        found: dict[int, Any] = {}
        rest = _cut(body, team, found)
        if rest.count(b'"' + MARK.encode()) != len(found):
            return None  # someone else makes such marks
        outline = _remembered(rest, needed) if len(rest) <= REMEMBERED else json_object(rest, needed)
        whole = {name: _restored(value, name, found) for name, value in outline.items()}
    except (AttentionError, ValueError, IndexError, RecursionError, _Odd):  # IndexError: more axes than NumPy has
        return None
    return None if found else whole


@lru_cache(maxsize=256)
def _remembered(rest: bytes, needed: str) -> dict[str, Any]:
    return json_object(rest, needed)


def _cut(body: bytes, team: Team, found: dict[int, Any]) -> bytes:
    """What is left of a body with marks in it; what they stand for is added to `found`, by their numbers."""
    edges = [*_starts(body, min(team.size, len(body) // PART)), len(body)]
    parts = [_Part(body, i, start, stop) for i, (start, stop) in enumerate(pairwise(edges))]
    if len(parts) > 1:
        team.spread([part.read for part in parts])
        if any(part.end != part.stop for part in parts):  # one began where no row does
            parts = [_Part(body, 0, 0, len(body))]
    if len(parts) == 1:
        parts[0].read()
    for part in parts:
        if part.end != part.stop:
            raise _Odd
        part.add_to(found)
    return b"".join(part.rest for part in parts)


def _starts(body: bytes, count: int) -> list[int]:
    """Where parts of about equal lengths most likely begin: at the next row of a matrix."""
    starts = [0]
    for i in range(1, count):
        row = body.find(b"[", max(i * len(body) // count, starts[-1] + 1))
        if row > 0 and body[row - 8 : row].rstrip().endswith(b","):
            starts.append(row)
    return starts


class _Part:
    """A part of a body, which ends where the next begins.

    Attributes:
        stop, end: where it should end, and where it does.
        rest: what is left of it.
    """

    end = digits.ODD
    rest = b""

    def __init__(self, body: bytes, number: int, start: int, stop: int) -> None:
        self.stop = stop
        self._body, self._start, self._base = body, start, number * MOST_MARKS

    def read(self) -> None:
        """Take it apart."""
        size = len(self._body) - self._start
        rest = np.empty(min(size, REST) + 32, np.uint8)
        self._numbers = np.empty(size // 2 + 1, np.float32)  # of which only what is written to is memory
        marks = np.empty((min(size // 2 + 1, MOST_MARKS), 4), np.int64)
        hard = np.empty((min(size // 2 + 1, MOST_HARD), 3), np.int64)
        text = np.frombuffer(self._body, np.uint8)
        self.end, length, _, marked, careful = digits.cut(
            text, self._start, self.stop, self._base, SHORT_STRING, SHORT_ROW, rest, self._numbers, marks, hard
        )
        if self.end == digits.ODD:
            return
        self.rest = rest[:length].tobytes()
        self._marks = marks[:marked].tolist()
        for i, begin, end in hard[:careful].tolist():
            with np.errstate(over="ignore"):
                self._numbers[i] = float(self._body[begin:end])
            if not np.isfinite(self._numbers[i]):
                self.end = digits.ODD

    def add_to(self, found: dict[int, Any]) -> None:
        """Add what has been cut out."""
        for number, (kind, at, rows, columns) in enumerate(self._marks, self._base):
            if kind == digits.STRING:
                found[number] = memoryview(self._body)[at:rows]
                continue
            piece: Array = self._numbers[at : at + rows * columns]
            if kind in (digits.FLAGS, digits.LONG_FLAGS):
                piece = piece != 0
            found[number] = piece.reshape(rows, columns) if kind in (digits.ROWS, digits.FLAGS) else piece


def _restored(value: Any, name: str, found: dict[int, Any]) -> Any:
    """A value with what was cut out of it in its place again; `name` is that of the innermost field."""
    if isinstance(value, dict):
        return {key: _restored(member, key, found) for key, member in value.items()}
    if isinstance(value, str) and value.startswith(MARK):
        piece = _taken(value, name, found)
        if isinstance(piece, np.ndarray) and piece.ndim != 1:
            raise _Odd  # a row, but beside something else
        return piece
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], str) and value[0].startswith(MARK):
        return _joined([_taken(mark, name, found) for mark in value])
    items = [_restored(item, name, found) for item in value]
    if name == "data" and items and isinstance(items[0], np.ndarray):
        return np.stack(items)  # raises if they have different shapes
    return items


def _joined(pieces: list[Any]) -> Array:
    """Rows of one matrix, which was cut into pieces."""
    first = pieces[0]
    for piece in pieces:
        if not isinstance(piece, np.ndarray) or piece.ndim != 2:
            raise _Odd
        if (piece.shape[1], piece.dtype) != (first.shape[1], first.dtype):
            raise _Odd
    whole: Array = first if len(pieces) == 1 else np.concatenate(pieces)
    return whole


def _taken(mark: Any, name: str, found: dict[int, Any]) -> Any:
    """What a mark stands for, once."""
    if not isinstance(mark, str) or not mark.startswith(MARK) or name not in HOLD_ARRAYS:
        raise _Odd
    piece = found.pop(int(mark[len(MARK) :]), None)
    if isinstance(piece, memoryview) and name == "data":
        return memoryview(pybase64.b64decode(piece, validate=True))
    if not isinstance(piece, np.ndarray):
        raise _Odd
    return piece
