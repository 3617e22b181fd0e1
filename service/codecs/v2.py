"""The Open Inference Protocol, version 2: named tensors with parameters beside them, in JSON or in binary.

A body over REST is a JSON document. With the binary tensor data extension the bytes of tensors follow it, back to back
in the order of the document, and the header `Inference-Header-Content-Length` says where they begin.

The first half of this module does not know how tensors travel: `request` makes a request of them, `tensors` names those
of an answer.

Sources: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import simdjson

from models.errors import ShapeMismatch
from models.types import ALL_TENSOR_NAMES, F32, Array
from service.codecs.base import assemble, check_count, flat_tensors, float32, metadata, nearest, options, reshaped
from service.codecs.strict_json import escaped, json_object, json_type
from service.errors import ConflictingFields, InvalidOption, UnknownField, Unparsable, WrongType
from service.messages import AttentionInput, AttentionOutput, Form, Options

DATATYPES: dict[str, np.dtype[Any]] = {
    "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"), "BOOL": np.dtype("?"),
}  # fmt: skip
"""Datatypes that are read, of those the protocol has."""

ANSWERED = "FP32"
"""The datatype of every answered tensor."""

INPUTS = ("inputs", "attn_mask", "attn_bias")
DEFAULT_OUTPUTS = ("outputs", "weights")

OPTIONS = ("is_causal", "scale", "average_heads", "backend")
PARAMETERS = (*OPTIONS, "timeout", "priority", "binary_data_output")
"""Parameters of a request."""

MOST_OUTPUTS = 64
MOST_AXES = 8
MOST_ID = 1_024
"""Characters of an id: it is echoed."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded request.

    Attributes:
        attention: what is to be computed.
        id: the caller's, empty for none.
        outputs: the tensors to answer, in the caller's order.
        binary: those of them that are to be binary.
        timeout_s: how long the caller will wait for it, s; infinite where that was not said.
    """

    attention: AttentionInput
    id: str
    outputs: tuple[str, ...]
    binary: frozenset[str]
    timeout_s: float


# ---- tensors to a request, and an answer to tensors


def request(
    model: str,
    given: Mapping[str, Array],
    parameters: Mapping[str, Any],
    outputs: Sequence[str] = (),
    binary: frozenset[str] = frozenset(),
    id: str = "",
) -> InferRequest:
    """The request that named tensors and parameters make.

    Args:
        model: `name` or `name@version`.
        given: `inputs`, (n, d) or (b, n, d); optionally `attn_mask`, (n, n) for every sequence or (b, n, n); and
            `attn_bias`, (n, n) for every sequence, (heads, n, n) or (b, n, n), or (b, heads, n, n).
        parameters: of the request; see `PARAMETERS`.
        outputs: tensors asked for, `DEFAULT_OUTPUTS` if none.
        binary: those of them that are to be binary.
        id: the caller's.

    Raises:
        InvalidInput: where that makes no request; the pointer names the tensor and the index, or the parameter.
    """
    for name in parameters:
        if name not in PARAMETERS:
            raise UnknownField.at(f"/{escaped(name)}", f"no such parameter; {nearest(name, PARAMETERS)}")
    names = tuple(outputs) or DEFAULT_OUTPUTS
    for name in names:
        if name not in ALL_TENSOR_NAMES:
            raise UnknownField.at(f"/outputs/{escaped(name)}", f"no such output; {nearest(name, ALL_TENSOR_NAMES)}")
    small = {name: parameters[name] for name in OPTIONS if name in parameters}
    chosen = options(small | {"model": model, "return": names}, Options, strict=True)
    if "inputs" not in given:
        raise ShapeMismatch.at("/inputs", "the tensor is missing; it holds the token embeddings")
    inputs = _floats(given["inputs"], "/inputs")
    form: Form = "stack" if inputs.ndim == 3 else "one"
    if form == "stack":
        check_count(len(inputs), "/inputs")
    count = len(inputs) if form == "stack" else 1
    attention = assemble(
        list(inputs) if form == "stack" else [inputs],
        _beside("attn_mask", given, form, count),
        _beside("attn_bias", given, form, count),
        form,
        chosen,
        None,
    )
    return InferRequest(attention, id, names, binary, _timeout_s(parameters))


def check_described(name: Any, shape: Any, datatype: Any, pointer: str) -> None:
    """Raise `InvalidInput` unless there is such an input, with such a datatype, and the shape is one."""
    if not isinstance(name, str) or name not in INPUTS:
        hint = nearest(name, INPUTS) if isinstance(name, str) else f"known are {', '.join(INPUTS)}"
        raise UnknownField.at(f"{pointer}/name", f"no such input; {hint}")
    if not isinstance(shape, list) or not all(type(axis) is int and 0 <= axis < 2**40 for axis in shape):
        raise WrongType.at(f"{pointer}/shape", f"{name}: expected a list of sizes")
    if len(shape) > MOST_AXES:
        raise ShapeMismatch.at(f"{pointer}/shape", f"{name}: no tensor here has more than {MOST_AXES} axes")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise WrongType.at(f"{pointer}/datatype", f"{name}: expected {' or '.join(DATATYPES)}, got {datatype!r}")


def checked_id(value: Any) -> str:
    """The id of a request, if it is one that can be echoed."""
    if not isinstance(value, str) or len(value) > MOST_ID:
        raise WrongType.at("/id", f"expected a string of at most {MOST_ID} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WrongType.at("/id", "it holds half a character, a surrogate without the other") from error
    return value


def tensors(output: AttentionOutput, names: Iterable[str]) -> dict[str, F32]:
    """An answer's tensors by name in the order of `names`, float32, with a leading axis of sequences as in `inputs`."""
    found = flat_tensors(output)
    return {name: found[name] for name in names}


