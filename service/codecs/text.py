"""Requests that bring text: `{"text": ..., ...}` in JSON."""

from service.codecs.base import ReadsAtOnce
from service.codecs.options import check_format, merged, nearest, option_names, query_options
from service.codecs.requests import check_count
from service.codecs.strict_json import body_options, escaped, json_object
from service.codecs.texts import checked_texts
from service.errors import InvalidOption, UnknownField, WrongType
from service.messages import Form, TextInput, TextOptions

OPTIONS = option_names(TextOptions)
FIELDS = ("text", *OPTIONS)


class TextDecoder(ReadsAtOnce):
    """`application/json` with text in it."""

    media_type = "application/json"

    def decode(self, body: bytes, query: str) -> TextInput:
        """The request in `body` with the options of the query string; raises what `Decoder.decode` does."""
        fields = json_object(body, "text")
        for name in fields:
            if name not in FIELDS:
                raise UnknownField.at(f"/{escaped(name)}", f"no such field; {nearest(name, FIELDS)}")
        if "text" not in fields:
            raise WrongType.at("/text", "the field is missing; it holds a text, or a list of texts")
        chosen = query_options(query, TextOptions)
        small = {name: value for name, value in fields.items() if name in OPTIONS}
        if small:
            chosen = merged(body_options(small, TextOptions), chosen)
        check_format(chosen)
        texts, form = _texts(fields["text"])
        return TextInput(texts, form, chosen)


def _texts(value: object) -> tuple[tuple[str, ...], Form]:
    if not isinstance(value, list):
        return checked_texts([value], ["/text"]), "one"
    if not value:
        raise InvalidOption.at("/text", "the list is empty; at least one text is needed")
    check_count(len(value), "/text")
    return checked_texts(value, [f"/text/{i}" for i in range(len(value))]), "list"
