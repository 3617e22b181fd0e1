"""The Open Inference Protocol, version 2, however it travels: named tensors with parameters beside them.

`request` makes a request of them, `tensors` names those of an answer.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from models.errors import ShapeMismatch
from models.types import ALL_TENSOR_NAMES, F32, Array, Bool, Projections
from service.backends.base import BackendInfo
from service.codecs.answers import metadata
from service.codecs.options import nearest, options
from service.codecs.requests import PROJECTION_NAMES, assemble, check_count, float32
from service.codecs.strict_json import escaped
from service.codecs.texts import checked_texts
from service.codecs.v2_tensors import TOKEN_TENSORS, answered
from service.errors import ConflictingFields, InvalidOption, UnknownField, WrongType
from service.messages import OWN, AttentionInput, AttentionOutput, Form, Options, TextInput, TextOptions

SPARSE = ("weights.indices", "weights.values")
"""What weights come as with `top_k`."""

OUTPUTS = (*ALL_TENSOR_NAMES, *SPARSE)
"""The tensors of a layer."""

LAYERED = re.compile(rf"layers\.(0|[1-9]\d{{0,3}})\.({'|'.join(ALL_TENSOR_NAMES)})(?:\.(?:indices|values))?")
"""Those of a layer of an encoder."""

OPTIONS = ("is_causal", "scale", "average_heads", "top_k", "backend")
PARAMETERS = (*OPTIONS, "timeout", "priority", "binary_data_output")
"""Parameters of a request."""

ENCODER_PARAMETERS = tuple(name for name in PARAMETERS if name not in ("is_causal", "scale"))
"""Those of a request for an encoder."""

MOST_OUTPUTS = 1_024
MOST_ID = 1_024
"""Characters of an id: it is echoed."""


@dataclass(slots=True)  # a frozen one takes four times as long to make, and each request has one
class InferRequest:
    """A decoded request.

    Attributes:
        attention: what is to be computed.
        id: the caller's, empty for none.
        outputs: the tensors to answer, in the caller's order.
        binary: those of them that are to be binary.
        timeout_s: how long the caller will wait for it, s; infinite where that was not said.
    """

    attention: AttentionInput | TextInput
    id: str
    outputs: tuple[str, ...]
    binary: frozenset[str]
    timeout_s: float

    @property
    def padded(self) -> bool:
        """Whether the answer is padded."""
        return isinstance(self.attention, TextInput) or self.attention.padded_to > 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for, but for its tensors. Attributes as of `InferRequest`, and `options`."""

    options: Options | TextOptions
    id: str
    outputs: tuple[str, ...]
    binary: frozenset[str]
    timeout_s: float

    def of(self, attention: AttentionInput | TextInput) -> InferRequest:
        """The request that asks so of these tensors."""
        return InferRequest(attention, self.id, self.outputs, self.binary, self.timeout_s)


def request(
    model: str,
    layers: int,
    given: Mapping[str, Array],
    parameters: Mapping[str, Any],
    outputs: Mapping[str, bool],
    binary: bool,
    id: str = "",
) -> InferRequest:
    """The request that named tensors and parameters make: arguments and errors as of `asked` and `with_tensors`."""
    return with_tensors(asked(model, layers, given, parameters, outputs, binary, id), given)


def asked(
    model: str,
    layers: int,
    inputs: Iterable[str],
    parameters: Mapping[str, Any],
    outputs: Mapping[str, bool],
    binary: bool,
    id: str = "",
) -> Asked:
    """What is asked for.

    Args:
        model: `name` or `name@version`, or `OWN`.
        layers: those of the encoder that it is; 0 where it is none.
        inputs: names of the tensors that are given.
        parameters: of the request; see `PARAMETERS`.
        outputs: tensors asked for, and whether each is to be binary; if none, the default ones.
        binary: whether those are.
        id: the caller's.

    Raises:
        InvalidInput: where nobody can ask so; the pointer names the parameter, the output or the tensor.
    """
    known = ENCODER_PARAMETERS if layers else PARAMETERS
    for name in parameters:
        if name not in known:
            raise UnknownField.at(f"/{escaped(name)}", f"no such parameter; {nearest(name, known)}")
    small = {name: parameters[name] for name in OPTIONS if name in parameters}
    sparse = small.get("top_k") is not None
    wanted = dict(outputs) or dict.fromkeys(_default(layers, sparse=sparse), binary)
    for name in wanted:
        _check_output(name, layers, sparse=sparse)
    if model != OWN:
        small["model"] = model
    for name in inputs:
        if (name == "text") != bool(layers):
            raise UnknownField.at(f"/{name}", f"{model} takes {'text' if layers else 'embeddings, as inputs'}")
    chosen = _text_options(wanted, small) if layers else _options(wanted, small)
    binaries = frozenset(name for name, is_binary in wanted.items() if is_binary)
    return Asked(chosen, id, tuple(wanted), binaries, _timeout_s(parameters))


