"""Wire formats: one file each. To add one, write the file and name it here."""

from functools import lru_cache

from service.codecs.base import Decoder, Encoder
from service.codecs.json import JsonCodec
from service.codecs.npy import NpyCodec, NpzCodec
from service.codecs.safetensors import SafetensorsCodec
from service.errors import NotAcceptable, UnsupportedMediaType

_JSON, _SAFETENSORS, _NPY, _NPZ = JsonCodec(), SafetensorsCodec(), NpyCodec(), NpzCodec()

DECODERS: dict[str, Decoder] = {codec.media_type: codec for codec in (_JSON, _SAFETENSORS, _NPY)}
"""What requests may be written in, by media type."""

ENCODERS: dict[str, Encoder] = {codec.media_type: codec for codec in (_JSON, _SAFETENSORS, _NPZ)}
"""What answers can be written in, by media type; the first is the favourite where a caller has none."""

FAMILY: dict[str, Encoder] = {
    _JSON.media_type: _JSON,
    _SAFETENSORS.media_type: _SAFETENSORS,
    _NPY.media_type: _NPZ,
}
"""The answer's format for a request's, where the caller does not say."""


@lru_cache(maxsize=256)
def decoder_for(content_type: str) -> Decoder:
    """The reader of a Content-Type header; JSON where there is none.

    Raises:
        UnsupportedMediaType: naming what is read.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if not media_type:
        return _JSON
    if (found := DECODERS.get(media_type)) is None:
        hint = " (curl -d sends this unless told -H 'Content-Type: application/json')" if "form" in media_type else ""
        raise UnsupportedMediaType(f"nobody here reads {media_type!r}{hint}; send {' or '.join(DECODERS)}")
    return found


def encoder_for(accept: str, decoder: Decoder) -> Encoder:
    """The writer that an Accept header likes best; of equals, the request's own family comes first.

    Raises:
        NotAcceptable: if it likes none, naming what is written.
    """
    return _encoder_for(accept, decoder.media_type)


@lru_cache(maxsize=256)
def _encoder_for(accept: str, request_type: str) -> Encoder:
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
