"""JSON: numbers or base64 tensor objects. Numbers go from text to an array without becoming Python objects.

`decode` takes the fast way, simdjson straight into buffers, and leaves it at the first thing that is not plain: the
slow way then reads the same body again with the standard library, either to find the exact place and say what is wrong
there, or because the body is fine but unusual.
"""

import binascii
import math
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import orjson
import simdjson

from models.encoder_spec import placed
from models.errors import InvalidInput, ShapeMismatch
from models.types import F32, F64, Array, Bool, Projections
from service.codecs.base import (
    FLOATS,
    OPTION_NAMES,
    PROJECTION_NAMES,
    TENSOR_FIELDS,
    assemble,
    check_count,
    float32,
    merged,
    metadata,
    nearest,
    query_options,
    reshaped,
)
from service.codecs.strict_json import body_options, escaped, json_object, json_type
from service.errors import UnknownField, WrongType
from service.messages import AttentionInput, AttentionOutput, Form, Options, TopK

FIELDS = (*TENSOR_FIELDS, *OPTION_NAMES)
TENSOR_OBJECT = ("shape", "dtype", "data")
BOOLEANS: dict[str, np.dtype[Any]] = {"bool": np.dtype(np.bool_)}


class _Unusual(Exception):
    """The fast way does not apply."""


class JsonCodec:
    """`application/json`, both ways."""

    media_type = "application/json"

    def decode(self, body: bytes, query: str) -> AttentionInput:
        """See `Decoder.decode`."""
        fields = _fast_fields(body)
        if fields is None:
            fields = json_object(body, "inputs")
        return _request(fields, query)

    def encode(self, output: AttentionOutput) -> bytes:
        """See `Encoder.encode`. Masked scores are `null`; numbers have the digits that keep them, or decimals."""
        if output.format == "bertviz":
            return orjson.dumps(_bertviz(output), option=orjson.OPT_SERIALIZE_NUMPY)
        write = _tensor_object if output.encoding == "base64" else partial(_numbers, decimals=output.decimals)
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
        whole = found | said if output.tokens is None else said | {"layers": _by_layer(found)}
        return orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)


# ---- answers


def _by_layer(found: dict[str, Any]) -> list[dict[str, Any]]:
    """An encoder's tensors, named `layers.5.weights` and so on, as one object per layer."""
    layers: dict[int, dict[str, Any]] = {}
    for name, value in found.items():
        layer, tensor = placed(name)
        layers.setdefault(layer, {"layer": layer})[tensor] = value
    return list(layers.values())


def _bertviz(output: AttentionOutput) -> dict[str, Any]:
    """Weights as BertViz takes them, [layers][1][heads][n][n], and the tokens' texts; of a list, a list of either."""
    attention = [[_heads(weights, output.decimals)[None] for weights in answer.values()] for answer in output.answers]
    one = output.form == "one"
    found = metadata(output) | {"attention": attention[0] if one else attention}
    if output.tokens is not None:
        texts = [each.tokens for each in output.tokens]
        found["tokens"] = texts[0] if one else texts
    return found


def _heads(weights: Array | TopK, decimals: int | None) -> Array:
    """Weights with their axis of heads, also where there is one head."""
    assert isinstance(weights, np.ndarray), "the format bertviz excludes top_k"
    return _written(weights if weights.ndim == 3 else weights[None], decimals)


def _numbers(value: Array | TopK, decimals: int | None) -> Any:
    if isinstance(value, TopK):
        return {"indices": _written(value.indices, None), "values": _written(value.values, decimals)}
    return _written(value, decimals)


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


def _tensor_object(value: Array | TopK) -> dict[str, Any]:
    if isinstance(value, TopK):
        return {"indices": _tensor_object(value.indices), "values": _tensor_object(value.values)}
    data = binascii.b2a_base64(np.ascontiguousarray(value).data, newline=False).decode("ascii")
    return {"shape": list(value.shape), "dtype": str(value.dtype), "data": data}


def _stacked(values: list[Array | TopK]) -> Array | TopK:
    tensors = [value for value in values if not isinstance(value, TopK)]
    if tensors:
        return np.stack(tensors)
    sparse = [value for value in values if isinstance(value, TopK)]
    return TopK(np.stack([v.indices for v in sparse]), np.stack([v.values for v in sparse]))


# ---- the fast way


def _fast_fields(body: bytes) -> dict[str, Any] | None:
    """The body's fields with plain number arrays made into arrays, or None where something is not plain."""
    try:
        document = simdjson.Parser().parse(body)
        if not isinstance(document, simdjson.Object):
            return None
        names = list(document.keys())
        if len(names) > len(FIELDS) or len(set(names)) != len(names):  # to look up a name is to search for it
            return None
        arrays = _Brackets()
        fields = {name: _fast_value(name, document[name], arrays) for name in names}
    except (ValueError, TypeError, RuntimeError, _Unusual):
        return None
    # A row such as [1, [2]] would have been flattened unseen: then there are more brackets than arrays were found.
    brackets = np.count_nonzero(np.frombuffer(body, np.uint8) == ord("["))  # bytes.count takes longer
    return fields if brackets == arrays.found else None


