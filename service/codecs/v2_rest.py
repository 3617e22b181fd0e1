"""The Open Inference Protocol, version 2, over REST: in JSON, or in JSON with tensors in binary behind it.

With the binary tensor data extension the bytes of tensors follow the document, back to back in its order, and a header,
`Inference-Header-Content-Length`, says where they begin.

Sources: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from models.errors import AttentionError, ShapeMismatch
from models.types import Array
from service.backends.base import BackendInfo
from service.codecs.answers import joined
from service.codecs.cut_json import plain_fields
from service.codecs.long_json import Hold, in_pieces, number_parts
from service.codecs.requests import check_count, lone_sequence, reshaped
from service.codecs.strict_json import escaped, json_object, json_type
from service.codecs.v2 import (
    MOST_OUTPUTS,
    Asked,
    InferRequest,
    answer_parameters,
    asked,
    backend_parameters,
    checked_id,
    tensors,
    with_tensors,
)
from service.codecs.v2_tensors import DATATYPES, check_described, check_size, datatype_of, from_bytes, to_bytes
from service.errors import ConflictingFields, InvalidOption, UnknownField, Unparsable, WrongType
from service.lane import ALONE, Piece, Team
from service.messages import AttentionInput, AttentionOutput, Form, Options


def decode_plain(body: bytes, header_length: str, model: str, team: Team, layers: int = 0) -> InferRequest | None:
    """The request in a body that is all JSON; None where it has to be read to the letter, by `decode`."""
    if header_length:
        return None
    document = plain_fields(body, "inputs", team)
    try:
        return None if document is None else _request(_outline(document, model, layers), memoryview(b""))
    except AttentionError:
        return None


def decode(body: bytes, header_length: str, model: str, layers: int = 0) -> InferRequest:
    """The request in a body.

    Args:
        body: not compressed.
        header_length: value of `Inference-Header-Content-Length`; empty if the whole body is JSON.
        model: `name` or `name@version`.
        layers: those of the encoder that it is; 0 where it is none.

    Raises:
        Unparsable: if the body is no JSON document, or the bytes behind it are not those it speaks of.
        InvalidInput: if it is, but means something that cannot be computed; the error names the place.
    """
    plain = decode_plain(body, header_length, model, ALONE, layers)
    if plain is None:
        plain = _lone(body, header_length, model, layers)
    if plain is not None:
        return plain
    text, rest = _split(body, header_length)
    if header_length and len(text) <= MOST_REMEMBERED:
        return _request(_remembered(text, model, layers), rest)
    return _request(_outline(json_object(text, "inputs"), model, layers), rest)


MOST_REMEMBERED = 1_024
"""Bytes of a document before binary tensors up to which it is remembered: callers send the same again and again."""


@lru_cache(maxsize=256)
def _remembered(text: bytes, model: str, layers: int) -> "_Outline":
    return _outline(json_object(text, "inputs"), model, layers)


def _lone(body: bytes, header_length: str, model: str, layers: int) -> InferRequest | None:
    """The request in a body with one sequence in binary, as most are; None if it is another, or wrong."""
    length = int(header_length) if header_length.isdecimal() and len(header_length) < 5 else 0
    if not 0 < length <= MOST_REMEMBERED:
        return None
    plan = _plan(body[:length], len(body) - length, model, layers)
    if plan is None or (sequence := lone_sequence(body, length, plan.shape)) is None:
        return None
    return plan.asked.of(AttentionInput((sequence,), plan.form, plan.options))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was found of a body with one binary tensor: it holds for all that begin the same, and are as long."""

    asked: Asked
    options: Options
    shape: tuple[int, int]
    form: Form


