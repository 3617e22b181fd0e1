"""Wire formats: one file each. To add one, write the file and name it here."""

from collections.abc import Mapping
from functools import lru_cache

from service.codecs.base import Decoder, Encoder, Request
from service.codecs.json import JsonCodec
from service.codecs.npy import NpyCodec, NpzCodec
from service.codecs.safetensors import SafetensorsCodec
from service.codecs.text import TextDecoder
from service.errors import NotAcceptable, UnsupportedMediaType
from service.messages import AttentionInput, TextInput

_JSON, _SAFETENSORS, _NPY, _NPZ = JsonCodec(), SafetensorsCodec(), NpyCodec(), NpzCodec()

DECODERS: dict[str, Decoder[AttentionInput]] = {codec.media_type: codec for codec in (_JSON, _SAFETENSORS, _NPY)}
"""What embeddings may be written in, by media type."""

TEXT_DECODERS: dict[str, Decoder[TextInput]] = {TextDecoder.media_type: TextDecoder()}
"""What requests with text may be written in."""

ENCODERS: dict[str, Encoder] = {codec.media_type: codec for codec in (_JSON, _SAFETENSORS, _NPZ)}
"""What answers can be written in, by media type; the first is the favourite where a caller has none."""

FAMILY: dict[str, Encoder] = {
    _JSON.media_type: _JSON,
    _SAFETENSORS.media_type: _SAFETENSORS,
    _NPY.media_type: _NPZ,
}
"""The answer's format for a request's, where the caller does not say."""


def decoder_for(content_type: str, decoders: Mapping[str, Decoder[Request]]) -> Decoder[Request]:
    """The reader, one of `decoders`, of a Content-Type header; JSON where there is none.

    Raises:
        UnsupportedMediaType: naming what is read.
    """
    media_type = content_type.partition(";")[0].strip().lower() or _JSON.media_type
    if (found := decoders.get(media_type)) is None:
        hint = " (curl -d sends this unless told -H 'Content-Type: application/json')" if "form" in media_type else ""
        raise UnsupportedMediaType(f"nobody here reads {media_type!r}{hint}; send {' or '.join(decoders)}")
    return found


@lru_cache(maxsize=256)
def encoder_for(accept: str, request_type: str) -> Encoder:
    """The writer that an Accept header likes best; of equals, the family of the request's media type comes first.

    Raises:
        NotAcceptable: if it likes none, naming what is written.
    """
    own = FAMILY[request_type]
    candidates = [own, *(encoder for encoder in ENCODERS.values() if encoder is not own)]
    if not accept.strip():
        return own
    ranges = [_range(part) for part in accept.split(",") if part.strip()]
    best, best_quality = own, 0.0
    for encoder in candidates:
        quality = _quality(encoder.media_type, ranges)
        if quality > best_quality:
            best, best_quality = encoder, quality
    if not best_quality:
        raise NotAcceptable(f"nobody here writes {accept!r}; accept {' or '.join(ENCODERS)}")
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
