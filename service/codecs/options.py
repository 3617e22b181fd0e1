"""The small fields of a request, from a body and a query string, and whether they go together."""

import difflib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from service.errors import ConflictingFields, InvalidOption, NotAcceptable, UnknownField, Unparsable
from service.messages import AnswerOptions, Options

Chosen = TypeVar("Chosen", bound=BaseModel)


@cache
def option_names(kind: type[BaseModel]) -> tuple[str, ...]:
    """The small fields, as callers spell them."""
    return tuple(field.alias or name for name, field in kind.model_fields.items())


OPTION_NAMES = option_names(Options)
"""Those of requests that bring embeddings."""


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for an unknown name."""
    near = difflib.get_close_matches(name[:64], known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


@lru_cache(maxsize=1024)
def query_options(query: str, kind: type[Chosen]) -> Chosen:
    """The options of a query string.

    Raises:
        InvalidInput: if a parameter is unknown, has a value it cannot have, or comes twice with different values.
    """
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError as error:
        raise Unparsable(f"the query string cannot be read: {error}") from error
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise ConflictingFields.at(f"/{name}", f"given twice in the query string: {found[name]!r} and {value!r}")
    return options(found, kind, strict=False)


def options(fields: Mapping[str, object], kind: type[Chosen], *, strict: bool) -> Chosen:
    """Options from named values: strictly typed ones of a JSON body, or the strings of a query string.

    Raises:
        UnknownField: with the nearest known name.
        InvalidOption: with the value and what would be right.
    """
    for name in fields:
        if name not in (known := option_names(kind)):
            raise UnknownField.at(f"/{name}", f"no such parameter; {nearest(name, known)}")
    try:
        return kind.model_validate(fields, strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        pointer = "".join(f"/{part}" for part in first["loc"])
        raise InvalidOption.at(pointer, f"{first['msg']}, got {first['input']!r}") from error


def merged(body: Chosen, query: Chosen) -> Chosen:
    """The options of a body and of the query string together.

    Raises:
        ConflictingFields: if both give one, differently.
    """
    if not query.model_fields_set:
        return body
    for name in body.model_fields_set & query.model_fields_set:
        mine, theirs = getattr(body, name), getattr(query, name)
        if mine != theirs:
            label = type(body).model_fields[name].alias or name
            raise ConflictingFields.at(f"/{label}", f"the body says {mine!r}, the query string {theirs!r}")
    return body.model_copy(update={name: getattr(query, name) for name in query.model_fields_set})


def check_format(chosen: AnswerOptions) -> None:
    """Raise `ConflictingFields` unless the answer can have the format and the decimals that are asked for."""
    if chosen.decimals is not None and chosen.encoding != "json":
        raise ConflictingFields.at("/decimals", "base64 holds no decimals; leave out `decimals` or `encoding`")
    if chosen.decimals is not None and chosen.dtype != "float32":
        raise ConflictingFields.at("/decimals", f"{chosen.dtype} rounds already; leave out `decimals` or `dtype`")
    if chosen.format != "bertviz":
        return
    if "returns" in chosen.model_fields_set and chosen.returns != ("weights",):
        raise ConflictingFields.at("/return", "with the format bertviz the answer is the weights, and nothing else")
    if chosen.top_k is not None:
        raise ConflictingFields.at("/top_k", "with the format bertviz the answer is all weights")
    if chosen.encoding != "json":
        raise ConflictingFields.at("/encoding", "with the format bertviz the answer is nested numbers")


def check_media_type(chosen: AnswerOptions, media_type: str) -> None:
    """Raise `NotAcceptable` unless an answer of a media type can be what is asked for."""
    if media_type == "application/json":
        return
    if chosen.format == "bertviz":
        raise NotAcceptable(f"the format bertviz is JSON, not {media_type}")
    if chosen.decimals is not None:
        raise NotAcceptable(f"decimals are those of numbers in JSON, not of {media_type}; accept application/json")