def answer_parameters(output: AttentionOutput) -> dict[str, str]:
    """What else an answer says: the backend, and as a JSON text the rows that see nothing, where there are some."""
    about = metadata(output)
    said: dict[str, str] = {("backend" if key == "name" else key): text for key, text in about["backend"].items()}
    if "fully_masked_rows" in about:
        said["fully_masked_rows"] = orjson.dumps(about["fully_masked_rows"]).decode()
    return said


def _floats(array: Array, pointer: str) -> F32:
    if array.dtype == np.bool_:
        raise WrongType.at(pointer, "expected FP32, FP16 or FP64, got BOOL")
    return float32(array, pointer)


def _booleans(array: Array, pointer: str) -> Array:
    if array.dtype != np.bool_:
        raise WrongType.at(pointer, "expected BOOL, true = may attend; numbers to be added belong in attn_bias")
    if array.size and array.view(np.uint8).max() > 1:
        raise WrongType.at(pointer, "a BOOL is a byte 0 or 1")
    return array


def _beside(name: str, given: Mapping[str, Array], form: Form, count: int) -> list[Any] | None:
    """One mask or bias for each sequence; a matrix alone is for all of them."""
    if name not in given:
        return None
    read = _booleans if name == "attn_mask" else _floats
    array = read(given[name], f"/{name}")
    if form == "one":
        return [array]
    return [array] * count if array.ndim < 3 else list(array)


def _timeout_s(parameters: Mapping[str, Any]) -> float:
    timeout, priority = parameters.get("timeout", 0), parameters.get("priority", 0)
    for name, value in (("timeout", timeout), ("priority", priority)):
        if type(value) is not int or not 0 <= value < 2**63:
            raise InvalidOption.at(f"/{name}", f"expected a whole number from 0, got {value!r}")
    return timeout / 1e6 if timeout else math.inf


# ---- REST


def decode(body: bytes, header_length: str, model: str) -> InferRequest:
    """The request in a body.

    Args:
        body: not compressed.
        header_length: value of `Inference-Header-Content-Length`; empty if the whole body is JSON.
        model: `name` or `name@version`.

    Raises:
        Unparsable: if the body is no JSON document, or the bytes behind it are not those it speaks of.
        InvalidInput: if it is, but means something that cannot be computed; the error names the place.
    """
    text, rest = _split(body, header_length)
    document = _document(text)
    for name in document:
        if name not in ("id", "parameters", "inputs", "outputs"):
            raise UnknownField.at(f"/{escaped(name)}", "no such field; known are id, parameters, inputs, outputs")
    parameters = dict(_object(document.get("parameters", {}), "/parameters"))
    binary_default = _flag(parameters, "binary_data_output", "", default=False)
    outputs = _outputs(document.get("outputs", []), binary_default)
    if not outputs:
        outputs = dict.fromkeys(DEFAULT_OUTPUTS, binary_default)
    given = _inputs(document.get("inputs"), rest)
    binary = frozenset(name for name, is_binary in outputs.items() if is_binary)
    return request(model, given, parameters, tuple(outputs), binary, checked_id(document.get("id", "")))


