"""Numbers as people write them by hand, read without a guess: what could be two numbers is none."""

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from models.types import F64

MOST_CHARACTERS = 40
"""Longest text that is looked at."""

LARGEST = 1e9
"""Largest number that is read; nobody meets a larger one in a problem worked by hand."""

DEEPEST = 4
"""Axes an answer can have: heads, rows, columns, and the columns of weighted values."""

MASKED = frozenset({"-inf", "-infinity", "-∞", "masked"})
"""How people write a masked score, with any minus, in any case."""

_MINUS = str.maketrans(dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}\N{HYPHEN}\N{NON-BREAKING HYPHEN}", "-"))
_DECIMAL = r"(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_TERM = rf"(?:√\s*({_DECIMAL})|sqrt\s*\(\s*({_DECIMAL})\s*\)|({_DECIMAL}))"
_NUMBER = re.compile(rf"([+-]?)\s*{_TERM}(?:\s*/\s*{_TERM})?", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2},[0-9]{3}(?![0-9])")
"""One to three digits, a comma and exactly three more: 1.234 to some, 1234 to others. A leading 0 leaves no doubt."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What stands in a cell.

    Attributes:
        value: the number, or None.
        fault: why it could not be read; empty where it could, and where nothing stands there.
    """

    value: float | None
    fault: str = ""


BLANK = Reading(None)


def read(cell: object, *, masked: bool = False) -> Reading:
    """Read one cell; whatever it is, that is no exception.

    Args:
        cell: a number, a text, or None; an empty text and None are a blank, not a zero.
        masked: whether a masked score may stand there; it is read as minus infinity.
    """
    if cell is None:
        return BLANK
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return Reading(None, "this is not a number")
    if not isinstance(cell, str):
        return _within(cell, masked=masked)
    if len(cell) > MOST_CHARACTERS:
        return Reading(None, f"this is longer than {MOST_CHARACTERS} characters")
    text = cell.strip().translate(_MINUS)
    if not text:
        return BLANK
    if text.replace(" ", "").lower() in MASKED:
        return Reading(-math.inf) if masked else Reading(None, "only a masked score is minus infinity")
    return _text(text)


def _text(text: str) -> Reading:
    sign, rest = (text[0], text[1:].strip()) if text[0] in "+-" else ("", text)
    if len(rest) == 1 and "VULGAR FRACTION" in unicodedata.name(rest, "") and rest not in "⅟":
        value = unicodedata.numeric(rest)
        return Reading(-value if sign == "-" else value)
    if not (found := _NUMBER.fullmatch(text)):
        return Reading(None, "this is not a number as 0.5, 0,5, −2, 1/3, √3 or 1e-3 is")
    if _THOUSANDS.search(text):
        return Reading(None, "this comma could separate thousands; write a point, or another digit behind it")
    over, under = _term(found.groups()[1:4]), _term(found.groups()[4:7])
    if under == 0:
        return Reading(None, "nothing can be divided by zero")
    return _within(-over / under if found[1] == "-" else over / under)


def _term(groups: tuple[str | None, ...]) -> float:
    """One of a root, a root in words and a decimal; 1 for none, as nothing stands below a number without a fraction."""
    root, root_in_words, plain = (group and float(group.replace(",", ".")) for group in groups)
    for found in (root, root_in_words):
        if isinstance(found, float):
            return math.sqrt(found)
    return plain if isinstance(plain, float) else 1.0


def _within(value: float, *, masked: bool = False) -> Reading:
    if masked and value == -math.inf:
        return Reading(-math.inf)
    if not abs(value) <= LARGEST:  # so that NaN is refused too
        return Reading(None, "this is larger than any number of the problem")
    return Reading(float(value))


Nested = Reading | list["Nested"]
"""Readings, nested as the answer is."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A learner's answer to a step.

    Attributes:
        readings: of every cell, nested as the answer is.
        values: the numbers, not a number where there is none; None where the rows do not make an array.
    """

    readings: Nested
    values: F64 | None

    @property
    def empty(self) -> bool:
        """Whether nothing was written at all."""
        return all(reading == BLANK for reading in cells_of(self.readings))


def read_sheet(answer: object, most: int, *, masked: bool = False) -> Sheet:
    """Read the answer to a step; whatever it is, that is no exception.

    Args:
        answer: nested lists of cells.
        most: cells that are looked at; more are one that cannot be read.
        masked: see `read`.
    """
    left = most

    def nested(part: object, depth: int) -> Nested:
        nonlocal left
        if isinstance(part, list):
            if depth == DEEPEST or left < len(part):
                left = -1
            if left < 0:
                return Reading(None, "there are far more cells here than the step has")
            return [nested(each, depth + 1) for each in part]
        left -= 1
        return read(part, masked=masked)

    readings = nested(answer, 0)
    if left < 0:
        readings = Reading(None, "there are far more cells here than the step has")
    shape = _shape(readings)
    if shape is None:
        return Sheet(readings, None)
    numbers = [math.nan if cell.value is None else cell.value for cell in cells_of(readings)]
    return Sheet(readings, np.array(numbers).reshape(shape))


def cells_of(readings: Nested) -> Iterator[Reading]:
    """Every cell in order."""
    if isinstance(readings, Reading):
        yield readings
    else:
        for each in readings:
            yield from cells_of(each)


def _shape(readings: Nested) -> tuple[int, ...] | None:
    """The shape of nested lists; None where they are ragged."""
    if isinstance(readings, Reading):
        return ()
    shapes = {_shape(each) for each in readings}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(readings), *(shapes.pop() or ())) if shapes else (0,)