@lru_cache(maxsize=256)
def _plan(text: bytes, size: int, model: str, layers: int) -> _Plan | None:
    """How to read a body of this document and `size` bytes behind it; None where `_lone` does not."""
    try:
        outline = _remembered(text, model, layers)
    except AttentionError:  # of these, `decode` says what they are
        return None
    options, described = outline.asked.options, outline.described
    if not isinstance(options, Options) or options.model is None or len(described) != 1:
        return None
    tensor = described[0]
    if tensor.name != "inputs" or tensor.datatype != "FP32" or tensor.size != size or not size:
        return None
    match tensor.shape:
        case [n, d]:
            return _Plan(outline.asked, options, (n, d), "one")
        case [1, n, d]:
            return _Plan(outline.asked, options, (n, d), "stack")
    return None


def _request(outline: "_Outline", rest: memoryview) -> InferRequest:
    """The request of an outline and the bytes behind the document."""
    return with_tensors(outline.asked, _given(outline.described, rest))


def _outline(document: dict[str, Any], model: str, layers: int) -> "_Outline":
    """What a document asks for and of which tensors, checked as far as that can be without the bytes behind it."""
    for name in document:
        if name not in ("id", "parameters", "inputs", "outputs"):
            raise UnknownField.at(f"/{escaped(name)}", "no such field; known are id, parameters, inputs, outputs")
    parameters = dict(_object(document.get("parameters", {}), "/parameters"))
    binary_default = _flag(parameters, "binary_data_output", "", default=False)
    outputs = _outputs(document.get("outputs", []), binary_default)
    described = _inputs(document.get("inputs"))
    id_ = checked_id(document.get("id", ""))
    names = [tensor.name for tensor in described]
    return _Outline(asked(model, layers, names, parameters, outputs, binary_default, id_), described)


def encode(asked: InferRequest, output: AttentionOutput) -> tuple[bytes, int | None]:
    """The answer's body, and the length of its JSON part where tensors follow it."""
    found = tensors(asked, output)
    if output.tokens is None and asked.binary.issuperset(found) and not any(output.fully_masked_rows):
        layout = tuple([(name, datatype_of(tensor), tensor.shape, tensor.nbytes) for name, tensor in found.items()])
        text = _binary_document(asked.id, output.model, output.backend, layout)
        return joined(text, found.values()), len(text)
    behind = {name: to_bytes(tensor) for name, tensor in found.items() if name in asked.binary}
    entries = _entries(found, behind, lambda flat: flat)
    document = _document(asked.id, output.model, answer_parameters(output), entries)
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join((text, *behind.values())), len(text) if asked.binary else None


def pieces(asked: InferRequest, output: AttentionOutput, team: Team = ALONE) -> list[Piece]:
    """The body of a long answer without binary tensors, in pieces."""

    def document(hold: Hold) -> dict[str, Any]:
        found = tensors(asked, output)
        entries = _entries(found, {}, lambda flat: hold(number_parts(flat, np.ascontiguousarray)))
        return _document(asked.id, output.model, answer_parameters(output), entries)

    return in_pieces(document, team)


def _entries(
    found: Mapping[str, Array], behind: Mapping[str, bytes | memoryview], numbers: Callable[[Array], Any]
) -> list[dict[str, Any]]:
    """The tensors of an answer: where their bytes are `behind`, how many, else `numbers` of them, (elements,)."""
    entries = []
    for name, tensor in found.items():
        if name in behind:
            told = _size(len(behind[name]))
        else:
            flat = np.ascontiguousarray(tensor).reshape(-1)
            told = {"data": flat.tolist() if flat.dtype == object else numbers(flat)}
        entries.append(_entry(name, datatype_of(tensor), tensor.shape, told))
    return entries


