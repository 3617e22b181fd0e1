"""Answers in JSON, in one go or in pieces."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import orjson
import pybase64

from models.encoder_spec import placed
from models.types import F32, F64, Array
from service.codecs.answers import metadata
from service.codecs.long_json import Hold, base64_parts, in_pieces, number_parts
from service.lane import Piece, Team
from service.messages import AttentionOutput, TopK

Numbers = Callable[[Array, int | None], Any]
"""What stands in the document for an array's numbers, nested, with so many decimals."""

Base64 = Callable[[Array], Any]
"""What stands there for an array's elements as base64."""


def whole(output: AttentionOutput) -> bytes:
    """The answer's bytes."""
    return orjson.dumps(_document(output, _written, _base64), option=orjson.OPT_SERIALIZE_NUMPY)


def pieces(output: AttentionOutput, team: Team) -> list[Piece]:
    """The same in pieces, written by a team."""

    def document(hold: Hold) -> Any:
        def numbers(array: Array, decimals: int | None) -> orjson.Fragment:
            return hold(number_parts(array, partial(_written, decimals=decimals)))

        return _document(output, numbers, lambda array: hold(base64_parts(array)))

    return in_pieces(document, team)


def _document(output: AttentionOutput, numbers: Numbers, base64: Base64) -> dict[str, Any]:
    if output.format == "bertviz":
        return _bertviz(output, numbers)

    def write(value: Array | TopK) -> Any:
        as_base64 = output.encoding == "base64"
        return _tensor_object(value, base64) if as_base64 else _nested(value, output.decimals, numbers)

    found: dict[str, Any] = {}
    for name in output.answers[0]:
        values = [answer[name] for answer in output.answers]
        if output.form == "one":
            found[name] = write(values[0])
        elif output.form == "stack" and output.encoding == "base64":
            found[name] = write(_stacked(values))
        else:
            found[name] = [write(value) for value in values]
    said = metadata(output)
    return found | said if output.tokens is None else said | {"layers": _by_layer(found)}


def _by_layer(found: dict[str, Any]) -> list[dict[str, Any]]:
    """An encoder's tensors, named `layers.5.weights` and so on, as one object per layer."""
    layers: dict[int, dict[str, Any]] = {}
    for name, value in found.items():
        layer, tensor = placed(name)
        layers.setdefault(layer, {"layer": layer})[tensor] = value
    return list(layers.values())


def _bertviz(output: AttentionOutput, numbers: Numbers) -> dict[str, Any]:
    """Weights as BertViz takes them, [layers][1][heads][n][n], and the tokens' texts; of a list, a list of either."""
    attention = [
        [[numbers(_heads(weights), output.decimals)] for weights in answer.values()] for answer in output.answers
    ]
    one = output.form == "one"
    found = metadata(output) | {"attention": attention[0] if one else attention}
    if output.tokens is not None:
        texts = [each.tokens for each in output.tokens]
        found["tokens"] = texts[0] if one else texts
    return found


def _heads(weights: Array | TopK) -> Array:
    """Weights with their axis of heads, also where there is one head."""
    assert isinstance(weights, np.ndarray), "the format bertviz excludes top_k"
    return weights if weights.ndim == 3 else weights[None]


def _nested(value: Array | TopK, decimals: int | None, numbers: Numbers) -> Any:
    if isinstance(value, TopK):
        return {"indices": numbers(value.indices, None), "values": numbers(value.values, decimals)}
    return numbers(value, decimals)


def _written(array: Array, decimals: int | None) -> Array:
    """The array whose shortest digits, which are what orjson writes, are those wanted."""
    plain = np.ascontiguousarray(array)  # orjson writes no other; backends give views of what they computed
    if decimals is not None:
        # A float32 times 10⁹ is exact in float64, and the nearest float64 to a number of few digits is written as that.
        rounded: F64 = plain.astype(np.float64)
        np.round(rounded, decimals, out=rounded)
        rounded += 0.0  # makes 0 of -0
        return rounded
    if plain.dtype == np.float16:
        return _shortest_float16()[plain.view(np.uint16)]
    return plain


@cache
def _shortest_float16() -> F32:
    """Of every float16, by its bits, the float32 whose shortest digits are those of the float16."""
    positive: F32 = np.arange(1 << 15, dtype=np.uint16).view(np.float16).astype(str).astype(np.float32)
    return np.concatenate([positive, -positive])


def _tensor_object(value: Array | TopK, base64: Base64) -> dict[str, Any]:
    if isinstance(value, TopK):
        return {"indices": _tensor_object(value.indices, base64), "values": _tensor_object(value.values, base64)}
    return {"shape": list(value.shape), "dtype": str(value.dtype), "data": base64(value)}


def _base64(array: Array) -> str:
    return pybase64.b64encode_as_string(np.ascontiguousarray(array).data)


def _stacked(values: list[Array | TopK]) -> Array | TopK:
    tensors = [value for value in values if not isinstance(value, TopK)]
    if tensors:
        return np.stack(tensors)
    sparse = [value for value in values if isinstance(value, TopK)]
    return TopK(np.stack([v.indices for v in sparse]), np.stack([v.values for v in sparse]))
