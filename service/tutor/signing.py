"""Tokens: an exercise's terms in letters that nobody can change, so that nothing has to be stored.

A token is base64url of the terms as JSON, a dot, and base64url of an HMAC-SHA256 of what stands before it. It holds no
answer: what it says of the numbers is what makes them.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import asdict
from typing import Any

from models.errors import InvalidInput
from service.errors import InvalidOption
from service.tutor.exercise import Terms
from service.tutor.exercises import GENERATORS
from service.tutor.exercises.terms import DEFAULTS, Wanted, terms_of

PUBLISHED_KEY = "self-attention-exercises"
"""What is signed with where no key is set: tokens hold in every replica then, and anybody can forge one."""

LONGEST = 2_000
"""Characters of a token that are looked at."""

POINTER = "/exercise"


class Signer:
    """Makes and reads tokens with one key."""

    def __init__(self, key: str = "") -> None:
        """Sign with `key`; empty for the published one."""
        self.forgeable = not key
        self._key = (key or PUBLISHED_KEY).encode()

    def token(self, terms: Terms) -> str:
        """The token of terms."""
        content = json.dumps(asdict(terms), sort_keys=True, separators=(",", ":"))
        text = _written(content.encode())
        return f"{text}.{self._signature(text)}"

    def terms(self, token: str) -> Terms:
        """The terms in a token.

        Raises:
            InvalidOption: if it is none, was changed or signed with another key, or is of a generator that is not here.
        """
        text, _, signature = token.partition(".")
        # Compared as bytes: a text that is not ASCII cannot be compared in constant time.
        good = len(token) <= LONGEST and hmac.compare_digest(self._signature(text).encode(), signature.encode())
        if not good:
            raise InvalidOption.at(POINTER, "this is no token of an exercise, or not one of this service")
        try:
            fields = json.loads(_read(text))
            return _checked(fields)
        except (ValueError, TypeError, KeyError, binascii.Error, RecursionError) as error:
            raise InvalidOption.at(POINTER, "this token holds no exercise") from error

    def _signature(self, text: str) -> str:
        return _written(hmac.digest(self._key, text.encode("utf-8", "replace"), hashlib.sha256))


def _checked(fields: dict[str, Any]) -> Terms:
    """Terms that could have been issued: where the published key is used, anybody can sign anything."""
    generator = fields["generator"]
    if generator not in GENERATORS:
        raise InvalidOption.at(POINTER, f"made by {str(generator)[:64]!r}, which this version does not have")
    draw = fields["draw"]
    if type(draw) is not int or not 0 <= draw < GENERATORS[generator].draws:
        raise ValueError(draw)
    options = {name: fields[name] for name in (*DEFAULTS, "level", "mode", "decimals")}
    ask = None if fields["mode"] == "whiteboard" else fields["ask"]
    try:
        terms = terms_of(Wanted(**options, ask=ask), generator, fields["seed"], draw, fields["part"])
    except InvalidInput as error:
        raise ValueError(error.detail) from error
    if asdict(terms) | {"ask": list(terms.ask)} != fields:  # nothing is left to defaults, which may change
        raise ValueError(fields)
    return terms


def _written(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _read(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
