"""JSON that is read to the letter: one meaning per body, and every fault with its place."""

import json
from typing import Any

from service.codecs.options import Chosen, options
from service.errors import ConflictingFields, Unparsable, WrongType


def json_object(body: bytes, needed: str) -> dict[str, Any]:
    """The object a body holds.

    Args:
        body: as it came.
        needed: the field it cannot do without, for messages.

    Raises:
        Unparsable: if it is not JSON; the words NaN and Infinity are not.
        ConflictingFields: if a name stands twice in one object.
        WrongType: if it is JSON, but no object.
    """
    try:
        text = bytes(body).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unparsable(f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from error
    if not text.strip():
        raise Unparsable(f'the body is empty; a JSON object with "{needed}" is needed')
    try:
        value = json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise Unparsable(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise Unparsable("not JSON that anyone here reads: it is nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits
        raise Unparsable(f"not JSON that anyone here reads: {error}") from error
    if not isinstance(value, dict):
        raise WrongType.at("", f'the body is {json_type(value)}; a JSON object with "{needed}" is needed')
    return value


def _refuse_constant(word: str) -> None:
    raise Unparsable(f"not JSON: {word} is no JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ConflictingFields.at(f"/{name}", "the field stands twice in one object")
        found[name] = value
    return found


def body_options(small: dict[str, Any], kind: type[Chosen]) -> Chosen:
    """The options among the fields of a body: strictly typed, lists where a query string has commas.

    Raises:
        InvalidInput: see `options`.
    """
    for name in ("return", "layers"):
        if isinstance(value := small.get(name), list):
            small = small | {name: tuple(value)}
        elif name == "return" and "return" in small:
            raise WrongType.at("/return", f"expected a list of tensor names, got {json_type(value)}")
    return options(small, kind, strict=True)


def json_type(value: Any) -> str:
    """What JSON calls the type of a value."""
    if isinstance(value, bool):
        return "a boolean"
    names = {str: "a string", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return "null" if value is None else names.get(type(value), "an array of numbers")


def escaped(name: str) -> str:
    """A field's name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
