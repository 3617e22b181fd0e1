"""What the headers Content-Type and Accept say."""

from collections.abc import Sequence

from service.errors import NotAcceptable, UnsupportedMediaType


def received(content_type: str, read: Sequence[str]) -> str:
    """The media type of a body, one of `read`; the first, which is JSON, where there is no header.

    Raises:
        UnsupportedMediaType: naming what is read.
    """
    media_type = content_type.partition(";")[0].strip().lower() or read[0]
    if media_type not in read:
        hint = " (curl -d sends this unless told -H 'Content-Type: application/json')" if "form" in media_type else ""
        raise UnsupportedMediaType(f"nobody here reads {media_type!r}{hint}; send {' or '.join(read)}")
    return media_type


def preferred(accept: str, offered: Sequence[str]) -> str:
    """The media type that an Accept header likes best; of equals, and where there is no header, the first.

    Raises:
        NotAcceptable: if it likes none, naming what is written.
    """
    if not accept.strip():
        return offered[0]
    ranges = [_range(part) for part in accept.split(",") if part.strip()]
    best, best_quality = offered[0], 0.0
    for media_type in offered:
        quality = _quality(media_type, ranges)
        if quality > best_quality:
            best, best_quality = media_type, quality
    if not best_quality:
        raise NotAcceptable(f"nobody here writes {accept!r}; accept {' or '.join(offered)}")
    return best


def _range(part: str) -> tuple[str, float]:
    """A media range and its quality, RFC 9110 section 12.5.1; a quality that is no number counts as 1."""
    media_range, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return media_range, max(0.0, min(1.0, float(value)))  # in this order NaN is 1
            except ValueError:
                break
    return media_range, 1.0


def _quality(media_type: str, ranges: list[tuple[str, float]]) -> float:
    """The quality of the most specific range that covers a media type."""
    for wanted in (media_type, media_type.partition("/")[0] + "/*", "*/*"):
        found = [quality for media_range, quality in ranges if media_range == wanted]
        if found:
            return max(found)
    return 0.0