class _Brackets:
    """How many JSON arrays the fast way has accounted for."""

    found = 0


def _fast_value(name: str, value: Any, arrays: _Brackets) -> Any:
    if name == "projections" and isinstance(value, simdjson.Object):
        return {key: _fast_value("matrix", value[key], arrays) for key in _unique(value)}
    if isinstance(value, simdjson.Object):
        return _plain(value.as_dict(), arrays)
    if not isinstance(value, simdjson.Array):
        return value
    if name not in ("inputs", "attn_bias", "matrix"):
        return _plain(value.as_list(), arrays)
    if not len(value):
        raise _Unusual
    if isinstance(value[0], simdjson.Object):
        return _plain(value.as_list(), arrays)
    depth = _depth(value)
    if depth == 2:
        return _fast_matrix(value, arrays)
    if depth == 3 and name != "matrix":
        check_count(len(value), f"/{name}")
        arrays.found += 1
        return [_fast_matrix(item, arrays) for item in value]
    raise _Unusual


def _unique(value: Any) -> list[str]:
    names: list[str] = list(value.keys())
    if len(names) != len(PROJECTION_NAMES) or len(set(names)) != len(names):
        raise _Unusual
    return names


def _depth(value: Any) -> int:
    depth = 0
    while isinstance(value, simdjson.Array) and len(value):
        depth += 1
        value = value[0]
    return depth


def _fast_matrix(value: Any, arrays: _Brackets) -> F64:
    """Rows of one length, into one array, (rows, columns)."""
    if not isinstance(value, simdjson.Array):
        raise _Unusual
    lengths = {len(row) if isinstance(row, simdjson.Array) else -1 for row in value}
    if len(lengths) != 1 or -1 in lengths:
        raise _Unusual
    rows, columns = len(value), lengths.pop()
    flat = np.frombuffer(value.as_buffer(of_type="d"), np.float64)
    if flat.size != rows * columns:
        raise _Unusual
    arrays.found += 1 + rows
    return flat.reshape(rows, columns)


def _plain(value: Any, arrays: _Brackets) -> Any:
    """Python objects, their arrays counted."""
    if isinstance(value, list):
        arrays.found += 1
        for item in value:
            _plain(item, arrays)
    elif isinstance(value, dict):
        for item in value.values():
            _plain(item, arrays)
    return value


# ---- fields to a request


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
        _each(fields.get("attn_mask"), "/attn_mask", form, _mask),
        _each(fields.get("attn_bias"), "/attn_bias", form, _bias),
        form,
        chosen,
        _projections(fields.get("projections")),
    )


def _sequences(value: Any) -> tuple[list[F32], Form]:
    """`inputs`, which may be one sequence, a list of them, or a tensor object of either."""
    if _is_tensor(value):
        array = float32(_tensor(value, "/inputs", FLOATS), "/inputs")
        return (list(array), "stack") if array.ndim == 3 else ([array], "one")
    if isinstance(value, np.ndarray):
        return [float32(value, "/inputs")], "one"
    if not isinstance(value, list):
        raise WrongType.at("/inputs", f"expected rows of numbers or a tensor object, got {json_type(value)}")
    if not value:
        raise ShapeMismatch.at("/inputs", "the sequence has no tokens; at least one is needed")
    if not (isinstance(value[0], (dict, np.ndarray)) or (isinstance(value[0], list) and _holds_rows(value[0]))):
        return [float32(_matrix(value, "/inputs"), "/inputs")], "one"
    check_count(len(value), "/inputs")
    return [_sequence(item, f"/inputs/{i}") for i, item in enumerate(value)], "list"


def _holds_rows(item: list[Any]) -> bool:
    return bool(item) and isinstance(item[0], list)


def _sequence(value: Any, pointer: str) -> F32:
    if _is_tensor(value):
        return float32(_tensor(value, pointer, FLOATS), pointer)
    return float32(value if isinstance(value, np.ndarray) else _matrix(value, pointer), pointer)


def _each(value: Any, pointer: str, form: Form, read: Any) -> list[Any] | None:
    """One mask or bias per sequence: the value itself for one sequence, else a list with null where there is none."""
    if value is None:
        return None
    if form == "one":
        return [read(value, pointer)]
    if isinstance(value, np.ndarray):
        raise WrongType.at(f"{pointer}/0/0", "expected a row, got a number; give one matrix for each sequence")
    if _is_tensor(value):
        whole = read(value, pointer)
        if whole.ndim < 3:
            raise ShapeMismatch.at(pointer, f"its shape is {list(whole.shape)}, expected one for each sequence")
        return list(whole)
    if not isinstance(value, list):
        raise WrongType.at(pointer, f"expected a list with one entry per sequence, got {json_type(value)}")
    check_count(len(value), pointer)
    return [None if item is None else read(item, f"{pointer}/{i}") for i, item in enumerate(value)]


