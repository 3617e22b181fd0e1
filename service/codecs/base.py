"""What a codec is, and the checks that every one of them owes the queue.

bytes ──decode──> AttentionInput: finite float32, shapes consistent. AttentionOutput ──encode──> bytes. Pure: no
clock, no I/O.
"""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import numpy as np
from pydantic import BaseModel, ValidationError

from models.errors import NonFinite, ShapeMismatch
from models.finite import all_finite
from models.tokenizer import Tokens
from models.types import F32, Array, Bool, Projections, SequenceInput
from service.backends.base import BackendInfo
from service.errors import ConflictingFields, InvalidOption, NotAcceptable, TooLarge, UnknownField, Unparsable
from service.lane import ALONE, Piece, Team
from service.messages import AnswerOptions, AttentionInput, AttentionOutput, Form, Options

Chosen = TypeVar("Chosen", bound=BaseModel)
Request = TypeVar("Request", covariant=True)


@cache
def option_names(kind: type[BaseModel]) -> tuple[str, ...]:
    """The small fields, as callers spell them."""
    return tuple(field.alias or name for name, field in kind.model_fields.items())


OPTION_NAMES = option_names(Options)
"""Those of requests that bring embeddings."""

TENSOR_FIELDS = ("inputs", "attn_mask", "attn_bias", "projections")
"""The fields that hold tensors."""

PROJECTION_NAMES = ("query", "key", "value")

MOST_SEQUENCES = 1 << 14
"""Sequences a decoder takes apart: more would take seconds before the engine could refuse them."""

LONG_ANSWER = 1 << 19
"""Bytes of tensors from which a binary answer is put together in a thread, and sent in pieces."""

RAW = 1 << 18
"""Bytes of a piece of a binary answer."""

FLOATS: dict[str, np.dtype[Any]] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
"""Dtypes a tensor may come in; all are computed in float32."""


class Decoder(Protocol[Request]):
    """Reads requests of one media type.

    Attributes:
        plain_from: bytes from which a body is read by `decode_plain` first, in a thread.
    """

    media_type: str
    plain_from: float

    def decode(self, body: bytes, query: str) -> Request:
        """The request in `body` with the options of the query string.

        Raises:
            Unparsable: if the body is not what the media type says.
            InvalidInput: if it is, but means something that cannot be computed; the error names the place.
        """

    def decode_plain(self, body: bytes, query: str, team: Team) -> Request | None:
        """The request in a long body, read by a team; None where only `decode` finds it, or what is wrong."""


class ReadsAtOnce:
    """A decoder that reads long bodies as it reads short ones."""

    plain_from = math.inf

    def decode_plain(self, body: bytes, query: str, team: Team) -> None:
        """See `Decoder.decode_plain`."""


