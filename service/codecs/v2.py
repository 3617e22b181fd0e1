"""The Open Inference Protocol, version 2, however it travels: named tensors with parameters beside them.

`request` makes a request of them, `tensors` names those of an answer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from models.errors import ShapeMismatch
from models.types import ALL_TENSOR_NAMES, F32, Array
from service.codecs.base import assemble, check_count, flat_tensors, float32, metadata, nearest, options
from service.codecs.strict_json import escaped
from service.errors import InvalidOption, UnknownField, WrongType
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
