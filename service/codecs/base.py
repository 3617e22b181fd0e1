"""What a codec is: bytes ──decode──> AttentionInput; AttentionOutput ──encode──> bytes. Pure: no clock, no I/O."""

import math
from typing import Protocol, TypeVar

from service.lane import ALONE, Piece, Team
from service.messages import AttentionOutput

Request = TypeVar("Request", covariant=True)

LONG_ANSWER = 1 << 19
"""Bytes of tensors from which a binary answer is put together in a thread, and sent in pieces."""


class Decoder(Protocol[Request]):
    """Reads requests of one media type.

    Attributes:
        plain_from: bytes from which a body is read by `decode_plain` first, in a thread.
    """

    media_type: str
    plain_from: float

    def decode(self, body: bytes, query: str) -> Request:
        """The request in `body` with the options of the query string.

        Raises:
            Unparsable: if the body is not what the media type says.
            InvalidInput: if it is, but means something that cannot be computed; the error names the place.
        """

    def decode_plain(self, body: bytes, query: str, team: Team) -> Request | None:
        """The request in a long body, read by a team; None where only `decode` finds it, or what is wrong."""


class ReadsAtOnce:
    """A decoder that reads long bodies as it reads short ones."""

    plain_from = math.inf

    def decode_plain(self, body: bytes, query: str, team: Team) -> None:
        """See `Decoder.decode_plain`."""


class Encoder(Protocol):
    """Writes answers of one media type.

    Attributes:
        long_answer: bytes of tensors from which an answer is long.
    """

    media_type: str
    long_answer: int

    def encode(self, output: AttentionOutput) -> bytes:
        """The answer's bytes."""

    def pieces(self, output: AttentionOutput, team: Team = ALONE) -> list[Piece]:
        """The same bytes in pieces, written by a team; for long answers."""
