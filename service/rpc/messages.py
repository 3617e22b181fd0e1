"""Messages of the protocol: an inference request as one of ours, and an answer as bytes."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from pydantic import BaseModel

from models.errors import ShapeMismatch
from models.types import Array
from service.codecs import v2
from service.codecs.requests import check_count, reshaped
from service.codecs.strict_json import escaped
from service.codecs.v2_tensors import (
    DATATYPES,
    check_described,
    check_size,
    datatype_of,
    from_bytes,
    from_elements,
    to_bytes,
)
from service.errors import ConflictingFields, InvalidOption, UnknownField, Unparsable, WrongType
from service.messages import AttentionOutput
from service.rpc.inference_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelRepositoryParameter,
    ModelStreamInferResponse,
)

TYPED = {
    "BOOL": "bool_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""The field of `contents` for each datatype that has one."""

Filled = TypeVar("Filled")

RAW_OUTPUT_CONTENTS = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
INFER_RESPONSE = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


def parsed(kind: type[Any], body: bytes) -> Any:
    """The message in a body.

    Raises:
        Unparsable: if there is none.
    """
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise Unparsable(f"the message is no {kind.__name__}") from error


def filled(message: Filled, model: BaseModel) -> Filled:
    """The message with the fields of `model` that it has: REST and gRPC call them the same."""
    ParseDict(model.model_dump(), message, ignore_unknown_fields=True)
    return message


def parameters_of(given: Mapping[str, InferParameter | ModelRepositoryParameter], pointer: str) -> dict[str, Any]:
    """Parameters by name as Python values."""
    found = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise WrongType.at(f"{pointer}/{escaped(name)}", "the parameter has no value")
        found[name] = getattr(parameter, kind)
    return found


# ---- in


def decode(message: ModelInferRequest, model: str, layers: int) -> v2.InferRequest:
    """The request in a message.

    Args:
        message: as received.
        model: `name` or `name@version`.
        layers: those of the encoder that it is; 0 where it is none.

    Raises:
        Unparsable, InvalidInput: if it means nothing that can be computed.
    """
    parameters = parameters_of(message.parameters, "")
    if "binary_data_output" in parameters:
        raise UnknownField.at("/binary_data_output", "it is for REST; here all outputs are raw")
    outputs = dict.fromkeys(_outputs(message), True)
    return v2.request(model, layers, _inputs(message), parameters, outputs, True, v2.checked_id(message.id))


def _outputs(message: ModelInferRequest) -> list[str]:
    if len(message.outputs) > v2.MOST_OUTPUTS:
        raise InvalidOption.at("/outputs", f"{len(message.outputs)} of them")
    found: list[str] = []
    for i, output in enumerate(message.outputs):
        for key in output.parameters:
            raise UnknownField.at(f"/outputs/{i}/parameters/{escaped(key)}", "outputs have no parameters here")
        if output.name in found:
            raise ConflictingFields.at(f"/outputs/{i}/name", f"{output.name!r} is asked for twice")
        found.append(output.name)
    return found


def _inputs(message: ModelInferRequest) -> dict[str, Array]:
    """Every input by name; the raw ones are views."""
    check_count(len(message.inputs), "/inputs")
    raw = list(message.raw_input_contents)  # each access copies
    if raw and len(raw) != len(message.inputs):
        raise Unparsable(f"there are {len(message.inputs)} inputs, but {len(raw)} raw_input_contents: one for each")
    found: dict[str, Array] = {}
    for i, tensor in enumerate(message.inputs):
        pointer, shape = f"/inputs/{i}", list(tensor.shape)
        check_described(tensor.name, shape, tensor.datatype, pointer)
        if tensor.name in found:
            raise ConflictingFields.at(f"/{tensor.name}", "the tensor is given twice")
        for key in tensor.parameters:
            raise UnknownField.at(f"{pointer}/parameters/{escaped(key)}", f"{tensor.name}: inputs have no parameters")
        found[tensor.name] = _raw(tensor, raw[i], pointer) if raw else _typed(tensor, pointer)
    return found


def _raw(tensor: ModelInferRequest.InferInputTensor, content: bytes, pointer: str) -> Array:
    if tensor.HasField("contents"):
        raise ConflictingFields.at(f"{pointer}/contents", f"{tensor.name}: give contents or raw ones, not both")
    shape, place = list(tensor.shape), f"/{tensor.name}"
    check_size(tensor.datatype, shape, len(content), "raw contents", place)
    return from_bytes(tensor.datatype, shape, content, place)


def _typed(tensor: ModelInferRequest.InferInputTensor, pointer: str) -> Array:
    name, datatype, contents = tensor.name, tensor.datatype, tensor.contents
    if datatype not in TYPED:
        raise WrongType.at(f"{pointer}/contents", f"{name}: {datatype} has no typed contents: send it raw")
    for field, _ in contents.ListFields():
        if field.name != TYPED[datatype]:
            raise WrongType.at(
                f"{pointer}/contents", f"{name}: expected {TYPED[datatype]} for {datatype}, got {field.name}"
            )
    values = getattr(contents, TYPED[datatype])
    if len(values) != (need := math.prod(tensor.shape)):
        raise ShapeMismatch.at(f"/{name}", f"there are {len(values)} elements, but {list(tensor.shape)} takes {need}")
    if datatype == "BYTES":
        check_count(len(values), f"/{name}")
        return from_elements(values, list(tensor.shape), f"/{name}")
    return reshaped(np.fromiter(values, DATATYPES[datatype], len(values)), list(tensor.shape), f"/{name}")


# ---- out


def encode(asked: v2.InferRequest, output: AttentionOutput) -> bytes:
    """The answer, a `ModelInferResponse` as bytes.

    Tensors are appended to it as the wire has them, which spares them a copy into the message and one out of it.
    """
    name, version = output.model
    head = ModelInferResponse(model_name=name, model_version=version, id=asked.id)
    for key, text in v2.answer_parameters(output).items():
        head.parameters[key].string_param = text
    contents: list[bytes | memoryview] = []
    for tensor_name, tensor in v2.tensors(asked, output).items():
        head.outputs.add(name=tensor_name, datatype=datatype_of(tensor), shape=tensor.shape)
        content = to_bytes(tensor)
        contents += [_prefix(RAW_OUTPUT_CONTENTS, len(content)), content]
    return b"".join([head.SerializeToString(), *contents])


def stream_answer(answer: bytes) -> bytes:
    """A `ModelStreamInferResponse` with an answer made by `encode`."""
    return b"".join([_prefix(INFER_RESPONSE, len(answer)), answer])


def _prefix(field: int, length: int) -> bytes:
    """What the wire has before `length` bytes of a field."""
    return bytes([*_varint(field << 3 | 2), *_varint(length)])


def _varint(value: int) -> Iterable[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