class Encoder(Protocol):
    """Writes answers of one media type.

    Attributes:
        long_answer: bytes of tensors from which an answer is long.
    """

    media_type: str
    long_answer: int

    def encode(self, output: AttentionOutput) -> bytes:
        """The answer's bytes."""

    def pieces(self, output: AttentionOutput, team: Team = ALONE) -> list[Piece]:
        """The same bytes in pieces, written by a team; for long answers."""


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for an unknown name."""
    near = difflib.get_close_matches(name[:64], known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


@lru_cache(maxsize=1024)
def query_options(query: str, kind: type[Chosen]) -> Chosen:
    """The options of a query string.

    Raises:
        InvalidInput: if a parameter is unknown, has a value it cannot have, or comes twice with different values.
    """
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError as error:
        raise Unparsable(f"the query string cannot be read: {error}") from error
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise ConflictingFields.at(f"/{name}", f"given twice in the query string: {found[name]!r} and {value!r}")
    return options(found, kind, strict=False)


def options(fields: Mapping[str, object], kind: type[Chosen], *, strict: bool) -> Chosen:
    """Options from named values: strictly typed ones of a JSON body, or the strings of a query string.

    Raises:
        UnknownField: with the nearest known name.
        InvalidOption: with the value and what would be right.
    """
    for name in fields:
        if name not in (known := option_names(kind)):
            raise UnknownField.at(f"/{name}", f"no such parameter; {nearest(name, known)}")
    try:
        return kind.model_validate(fields, strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        pointer = "".join(f"/{part}" for part in first["loc"])
        raise InvalidOption.at(pointer, f"{first['msg']}, got {first['input']!r}") from error


def merged(body: Chosen, query: Chosen) -> Chosen:
    """The options of a body and of the query string together.

    Raises:
        ConflictingFields: if both give one, differently.
    """
    if not query.model_fields_set:
        return body
    for name in body.model_fields_set & query.model_fields_set:
        mine, theirs = getattr(body, name), getattr(query, name)
        if mine != theirs:
            label = type(body).model_fields[name].alias or name
            raise ConflictingFields.at(f"/{label}", f"the body says {mine!r}, the query string {theirs!r}")
    return body.model_copy(update={name: getattr(query, name) for name in query.model_fields_set})


def check_format(chosen: AnswerOptions) -> None:
    """Raise `ConflictingFields` unless the answer can have the format and the decimals that are asked for."""
    if chosen.decimals is not None and chosen.encoding != "json":
        raise ConflictingFields.at("/decimals", "base64 holds no decimals; leave out `decimals` or `encoding`")
    if chosen.decimals is not None and chosen.dtype != "float32":
        raise ConflictingFields.at("/decimals", f"{chosen.dtype} rounds already; leave out `decimals` or `dtype`")
    if chosen.format != "bertviz":
        return
    if "returns" in chosen.model_fields_set and chosen.returns != ("weights",):
        raise ConflictingFields.at("/return", "with the format bertviz the answer is the weights, and nothing else")
    if chosen.top_k is not None:
        raise ConflictingFields.at("/top_k", "with the format bertviz the answer is all weights")
    if chosen.encoding != "json":
        raise ConflictingFields.at("/encoding", "with the format bertviz the answer is nested numbers")


def check_media_type(chosen: AnswerOptions, media_type: str) -> None:
    """Raise `NotAcceptable` unless an answer of a media type can be what is asked for."""
    if media_type == "application/json":
        return
    if chosen.format == "bertviz":
        raise NotAcceptable(f"the format bertviz is JSON, not {media_type}")
    if chosen.decimals is not None:
        raise NotAcceptable(f"decimals are those of numbers in JSON, not of {media_type}; accept application/json")


def float32(array: Array, pointer: str) -> F32:
    """The array as C-contiguous, aligned float32.

    Args:
        array: float16, float32 or float64, any shape.
        pointer: where it stands in the request.

    Raises:
        NonFinite: with the path of the first element that is NaN, infinite, or too large for float32.
    """
    result: F32 = array
    if array.dtype != np.float32 or not (array.flags.c_contiguous and array.flags.aligned):
        with np.errstate(over="ignore"):
            result = np.require(array, np.float32, ["C", "A"])
    if not all_finite(result):
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(result))[0])
        where, value = "".join(f"/{i}" for i in at), float(array[at])
        fault = f"{value!r} is too large for float32" if np.isfinite(value) else f"{value!r} is not a finite number"
        raise NonFinite.at(f"{pointer}{where}", fault)
    return result


FLOAT32 = np.dtype("<f4")


def lone_sequence(body: bytes, begin: int, shape: tuple[int, int]) -> SequenceInput | None:
    """The one tensor of a body, a view where its numbers are aligned; None if one of them is not finite.

    Args:
        body: whole.
        begin: where its numbers begin, which are float32.
        shape: (n, d), no axis empty; there are as many numbers.
    """
    n, d = shape
    inputs = np.frombuffer(body, FLOAT32, n * d, begin).reshape(shape)
    if begin % FLOAT32.itemsize:
        inputs = inputs.copy()
    return SequenceInput(inputs) if all_finite(inputs) else None


def check_count(count: int, pointer: str) -> None:
    """Raise `TooLarge` if there are more sequences, or tensors beside them, than any decoder takes apart."""
    if count > MOST_SEQUENCES:
        raise TooLarge.at(pointer, f"{count} of them; no request may have more than {MOST_SEQUENCES}")


def reshaped(flat: Array, shape: Sequence[int], pointer: str) -> Array:
    """The array in the shape its sender says it has, a view.

    Args:
        flat: as many elements as the shape has.
        shape: sizes, from outside: too many of them, or, beside a 0, too large ones, are no shape of an array.
        pointer: where the tensor stands in the request.

    Raises:
        ShapeMismatch: if no array can have the shape.
    """
    try:
        return flat.reshape(shape)
    except ValueError as error:
        raise ShapeMismatch.at(pointer, f"no array has the shape {list(shape)}: {error}") from error


def assemble(
    inputs: Sequence[F32],
    masks: Sequence[Bool | None] | None,
    biases: Sequence[F32 | None] | None,
    form: Form,
    chosen: Options,
    projections: Projections | None,
    padded_to: int = 0,
) -> AttentionInput:
    """A request whose tensors fit one another.

    Args:
        inputs: one array per sequence.
        masks: one per sequence, or None if the request has none.
        biases: likewise.
        form: how the caller nested them.
        chosen: the options.
        projections: the caller's own matrices.
        padded_to: see `AttentionInput`.

    Raises:
        ShapeMismatch: naming the tensor, its shape and the shape it must have.
        ConflictingFields: if the request names a model and brings projections.
    """
    check_format(chosen)
    if projections is not None and chosen.model is not None:
        raise ConflictingFields.at("/projections", "give `model` or `projections`, not both")
    if not inputs:
        raise ShapeMismatch.at("/inputs", "there are no sequences; at least one is needed")
    if masks is None and biases is None and form == "one":  # as most are
        (x,) = inputs
        _check_inputs(x, "/inputs")
        sequences = [SequenceInput(x)]
    else:
        sequences = _beside(inputs, masks, biases, form)
    if projections is not None:
        _check_projections(projections)
    return AttentionInput(tuple(sequences), form, chosen, projections, padded_to)


def _beside(
    inputs: Sequence[F32], masks: Sequence[Bool | None] | None, biases: Sequence[F32 | None] | None, form: Form
) -> list[SequenceInput]:
    """Sequences, with what goes with each; arguments and errors as in `assemble`."""
    for name, given in (("attn_mask", masks), ("attn_bias", biases)):
        if given is not None and len(given) != len(inputs):
            raise ShapeMismatch.at(f"/{name}", f"{len(given)} of them for {len(inputs)} sequences; give one for each")
    sequences = []
    for i, x in enumerate(inputs):
        suffix = "" if form == "one" else f"/{i}"
        _check_inputs(x, f"/inputs{suffix}")
        mask, bias = masks[i] if masks else None, biases[i] if biases else None
        n = len(x)
        if mask is not None and mask.shape != (n, n):
            raise ShapeMismatch.at(f"/attn_mask{suffix}", f"its shape is {_shape(mask)}, expected [{n}, {n}]")
        if bias is not None and (bias.ndim not in (2, 3) or bias.shape[-2:] != (n, n) or not len(bias)):
            expected = f"[{n}, {n}] or [heads, {n}, {n}]"
            raise ShapeMismatch.at(f"/attn_bias{suffix}", f"its shape is {_shape(bias)}, expected {expected}")
        sequences.append(SequenceInput(x, mask, bias))
    return sequences


def _check_inputs(x: F32, pointer: str) -> None:
    if x.ndim == 2 and x.size:
        return
    if x.ndim != 2:
        raise ShapeMismatch.at(pointer, f"its shape is {_shape(x)}, expected [tokens, embed_dim]")
    if not len(x):
        raise ShapeMismatch.at(pointer, "the sequence has no tokens; at least one is needed")
    raise ShapeMismatch.at(f"{pointer}/0", "the embedding has no numbers")


def _check_projections(given: Projections) -> None:
    for name in PROJECTION_NAMES:
        matrix = getattr(given, name)
        if matrix.ndim != 2 or not matrix.size:
            raise ShapeMismatch.at(f"/projections/{name}", f"its shape is {_shape(matrix)}, expected [d, columns]")
        if len(matrix) != len(given.query):
            raise ShapeMismatch.at(
                f"/projections/{name}", f"it has {len(matrix)} rows, but query has {len(given.query)}"
            )
    if given.key.shape != given.query.shape:
        raise ShapeMismatch.at(
            "/projections/key", f"its shape is {_shape(given.key)}, but query's is {_shape(given.query)}"
        )


def _shape(array: Array) -> str:
    return str(list(array.shape))


def metadata(output: AttentionOutput) -> dict[str, Any]:
    """What every answer says beside its tensors, ready for JSON."""
    found = dict(origin(output.model, output.backend))
    if output.tokens is not None:
        tokens = [described(each) for each in output.tokens]
        found["tokens"] = tokens[0] if output.form == "one" else tokens
    if any(output.fully_masked_rows):
        rows = output.fully_masked_rows
        found["fully_masked_rows"] = rows[0] if output.form == "one" else rows
    return found


@lru_cache(maxsize=256)
def origin(model: tuple[str, str], info: BackendInfo) -> Mapping[str, Any]:
    """What every answer says of where it comes from: the model, by name and version, and the backend."""
    name, version = model
    return {
        "model": {"name": name, "version": version},
        "backend": {"name": info.name, "device": info.device, "provider": info.provider, "dtype": info.dtype},
    }


def described(tokens: Tokens) -> list[dict[str, Any]]:
    """What an answer says of each token of a text."""
    return [
        {"token": token, "id": int(number), "start": start, "end": end, "special": special}
        for token, number, (start, end), special in zip(
            tokens.tokens, tokens.ids, tokens.offsets, tokens.special, strict=True
        )
    ]


def flat_tensors(output: AttentionOutput) -> dict[str, Array]:
    """The answer's tensors as binary formats name them.

    One sequence: `outputs`, …; one array of sequences: the same, stacked; a list: `outputs.0`, `outputs.1`, …. Sparse
    weights are two tensors, `weights.indices` and `weights.values`.
    """
    if output.form == "one":
        return named(output.answers[0])
    parts = [named(answer) for answer in output.answers]
    if output.form == "stack" and len(parts) == 1:
        return {name: array[None] for name, array in parts[0].items()}
    if output.form == "stack":
        return {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    return {f"{name}.{i}": array for i, part in enumerate(parts) for name, array in part.items()}


def named(answer: Mapping[str, Any]) -> dict[str, Array]:
    """The tensors of one sequence as binary formats name them."""
    found: dict[str, Array] = {}
    for name, value in answer.items():
        if isinstance(value, np.ndarray):
            found[name] = value
        else:
            found[f"{name}.indices"], found[f"{name}.values"] = value.indices, value.values
    return found


def joined(head: bytes, arrays: Iterable[Array]) -> bytes:
    """The head, and the bytes of arrays in C order."""
    arrays = [*arrays]
    try:
        return b"".join([head, *[array.data for array in arrays]])
    except TypeError:  # `join` takes none that is not in C order
        return b"".join([head, *[np.ascontiguousarray(array).data for array in arrays]])


def raw_pieces(array: Array) -> Iterator[memoryview]:
    """The bytes of an array in C order; nothing is copied where it is in that order already."""
    if array.nbytes <= RAW:
        if array.size:  # memory without elements cannot be cast
            yield np.ascontiguousarray(array).data.cast("B")
        return
    count = max(1, RAW * len(array) // array.nbytes)
    for start in range(0, len(array), count):
        part = np.ascontiguousarray(array[start : start + count]).reshape(-1).view(np.uint8)
        for at in range(0, len(part), RAW):
            yield part[at : at + RAW].data