Layout = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""Of each binary tensor its name, datatype and shape, and its bytes."""


@lru_cache(maxsize=256)
def _binary_document(id: str, model: tuple[str, str], backend: BackendInfo, layout: Layout) -> bytes:
    """The JSON part of an answer whose tensors all follow it, without tokens and rows that see nothing."""
    entries = [_entry(name, datatype, shape, _size(size)) for name, datatype, shape, size in layout]
    return orjson.dumps(_document(id, model, backend_parameters(backend), entries))


def _document(
    id: str, model: tuple[str, str], parameters: Mapping[str, str], entries: list[dict[str, Any]]
) -> dict[str, Any]:
    """The JSON part of an answer."""
    name, version = model
    document: dict[str, Any] = {"model_name": name, "model_version": version}
    if id:
        document["id"] = id
    return document | {"parameters": parameters, "outputs": entries}


def _entry(name: str, datatype: str, shape: tuple[int, ...], told: dict[str, Any]) -> dict[str, Any]:
    """A tensor of an answer, with the field that holds its elements or says where they are."""
    return {"name": name, "datatype": datatype, "shape": shape} | told


def _size(size: int) -> dict[str, Any]:
    """That field for a binary tensor of so many bytes."""
    return {"parameters": {"binary_data_size": size}}


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


def _inputs(value: Any) -> tuple["_Described", ...]:
    """Every input as it is described."""
    if not isinstance(value, list):
        raise WrongType.at("/inputs", f"expected a list of tensors, got {json_type(value)}")
    check_count(len(value), "/inputs")
    found: dict[str, _Described] = {}
    for i, item in enumerate(value):
        tensor = _Described.of(item, f"/inputs/{i}")
        if tensor.name in found:
            raise ConflictingFields.at(f"/{tensor.name}", "the tensor is given twice")
        found[tensor.name] = tensor
    return tuple(found.values())


def _given(described: Sequence["_Described"], rest: memoryview) -> dict[str, Array]:
    """Every input by name; the binary ones are views into `rest`, which they use up."""
    found: dict[str, Array] = {}
    used = 0
    for tensor in described:
        if tensor.size is None:
            found[tensor.name] = _from_json(tensor)
            continue
        if used + tensor.size > len(rest):
            raise Unparsable(
                f"{tensor.name}: its binary_data_size is {tensor.size}, but {len(rest) - used} bytes are left behind "
                "the JSON part; Inference-Header-Content-Length says where that ends"
            )
        content = rest[used : used + tensor.size]
        found[tensor.name] = from_bytes(tensor.datatype, tensor.shape, content, f"/{tensor.name}")
        used += tensor.size
    if used != len(rest):
        raise Unparsable(f"{len(rest) - used} bytes follow the last binary tensor")
    return found


@dataclass(frozen=True, slots=True)
class _Described:
    """An input as its JSON describes it.

    Attributes:
        size: bytes of its binary data, which is what the shape takes, where it holds numbers; None if `data` holds it.
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
            check_size(datatype, shape, size, name, f"{pointer}/parameters/binary_data_size")
        return cls(name, shape, datatype, size, entry.get("data"))


@dataclass(frozen=True, slots=True)
class _Outline:
    """A document as it is understood, its numbers aside."""

    asked: Asked
    described: tuple[_Described, ...]


def _outputs(value: Any, default: bool) -> dict[str, bool]:
    """The outputs asked for, and whether each is to be binary."""
    if not isinstance(value, list):
        raise WrongType.at("/outputs", f"expected a list of outputs, got {json_type(value)}")
    if len(value) > MOST_OUTPUTS:
        raise InvalidOption.at("/outputs", f"{len(value)} of them; a request may have {MOST_OUTPUTS}")
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
    dtype = DATATYPES[tensor.datatype] if tensor.datatype in ("BOOL", "BYTES") else np.dtype(np.float64)
    data, size = tensor.data, math.prod(tensor.shape)
    if isinstance(data, np.ndarray) and tensor.datatype == "BYTES":
        raise WrongType.at(f"{pointer}/0", "expected a string, got a number or a boolean")
    if isinstance(data, np.ndarray) and (tensor.datatype == "BOOL") == (data.dtype == np.bool_):
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
        if datatype == "BYTES" and not isinstance(item, str):
            raise WrongType.at(f"{pointer}/{i}", f"expected a string, got {json_type(item)}")
        if datatype not in ("BOOL", "BYTES") and (isinstance(item, bool) or not isinstance(item, (int, float))):
            raise WrongType.at(f"{pointer}/{i}", f"expected a number, got {json_type(item)}")
    flat += data