def _mask(value: Any, pointer: str) -> Bool:
    if _is_tensor(value):
        mask: Bool = _tensor(value, pointer, BOOLEANS)
        return mask
    rows = _rows(value, pointer)
    for i, row in enumerate(rows):
        for j, item in enumerate(row):
            if not isinstance(item, bool):
                raise WrongType.at(
                    f"{pointer}/{i}/{j}",
                    f"expected true (may attend) or false, got {json_type(item)}; "
                    "numbers to be added belong in attn_bias",
                )
    keep: Bool = np.array(rows, np.bool_).reshape(len(rows), len(rows[0]))
    return keep


def _bias(value: Any, pointer: str) -> F32:
    if isinstance(value, list) and value and all(isinstance(item, np.ndarray) for item in value):
        if len({item.shape for item in value}) > 1:
            raise ShapeMismatch.at(pointer, "the heads have different shapes")
        return float32(np.stack(value), pointer)
    if isinstance(value, list) and value and isinstance(value[0], list) and _holds_rows(value[0]):
        check_count(len(value), pointer)
        heads = [_matrix(item, f"{pointer}/{i}") for i, item in enumerate(value)]
        if len({item.shape for item in heads}) > 1:
            raise ShapeMismatch.at(pointer, "the heads have different shapes")
        return float32(np.stack(heads), pointer)
    return _sequence(value, pointer)


def _projections(value: Any) -> Projections | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise WrongType.at("/projections", f"expected an object of query, key and value, got {json_type(value)}")
    for name in value:
        if name not in PROJECTION_NAMES:
            raise UnknownField.at(f"/projections/{escaped(name)}", f"no such matrix; {nearest(name, PROJECTION_NAMES)}")
    for name in PROJECTION_NAMES:
        if name not in value:
            raise ShapeMismatch.at(f"/projections/{name}", "the matrix is missing")
    return Projections(*(_sequence(value[name], f"/projections/{name}") for name in PROJECTION_NAMES))


def _rows(value: Any, pointer: str) -> list[list[Any]]:
    """Rows of one length, their elements unseen."""
    if not isinstance(value, list):
        raise WrongType.at(pointer, f"expected rows, got {json_type(value)}")
    if not value:
        raise ShapeMismatch.at(pointer, "there are no rows; at least one is needed")
    for i, row in enumerate(value):
        if not isinstance(row, list):
            raise WrongType.at(f"{pointer}/{i}", f"expected a row, got {json_type(row)}")
        if len(row) != len(value[0]):
            raise ShapeMismatch.at(f"{pointer}/{i}", f"the row has {len(row)} elements, but row 0 has {len(value[0])}")
    return value


def _matrix(value: Any, pointer: str) -> F64:
    rows = _rows(value, pointer)
    result = np.empty((len(rows), len(rows[0])), np.float64)
    for i, row in enumerate(rows):
        for j, item in enumerate(row):
            if isinstance(item, bool) or not isinstance(item, (int, float)):
                raise WrongType.at(f"{pointer}/{i}/{j}", f"expected a number, got {json_type(item)}")
            try:
                result[i, j] = item
            except OverflowError:  # an integer beyond float64
                result[i, j] = math.inf if item > 0 else -math.inf
    return result


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict)


def _tensor(value: Mapping[str, Any], pointer: str, dtypes: Mapping[str, np.dtype[Any]]) -> Any:
    """The array of a tensor object, read-only."""
    for name in value:
        if name not in TENSOR_OBJECT:
            raise UnknownField.at(f"{pointer}/{escaped(name)}", f"no such field; {nearest(name, TENSOR_OBJECT)}")
    for name in TENSOR_OBJECT:
        if name not in value:
            raise WrongType.at(f"{pointer}/{name}", "the tensor object lacks this field; it has shape, dtype and data")
    shape, dtype, data = value["shape"], value["dtype"], value["data"]
    if not isinstance(shape, list) or not all(type(axis) is int and 0 <= axis < 2**40 for axis in shape):
        raise WrongType.at(f"{pointer}/shape", "expected a list of sizes")
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise WrongType.at(f"{pointer}/dtype", f"expected {' or '.join(dtypes)}, got {dtype!r}")
    if not isinstance(data, str):
        raise WrongType.at(f"{pointer}/data", f"expected a base64 string, got {json_type(data)}")
    try:
        raw = binascii.a2b_base64(data, strict_mode=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidInput.at(f"{pointer}/data", f"not base64: {error}") from error
    need = math.prod(shape) * dtypes[dtype].itemsize
    if len(raw) != need:
        raise ShapeMismatch.at(f"{pointer}/data", f"it holds {len(raw)} bytes; {shape} of {dtype} takes {need}")
    if dtype == "bool" and max(raw, default=0) > 1:
        raise InvalidInput.at(f"{pointer}/data", "a boolean is a byte 0 or 1")
    return reshaped(np.frombuffer(raw, dtypes[dtype]), shape, f"{pointer}/shape")
