"""The texts of a request."""

from collections.abc import Sequence

from service.codecs.strict_json import json_type
from service.errors import TooLarge, WrongType

MOST_CHARACTERS = 1 << 17
"""Characters of one request: tokenising more would take seconds, and no encoder takes so many tokens."""


def checked_texts(values: Sequence[object], pointers: Sequence[str]) -> tuple[str, ...]:
    """The texts, if they are some.

    Args:
        values: of each text, what should be a string.
        pointers: where each stands in the request.

    Raises:
        WrongType: if one is no string.
        TooLarge: if they have more than `MOST_CHARACTERS` together.
    """
    texts: list[str] = []
    characters = 0
    for value, pointer in zip(values, pointers, strict=True):
        if not isinstance(value, str):
            raise WrongType.at(pointer, f"expected a string, got {json_type(value)}")
        characters += len(value)
        if characters > MOST_CHARACTERS:
            raise TooLarge.at(pointer, f"{characters} characters so far; a request may have {MOST_CHARACTERS}")
        texts.append(value)
    return tuple(texts)