def with_tensors(asked: Asked, given: Mapping[str, Array]) -> InferRequest:
    """The request that asks so of these tensors.

    Args:
        asked: what for.
        given: by the names of `INPUTS`, in datatypes that those may have. `inputs`, (n, d) or (b, n, d); optionally
            `attn_mask`, (n, n) for every sequence or (b, n, n); `attn_bias`, (n, n) for every sequence, (heads, n, n)
            or (b, n, n), or (b, heads, n, n); `lengths`, (b,), tokens of each sequence, of which those behind them are
            not looked at; and for `OWN` the matrices, query and key (d, d_k), value (d, d_v). For an encoder, `text`,
            (b,), alone.

    Raises:
        InvalidInput: where that makes no request; the pointer names the tensor and the index.
    """
    chosen = asked.options
    return asked.of(_texts(given, chosen) if isinstance(chosen, TextOptions) else _attention(given, chosen))


def _options(wanted: Iterable[str], small: Mapping[str, Any]) -> Options:
    """The options of a request for a layer."""
    returned = tuple(dict.fromkeys("weights" if name in SPARSE else name for name in wanted))
    return options({**small, "return": returned}, Options, strict=True)


def _text_options(wanted: Iterable[str], small: Mapping[str, Any]) -> TextOptions:
    """Those of one for an encoder: all tensors that are asked for of any layer, of each of those layers."""
    placed = [found for name in wanted if (found := LAYERED.fullmatch(name))]
    # Whoever asks for tokens alone has a layer computed for nothing, which is simpler than an answer without any.
    layers = tuple({int(found[1]) for found in placed}) or (0,)
    returned = tuple(dict.fromkeys(found[2] for found in placed)) or ("weights",)
    return options({**small, "layers": layers, "return": returned}, TextOptions, strict=True)


def _attention(given: Mapping[str, Array], chosen: Options) -> AttentionInput:
    """What is to be computed of a layer."""
    if "inputs" not in given:
        raise ShapeMismatch.at("/inputs", "the tensor is missing; it holds the token embeddings")
    inputs = given["inputs"]
    if inputs.ndim == 3:
        check_count(len(inputs), "/inputs")
    rows = _Rows.of(inputs, given.get("lengths"))
    return assemble(
        rows.embeddings(inputs),
        rows.beside("attn_mask", given, _booleans),
        rows.beside("attn_bias", given, float32),
        rows.form,
        chosen,
        _projections(given, needed=chosen.model is None),
        inputs.shape[1] if rows.lengths is not None else 0,
    )


def _texts(given: Mapping[str, Array], chosen: TextOptions) -> TextInput:
    """What is to be computed of an encoder."""
    if "text" not in given:
        raise ShapeMismatch.at("/text", "the tensor is missing; it holds the texts")
    texts = given["text"]
    if texts.ndim != 1 or not len(texts):
        raise ShapeMismatch.at("/text", f"its shape is {list(texts.shape)}, expected [texts], of which there is one")
    check_count(len(texts), "/text")
    pointers = [f"/text/{i}" for i in range(len(texts))]
    return TextInput(checked_texts(texts.tolist(), pointers), "list", chosen, padded=True)


def _default(layers: int, *, sparse: bool) -> Sequence[str]:
    """The tensors that are answered where none are named."""
    weights = SPARSE if sparse else ("weights",)
    if not layers:
        return ("outputs", *weights)
    return ("tokens", "lengths", *(f"layers.{layer}.{name}" for layer in range(layers) for name in weights))


def _check_output(name: str, layers: int, *, sparse: bool) -> None:
    """Raise `InvalidInput` unless there is such an output, of an encoder of so many layers if not of a layer."""
    where, tensor = f"/outputs/{escaped(name)}", name
    if layers:
        if name in TOKEN_TENSORS:
            return
        found = LAYERED.fullmatch(name)
        if found is None or int(found[1]) >= layers:
            known = f"layers.0.weights to layers.{layers - 1}.weights, likewise others, and {', '.join(TOKEN_TENSORS)}"
            raise UnknownField.at(where, f"no such output; known are {known}")
        tensor = name.split(".", 2)[2]
    if tensor not in OUTPUTS:
        raise UnknownField.at(where, f"no such output; {nearest(name, OUTPUTS)}")
    if tensor in SPARSE and not sparse:
        raise InvalidOption.at(where, "there is such an output with the parameter top_k only")
    if tensor == "weights" and sparse:
        raise ConflictingFields.at(where, f"with top_k they come as {' and '.join(SPARSE)}")


