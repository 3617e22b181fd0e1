"""Long JSON bodies, read a piece at a time.

Most of a long body is a few matrices. They are cut out, some rows at a time, each piece is parsed by itself, and a mark
is left in its place. What is then left of the body is short, and is read to the letter as any other. That is the same
as reading the whole: a piece is `value, value, …` within an array, its mark is one value within an array, and JSON
allows the one wherever it allows the other.

Whatever does not fit that picture is not read here: `fields_in_steps` then finds nothing, the body is read as a whole,
and if something is wrong with it, that names the place.
"""

import binascii
import re
from typing import Any

import numpy as np
import simdjson

from models.errors import AttentionError
from models.types import Array
from service.codecs.strict_json import json_object
from service.lane import Steps

PIECE = 1 << 16
"""Bytes of a piece: parsed in about 0.1 ms, and large enough that nothing is lost by it."""

SHORT = 1 << 10
"""Bytes between two quotation marks that stay where they are."""

BETWEEN = 1 << 16
"""Bytes between two arrays beyond which a body is read as a whole."""

MOST_STRINGS, MOST_PIECES, MOST_LEFT = 1 << 12, 1 << 12, 1 << 18
"""Quotation marks of a body, pieces cut out of it, and bytes that are left, beyond which it is read as a whole."""

MARK = "cut:"

ROW = re.compile(rb"\[\s*[^\s\[\]]")
"""Where an array begins that does not begin with another one."""

LAST = re.compile(rb"\]\s*\]")
"""Where a row ends, and with it its matrix."""


class _Odd(Exception):
    """The body is not such that it can be cut."""


def fields_in_steps(body: bytes, needed: str) -> Steps[dict[str, Any] | None]:
    """The object in a long body, with all long arrays of numbers or booleans as NumPy's.

    Args:
        body: as it came.
        needed: see `json_object`.

    Returns:
        The fields: matrices of rows are (rows, columns), a flat array is (elements,), each float32 and finite, or bool;
        longer nestings are lists of those. The strings of tensor objects are what they encode, as memoryviews. None if
        the body has to be read as a whole.
    """
    cuts = _Cuts(body)
    try:
        yield from cuts.made()
        left = b"".join(cuts.left)
        if len(left) > MOST_LEFT or left.count(b'"' + MARK.encode()) != len(cuts.found):
            return None  # too much, or someone else makes such marks
        fields = json_object(left, needed)
        whole: dict[str, Any] = {}
        for name in fields:
            whole[name] = yield from _restored(fields[name], name, cuts.found)
    except (AttentionError, ValueError, TypeError, RuntimeError, _Odd):
        return None
    return None if any(piece is not None for piece in cuts.found) else whole


class _Cuts:
    """A body taken apart.

    Attributes:
        found: what was cut out: rows (rows, columns), elements (elements,), or the bytes that base64 stands for.
        left: the rest, with marks.
    """

    def __init__(self, body: bytes) -> None:
        self.found: list[Array | bytearray | None] = []
        self.left: list[bytes] = []
        self._body = body
        self._parser = simdjson.Parser()
        self._goes_on = False  # whether the last piece cut out did not end its matrix

    def made(self) -> Steps[None]:
        """Take the body apart."""
        body = self._body
        if b"\\" in body:  # then a quotation mark need not be the end of a string
            raise _Odd
        at, inside = 0, False
        for _ in range(MOST_STRINGS):
            quote = body.find(b'"', at)
            end = quote if quote >= 0 else len(body)
            if end - at < SHORT:
                self.left.append(body[at:end])
            elif inside:
                yield from self._base64(at, end)
            else:
                yield from self._arrays(at, end)
            if quote < 0:
                return
            self.left.append(b'"')
            at, inside = end + 1, not inside
        raise _Odd

    def _arrays(self, at: int, end: int) -> Steps[None]:
        """Cut every array out of a part of the body without strings."""
        body = self._body
        while row := ROW.search(body, at, min(end, at + BETWEEN)):
            start = row.start()
            before = body[at:start]
            self.left.append(before)
            first = body.find(b"]", start, end)
            if first - start > 2 * PIECE or (first > 0 and before.rstrip().endswith(b":")):  # it is no row of a matrix
                self.left.append(b"[")
                yield from self._elements(start + 1, first)
                at = first
                continue
            # What is cut ends with the first row that makes it a piece, or with the last of the matrix before that.
            stop = body.find(b"]", start + PIECE, end) + 1 or body.rfind(b"]", start, end) + 1
            if not start < stop <= start + 4 * PIECE:
                raise _Odd
            at = self._some_rows(start, stop)
            yield
        if end - at > BETWEEN:
            raise _Odd
        self.left.append(body[at:end])

    def _some_rows(self, start: int, stop: int) -> int:
        """Cut out rows of one matrix, and say where they end: at `stop`, or with the matrix before that.

        Where a matrix has gone on so far, it most likely does so: to read on is cheaper than to look for its end, and
        fails if that is there.
        """
        if self._goes_on:
            try:
                self._take(_rows(self._parser, self._body[start:stop]))
            except ValueError:
                pass
            else:
                return stop
        last = LAST.search(self._body, start, stop)
        if last:
            stop = last.start() + 1
        self._take(_rows(self._parser, self._body[start:stop]))
        self._goes_on = last is None
        return stop

    def _elements(self, at: int, end: int) -> Steps[None]:
        """Cut up a long array of numbers or booleans, without its brackets."""
        while at < end:
            comma = self._body.find(b",", min(at + PIECE, end), end)
            stop = comma if comma >= 0 else end
            self._take(_elements(self._parser, self._body[at:stop]))
            at = stop
            if comma >= 0:
                self.left.append(b",")
                at += 1
            yield

    def _base64(self, at: int, end: int) -> Steps[None]:
        """Cut up a long string of base64, and leave its quotation marks."""
        decoded = bytearray()
        for start in range(at, end, PIECE):  # of which 4 is a divisor
            text = self._body[start : min(start + PIECE, end)]
            raw = binascii.a2b_base64(text, strict_mode=True)
            if len(raw) * 4 != len(text) * 3 and start + PIECE < end:
                raise _Odd  # padding, and more behind it
            decoded += raw
            yield
        self.left.append(f"{MARK}{len(self.found)}".encode())
        self.found.append(decoded)

    def _take(self, piece: Array) -> None:
        if len(self.found) >= MOST_PIECES:
            raise _Odd
        self.left.append(f'"{MARK}{len(self.found)}"'.encode())
        self.found.append(piece)


