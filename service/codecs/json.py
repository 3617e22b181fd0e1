"""JSON: numbers or base64 tensor objects.

Numbers go from text to an array without becoming Python objects, wherever a body is plain (`cut_json`). A body that is
not is read again with the standard library, either to find the exact place and say what is wrong there, or because the
body is fine but unusual.
"""

from typing import Any

import numpy as np

from models.errors import AttentionError, ShapeMismatch
from models.types import F32, Projections
from service.codecs import cut_json, json_answer, long_json
from service.codecs.nested import each_projection, is_tensor, mask, matrix, tensor
from service.codecs.options import OPTION_NAMES, merged, nearest, query_options
from service.codecs.requests import FLOATS, TENSOR_FIELDS, assemble, check_count, float32
from service.codecs.strict_json import body_options, escaped, json_object, json_type
from service.errors import UnknownField, WrongType
from service.lane import ALONE, Piece, Team
from service.messages import AttentionInput, AttentionOutput, Form, Options

FIELDS = (*TENSOR_FIELDS, *OPTION_NAMES)


class JsonCodec:
    """`application/json`, both ways."""

    media_type = "application/json"
    plain_from: float = cut_json.LONG
    long_answer = long_json.LONG

    def decode(self, body: bytes, query: str) -> AttentionInput:
        """See `Decoder.decode`."""
        request = self.decode_plain(body, query, ALONE)
        return _request(json_object(body, "inputs"), query) if request is None else request

    def decode_plain(self, body: bytes, query: str, team: Team) -> AttentionInput | None:
        """See `Decoder.decode_plain`."""
        fields = cut_json.plain_fields(body, "inputs", team)
        try:
            return None if fields is None else _request(fields, query)
        except AttentionError:
            return None

    def encode(self, output: AttentionOutput) -> bytes:
        """See `Encoder.encode`. Masked scores are `null`; numbers have the digits that keep them, or decimals."""
        return json_answer.whole(output)

    def pieces(self, output: AttentionOutput, team: Team = ALONE) -> list[Piece]:
        """See `Encoder.pieces`."""
        return json_answer.pieces(output, team)


def _request(fields: dict[str, Any], query: str) -> AttentionInput:
    for name in fields:
        if name not in FIELDS:
            raise UnknownField.at(f"/{escaped(name)}", f"no such field; {nearest(name, FIELDS)}")
    if "inputs" not in fields:
        raise ShapeMismatch.at("/inputs", "the field is missing; it holds the token embeddings")
    chosen = query_options(query, Options)
    small = {name: value for name, value in fields.items() if name in OPTION_NAMES}
    if small:
        chosen = merged(body_options(small, Options), chosen)
    inputs, form = _sequences(fields["inputs"])
    return assemble(
        inputs,
        _each(fields.get("attn_mask"), "/attn_mask", form, mask),
        _each(fields.get("attn_bias"), "/attn_bias", form, _bias),
        form,
        chosen,
        _projections(fields.get("projections")),
    )


def _sequences(value: Any) -> tuple[list[F32], Form]:
    """`inputs`, which may be one sequence, a list of them, or a tensor object of either."""
    if is_tensor(value):
        array = float32(tensor(value, "/inputs", FLOATS), "/inputs")
        return (list(array), "stack") if array.ndim == 3 else ([array], "one")
    if isinstance(value, np.ndarray):
        return [_sequence(value, "/inputs")], "one"
    if not isinstance(value, list):
        raise WrongType.at("/inputs", f"expected rows of numbers or a tensor object, got {json_type(value)}")
    if not value:
        raise ShapeMismatch.at("/inputs", "the sequence has no tokens; at least one is needed")
    if not (isinstance(value[0], (dict, np.ndarray)) or (isinstance(value[0], list) and _holds_rows(value[0]))):
        return [float32(matrix(value, "/inputs"), "/inputs")], "one"
    check_count(len(value), "/inputs")
    return [_sequence(item, f"/inputs/{i}") for i, item in enumerate(value)], "list"


def _holds_rows(item: list[Any]) -> bool:
    return bool(item) and isinstance(item[0], list)


def _sequence(value: Any, pointer: str) -> F32:
    if is_tensor(value):
        return float32(tensor(value, pointer, FLOATS), pointer)
    if not isinstance(value, np.ndarray):
        return float32(matrix(value, pointer), pointer)
    if value.dtype == np.bool_:
        raise WrongType.at(f"{pointer}{'/0' * value.ndim}", "expected a number, got a boolean")
    return float32(value, pointer)


def _each(value: Any, pointer: str, form: Form, read: Any) -> list[Any] | None:
    """One mask or bias per sequence: the value itself for one sequence, else a list with null where there is none."""
    if value is None:
        return None
    if form == "one":
        return [read(value, pointer)]
    if isinstance(value, np.ndarray):
        raise WrongType.at(f"{pointer}/0/0", "expected a row, got a number; give one matrix for each sequence")
    if is_tensor(value):
        whole = read(value, pointer)
        if whole.ndim < 3:
            raise ShapeMismatch.at(pointer, f"its shape is {list(whole.shape)}, expected one for each sequence")
        return list(whole)
    if not isinstance(value, list):
        raise WrongType.at(pointer, f"expected a list with one entry per sequence, got {json_type(value)}")
    check_count(len(value), pointer)
    return [None if item is None else read(item, f"{pointer}/{i}") for i, item in enumerate(value)]


def _bias(value: Any, pointer: str) -> F32:
    if isinstance(value, list) and value and all(isinstance(item, np.ndarray) for item in value):
        if len({item.shape for item in value}) > 1:
            raise ShapeMismatch.at(pointer, "the heads have different shapes")
        return _sequence(np.stack(value), pointer)
    if isinstance(value, list) and value and isinstance(value[0], list) and _holds_rows(value[0]):
        check_count(len(value), pointer)
        heads = [matrix(item, f"{pointer}/{i}") for i, item in enumerate(value)]
        if len({item.shape for item in heads}) > 1:
            raise ShapeMismatch.at(pointer, "the heads have different shapes")
        return float32(np.stack(heads), pointer)
    return _sequence(value, pointer)


def _projections(value: Any) -> Projections | None:
    if value is None:
        return None
    return Projections(*(_sequence(each, f"/projections/{name}") for name, each in each_projection(value).items()))