def checked_id(value: Any) -> str:
    """The id of a request, if it is one that can be echoed."""
    if not isinstance(value, str) or len(value) > MOST_ID:
        raise WrongType.at("/id", f"expected a string of at most {MOST_ID} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WrongType.at("/id", "it holds half a character, a surrogate without the other") from error
    return value


def tensors(asked: InferRequest, output: AttentionOutput) -> dict[str, Array]:
    """An answer's tensors by name, in the order asked for, with a leading axis of sequences where `inputs` has one."""
    found = answered(output, asked.attention.padded_to if isinstance(asked.attention, AttentionInput) else 0)
    return {name: found[name] for name in asked.outputs}


def answer_parameters(output: AttentionOutput) -> dict[str, str]:
    """What else an answer says: the backend, and as a JSON text the rows that see nothing, where there are some."""
    about = metadata(output)
    said = backend_parameters(output.backend)
    if "fully_masked_rows" in about:
        said["fully_masked_rows"] = orjson.dumps(about["fully_masked_rows"]).decode()
    return said


def backend_parameters(backend: BackendInfo) -> dict[str, str]:
    """What an answer says of the backend."""
    return {"backend": backend.name, "device": backend.device, "provider": backend.provider, "dtype": backend.dtype}


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which rows of the tensors belong to which sequence.

    Attributes:
        form: how the sequences are nested.
        count: of sequences.
        tokens: rows there are for each of them.
        lengths: rows that it has of those; None for all.
    """

    form: Form
    count: int
    tokens: int
    lengths: Sequence[int] | None

    @classmethod
    def of(cls, inputs: Array, lengths: Array | None) -> "_Rows":
        """By the embeddings, and `lengths` where there are some."""
        if lengths is None:
            return cls("stack", len(inputs), 0, None) if inputs.ndim == 3 else cls("one", 1, 0, None)
        if inputs.ndim != 3:
            raise ShapeMismatch.at("/lengths", "they are those of several sequences: inputs of shape [b, n, d]")
        count, tokens, _ = inputs.shape
        if lengths.shape != (count,):
            raise ShapeMismatch.at("/lengths", f"its shape is {list(lengths.shape)}, expected [{count}]")
        for i, length in enumerate(lengths.tolist()):
            if not 1 <= length <= tokens or length != int(length):
                raise ShapeMismatch.at(f"/lengths/{i}", f"expected a whole number from 1 to {tokens}, got {length!r}")
        return cls("list", count, tokens, [int(length) for length in lengths])

    def embeddings(self, inputs: Array) -> list[F32]:
        """Those of each sequence."""
        if self.lengths is None:
            array = float32(inputs, "/inputs")
            return [array] if self.form == "one" else list(array)
        return [float32(x[:n], f"/inputs/{i}") for i, (x, n) in enumerate(zip(inputs, self.lengths, strict=True))]

    def beside(self, name: str, given: Mapping[str, Array], read: Any) -> list[Any] | None:
        """One mask or bias for each sequence; a matrix alone is for all of them."""
        if name not in given:
            return None
        array, pointer = given[name], f"/{name}"
        if self.form == "one":
            return [read(array, pointer)]
        if self.lengths is None:
            array = read(array, pointer)
            return [array] * self.count if array.ndim < 3 else list(array)
        each = [array] * self.count if array.ndim < 3 else list(array)
        if array.shape[-2:] != (self.tokens, self.tokens) or len(each) != self.count:
            expected = f"[{self.tokens}, {self.tokens}], or one such matrix for each of {self.count} sequences"
            raise ShapeMismatch.at(pointer, f"its shape is {list(array.shape)}, expected {expected}")
        return [read(x[..., :n, :n], f"{pointer}/{i}") for i, (x, n) in enumerate(zip(each, self.lengths, strict=True))]


def _booleans(array: Array, pointer: str) -> Bool:
    if array.size and np.ascontiguousarray(array).view(np.uint8).max() > 1:
        raise WrongType.at(pointer, "a BOOL is a byte 0 or 1")
    return np.ascontiguousarray(array)


def _projections(given: Mapping[str, Array], *, needed: bool) -> Projections | None:
    """The caller's own matrices, all of them or, unless they are needed, none."""
    names = [f"{OWN}.{name}" for name in PROJECTION_NAMES]
    if not needed and not any(name in given for name in names):
        return None
    matrices = []
    for name in names:
        pointer = f"/{name.replace('.', '/')}"
        if name not in given:
            raise ShapeMismatch.at(pointer, "the matrix is missing")
        matrices.append(float32(given[name], pointer))
    return Projections(*matrices)


def _timeout_s(parameters: Mapping[str, Any]) -> float:
    timeout, priority = parameters.get("timeout", 0), parameters.get("priority", 0)
    for name, value in (("timeout", timeout), ("priority", priority)):
        if type(value) is not int or not 0 <= value < 2**63:
            raise InvalidOption.at(f"/{name}", f"expected a whole number from 0, got {value!r}")
    return timeout / 1e6 if timeout else math.inf