def encode(asked: InferRequest, output: AttentionOutput) -> tuple[bytes, int | None]:
    """The answer's body, and the length of its JSON part where tensors follow it."""
    name, version = output.model
    document: dict[str, Any] = {"model_name": name, "model_version": version}
    if asked.id:
        document["id"] = asked.id
    document["parameters"] = answer_parameters(output)
    document["outputs"] = described = []
    parts: list[bytes | memoryview] = [b""]
    for name, tensor in tensors(output, asked.outputs).items():
        entry: dict[str, Any] = {"name": name, "datatype": ANSWERED, "shape": tensor.shape}
        packed = np.ascontiguousarray(tensor)
        if name in asked.binary:
            entry["parameters"] = {"binary_data_size": packed.nbytes}
            parts.append(packed.data.cast("B"))
        else:
            entry["data"] = packed.reshape(-1)
        described.append(entry)
    parts[0] = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join(parts), len(parts[0]) if asked.binary else None


def _split(body: bytes, header_length: str) -> tuple[bytes, memoryview]:
    """The JSON part of a body, and the rest."""
    if not header_length:
        return body, memoryview(b"")
    if not header_length.isdecimal() or len(header_length) > 12:
        raise Unparsable(f"Inference-Header-Content-Length: expected a number of bytes, got {header_length[:64]!r}")
    length = int(header_length)
    if length > len(body):
        raise Unparsable(f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes")
    if not length:
        raise Unparsable(
            "Inference-Header-Content-Length is 0, which announces one tensor without a JSON part; that is for models "
            "of one input with one variable axis, and inputs here has two"
        )
    view = memoryview(body)
    return bytes(view[:length]), view[length:]


def _inputs(value: Any, rest: memoryview) -> dict[str, Array]:
    """Every input by name; the binary ones are views into `rest`, which they use up."""
    if not isinstance(value, list):
        raise WrongType.at("/inputs", f"expected a list of tensors, got {json_type(value)}")
    check_count(len(value), "/inputs")
    found: dict[str, Array] = {}
    used = 0
    for i, item in enumerate(value):
        tensor = _Described.of(item, f"/inputs/{i}")
        if tensor.name in found:
            raise ConflictingFields.at(f"/{tensor.name}", "the tensor is given twice")
        if tensor.size is None:
            found[tensor.name] = _from_json(tensor)
            continue
        if used + tensor.size > len(rest):
            raise Unparsable(
                f"{tensor.name}: its binary_data_size is {tensor.size}, but {len(rest) - used} bytes are left behind "
                "the JSON part; Inference-Header-Content-Length says where that ends"
            )
        flat = np.frombuffer(rest[used : used + tensor.size], DATATYPES[tensor.datatype])
        found[tensor.name] = reshaped(flat, tensor.shape, f"/{tensor.name}")
        used += tensor.size
    if used != len(rest):
        raise Unparsable(f"{len(rest) - used} bytes follow the last binary tensor")
    return found


@dataclass(frozen=True, slots=True)
class _Described:
    """An input as its JSON describes it.

    Attributes:
        size: bytes of its binary data, which is what the shape takes; None if `data` holds it.
    """

    name: str
    shape: list[int]
    datatype: str
    size: int | None
    data: Any = field(repr=False)

    @classmethod
    def of(cls, item: Any, pointer: str) -> "_Described":
        entry = _object(item, pointer)
        for key in entry:
            if key not in ("name", "shape", "datatype", "parameters", "data"):
                known = "name, shape, datatype, parameters, data"
                raise UnknownField.at(f"{pointer}/{escaped(key)}", f"no such field; known are {known}")
        given: list[Any] = [entry.get(key) for key in ("name", "shape", "datatype")]
        name, shape, datatype = given
        check_described(name, shape, datatype, pointer)
        parameters = _object(entry.get("parameters", {}), f"{pointer}/parameters")
        for key in parameters:
            if key != "binary_data_size":
                where = f"{pointer}/parameters/{escaped(key)}"
                raise UnknownField.at(where, f"{name}: no such parameter; known is binary_data_size")
        size = parameters.get("binary_data_size")
        if size is None and "data" not in entry:
            raise ShapeMismatch.at(pointer, f"{name}: it has neither data nor a binary_data_size")
        if size is not None:
            if "data" in entry:
                raise ConflictingFields.at(f"{pointer}/data", f"{name}: give data or a binary_data_size, not both")
            if type(size) is not int or size < 0:
                raise WrongType.at(f"{pointer}/parameters/binary_data_size", f"{name}: expected a number of bytes")
            need = math.prod(shape) * DATATYPES[datatype].itemsize
            if size != need:
                where = f"{pointer}/parameters/binary_data_size"
                raise ShapeMismatch.at(where, f"{name}: {size} bytes, but {shape} of {datatype} takes {need}")
        return cls(name, shape, datatype, size, entry.get("data"))


def _outputs(value: Any, default: bool) -> dict[str, bool]:
    """The outputs asked for, and whether each is to be binary."""
    if not isinstance(value, list):
        raise WrongType.at("/outputs", f"expected a list of outputs, got {json_type(value)}")
    if len(value) > MOST_OUTPUTS:
        raise InvalidOption.at("/outputs", f"{len(value)} of them; there are {len(ALL_TENSOR_NAMES)} to ask for")
    found: dict[str, bool] = {}
    for i, item in enumerate(value):
        pointer = f"/outputs/{i}"
        entry = _object(item, pointer)
        for key in entry:
            if key not in ("name", "parameters"):
                raise UnknownField.at(f"{pointer}/{escaped(key)}", "no such field; known are name, parameters")
        name = entry.get("name")
        if not isinstance(name, str):
            raise WrongType.at(f"{pointer}/name", f"expected the name of an output, got {json_type(name)}")
        if name in found:
            raise ConflictingFields.at(f"{pointer}/name", f"{name!r} is asked for twice")
        parameters = _object(entry.get("parameters", {}), f"{pointer}/parameters")
        for key in parameters:
            if key != "binary_data":
                where = f"{pointer}/parameters/{escaped(key)}"
                raise UnknownField.at(where, "no such parameter of an output; known is binary_data")
        found[name] = _flag(parameters, "binary_data", f"{pointer}/parameters", default=default)
    return found


def _object(value: Any, pointer: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WrongType.at(pointer, f"expected an object, got {json_type(value)}")
    return value


def _flag(parameters: Mapping[str, Any], name: str, pointer: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidOption.at(f"{pointer}/{name}", f"expected a boolean, got {json_type(value)}")
    return value


# ---- tensors in JSON


def _from_json(tensor: _Described) -> Array:
    """The array of `data`, nested as the shape says or flat."""
    pointer = f"/{tensor.name}"
    if tensor.datatype == "FP16":
        raise WrongType.at(pointer, "FP16 has no form in JSON: send it binary, or the same numbers as FP32")
    dtype = DATATYPES["BOOL"] if tensor.datatype == "BOOL" else np.dtype(np.float64)
    data, size = tensor.data, math.prod(tensor.shape)
    if isinstance(data, np.ndarray) and tensor.datatype != "BOOL":
        if data.shape != tuple(tensor.shape) and data.shape != (size,):
            raise ShapeMismatch.at(pointer, f"the data's shape is {list(data.shape)}, expected {tensor.shape}")
        return data.reshape(tensor.shape)
    if isinstance(data, np.ndarray):
        raise WrongType.at(f"{pointer}/0", "expected true (may attend) or false, got a number")
    if not isinstance(data, list):
        raise WrongType.at(pointer, f"expected an array of data, got {json_type(data)}")
    nested = len(tensor.shape) > 1 and bool(data) and isinstance(data[0], list)
    axes = tensor.shape if nested else [size]
    flat: list[Any] = []
    _flatten(data, axes, pointer, flat, tensor.datatype)
    found = np.empty(size, dtype)
    for i, item in enumerate(flat):
        try:
            found[i] = item
        except OverflowError:  # an integer beyond float64
            found[i] = math.inf if item > 0 else -math.inf
    return reshaped(found, tensor.shape, pointer)


def _flatten(data: list[Any], axes: Sequence[int], pointer: str, flat: list[Any], datatype: str) -> None:
    """Append the elements of `data`, of which the axes are known, to `flat`."""
    if len(data) != axes[0]:
        raise ShapeMismatch.at(pointer, f"there are {len(data)} elements, but the shape says {axes[0]}")
    if len(axes) > 1:
        for i, part in enumerate(data):
            if not isinstance(part, list):
                raise WrongType.at(f"{pointer}/{i}", f"expected an array, got {json_type(part)}")
            _flatten(part, axes[1:], f"{pointer}/{i}", flat, datatype)
        return
    for i, item in enumerate(data):
        if datatype == "BOOL" and not isinstance(item, bool):
            raise WrongType.at(f"{pointer}/{i}", f"expected true (may attend) or false, got {json_type(item)}")
        if datatype != "BOOL" and (isinstance(item, bool) or not isinstance(item, (int, float))):
            raise WrongType.at(f"{pointer}/{i}", f"expected a number, got {json_type(item)}")
    flat += data


# ---- the fast way


FAST_FROM = 1 << 11
"""Bytes of JSON from which it pays: below, as with binary tensors, there are hardly any numbers in it."""


class _Unusual(Exception):
    """The fast way does not apply."""


def _document(text: bytes) -> dict[str, Any]:
    """The JSON object, where it is large with the numbers of `data` as arrays; errors as in `json_object`."""
    found = _fast_document(text) if len(text) >= FAST_FROM else None
    return json_object(text, "inputs") if found is None else found


def _fast_document(text: bytes) -> dict[str, Any] | None:
    """The object, or None where something in it is not plain: it is then read to the letter."""
    brackets = 0
    try:
        document: Any = simdjson.Parser().parse(text)
        found: dict[str, Any] = {}
        for name in _unique(document):
            value = document[name]
            if name != "inputs":
                found[name], more = _plain(value)
                brackets += more
                continue
            brackets += 1
            found[name] = []
            for item in value:
                entry: dict[str, Any] = {}
                for key in _unique(item):
                    entry[key], more = _numbers(item[key]) if key == "data" else _plain(item[key])
                    brackets += more
                found[name].append(entry)
    except (ValueError, TypeError, RuntimeError, _Unusual):
        return None
    # A row such as [1, [2]] would have been flattened unseen: then there are more brackets than arrays were found.
    return found if brackets == np.count_nonzero(np.frombuffer(text, np.uint8) == ord("[")) else None


def _unique(value: Any) -> list[str]:
    """The names of an object, each once: to look up a name is to search for it."""
    if not isinstance(value, simdjson.Object):
        raise _Unusual
    names: list[str] = list(value.keys())
    if len(names) > 8 or len(set(names)) != len(names):
        raise _Unusual
    return names


def _plain(value: Any) -> tuple[Any, int]:
    """A Python object, and how many JSON arrays it holds."""
    if isinstance(value, simdjson.Object):
        value = value.as_dict()
    elif isinstance(value, simdjson.Array):
        value = value.as_list()
    return value, _arrays(value)


def _arrays(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(_arrays(item) for item in value if isinstance(item, (list, dict)))
    return sum(_arrays(item) for item in value.values()) if isinstance(value, dict) else 0


def _numbers(value: Any) -> tuple[Any, int]:
    """The numbers of `data` as an array, float64, in the shape they are nested in, and how many JSON arrays it is."""
    if not isinstance(value, simdjson.Array) or not len(value):
        raise _Unusual
    first = value[0]
    if isinstance(first, bool) or (isinstance(first, simdjson.Array) and isinstance(_innermost(first), bool)):
        return _plain(value)
    shape, arrays = _nesting(value)
    flat = np.frombuffer(value.as_buffer(of_type="d"), np.float64)
    if flat.size != math.prod(shape):
        raise _Unusual
    return flat.reshape(shape), arrays


def _innermost(value: Any) -> Any:
    while isinstance(value, simdjson.Array) and len(value):
        value = value[0]
    return value


def _nesting(value: Any) -> tuple[tuple[int, ...], int]:
    """Lengths of the axes, which are the same everywhere, and the number of arrays."""
    if not isinstance(value[0], simdjson.Array):
        return (len(value),), 1
    inner: set[tuple[int, ...]] = set()
    arrays = 1
    for part in value:
        if not isinstance(part, simdjson.Array) or not len(part):
            raise _Unusual
        axes, more = _nesting(part)
        inner.add(axes)
        arrays += more
    if len(inner) != 1:
        raise _Unusual
    return (len(value), *inner.pop()), arrays