def _rows(parser: Any, text: bytes) -> Array:
    """Rows of one length, (rows, columns), of a text such as `[1, 2], [3, 4]`."""
    rows = parser.parse(b"[" + text + b"]")
    lengths = {len(row) if isinstance(row, simdjson.Array) else 0 for row in rows}
    # A row such as [1, [2]] would be flattened unseen: then there are more brackets. NumPy counts them in a
    # third of the time that bytes take.
    if len(lengths) != 1 or np.count_nonzero(np.frombuffer(text, np.uint8) == ord("[")) != len(rows):
        raise _Odd
    return _flat(rows, text, len(rows) * max(lengths)).reshape(len(rows), -1)


def _elements(parser: Any, text: bytes) -> Array:
    """The elements, (elements,), of a text such as `1, 2, 3`."""
    elements = parser.parse(b"[" + text + b"]")
    if b"[" in text:
        raise _Odd
    return _flat(elements, text, len(elements))


def _flat(parsed: Any, text: bytes, count: int) -> Array:
    """All of the `count` elements in a text, float32 and finite, or bool."""
    letters = np.frombuffer(text, np.uint8)
    if b"u" in text:  # true; in false there is none, but both have an e, as numbers may
        letters = letters[(letters == ord("t")) | (letters == ord("f"))]
        flat: Array = letters == ord("t")
    elif b"f" in text:
        flat = np.zeros(np.count_nonzero(letters == ord("f")), np.bool_)
    else:
        numbers = np.frombuffer(parsed.as_buffer(of_type="d"), np.float64)
        with np.errstate(over="ignore"):
            flat = numbers.astype(np.float32)
        if not np.isfinite(flat).all():
            raise _Odd
    if not count or flat.size != count:
        raise _Odd
    return flat


def _restored(value: Any, name: str, found: list[Array | bytearray | None]) -> Steps[Any]:
    """A value with what was cut out of it in its place again; `name` is that of the field or of the innermost one."""
    if isinstance(value, dict):
        members: dict[str, Any] = {}
        for key in value:
            members[key] = yield from _restored(value[key], key, found)
        return members
    if isinstance(value, str) and name == "data" and value.startswith(MARK):
        return memoryview(_taken(value, found, bytearray))
    if not isinstance(value, list):
        return value
    if not (value and isinstance(value[0], str) and value[0].startswith(MARK)):
        items: list[Any] = [None] * len(value)
        for i, item in enumerate(value):
            items[i] = yield from _restored(item, name, found)
        long_rows = [item for item in items if isinstance(item, np.ndarray) and item.ndim == 1]
        if not long_rows:
            return items
        if len(long_rows) < len(items) or len({(row.dtype, row.size) for row in long_rows}) > 1:
            raise _Odd
        return np.stack(long_rows)
    pieces = [_taken(mark, found, np.ndarray) for mark in value]
    first = pieces[0]
    whole = np.empty((sum(map(len, pieces)), *first.shape[1:]), first.dtype)
    at = 0
    for piece in pieces:
        if piece.shape[1:] != first.shape[1:] or piece.dtype != first.dtype:
            raise _Odd
        whole[at : at + len(piece)] = piece
        at += len(piece)
        yield
    return whole


def _taken(mark: Any, found: list[Any], kind: type) -> Any:
    """What a mark stands for, once."""
    if not isinstance(mark, str) or not mark.startswith(MARK):
        raise _Odd
    index = int(mark[len(MARK) :])
    piece, found[index] = found[index], None
    if not isinstance(piece, kind):
        raise _Odd
    return piece
