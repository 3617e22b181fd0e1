"""Wire formats: one file each. To add one, write the file and name it here."""

from collections.abc import Mapping
from functools import lru_cache

from service.codecs.base import Decoder, Encoder, Request
from service.codecs.json import JsonCodec
from service.codecs.negotiation import preferred, received
from service.codecs.npy import NpyCodec, NpzCodec
from service.codecs.safetensors import SafetensorsCodec
from service.codecs.text import TextDecoder
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
    return decoders[received(content_type, tuple(decoders))]


@lru_cache(maxsize=256)
def encoder_for(accept: str, request_type: str) -> Encoder:
    """The writer that an Accept header likes best; of equals, the family of the request's media type comes first.

    Raises:
        NotAcceptable: if it likes none, naming what is written.
    """
    own = FAMILY[request_type].media_type
    return ENCODERS[preferred(accept, (own, *(media_type for media_type in ENCODERS if media_type != own)))]
