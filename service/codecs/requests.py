"""The checks that every decoder owes the queue: its tensors are finite float32, and their shapes fit one another."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.errors import NonFinite, ShapeMismatch
from models.finite import all_finite
from models.types import F32, Array, Bool, Projections, SequenceInput
from service.codecs.options import check_format
from service.errors import ConflictingFields, TooLarge
from service.messages import AttentionInput, Form, Options

TENSOR_FIELDS = ("inputs", "attn_mask", "attn_bias", "projections")
"""The fields that hold tensors."""

PROJECTION_NAMES = ("query", "key", "value")

MOST_SEQUENCES = 1 << 14
"""Sequences a decoder takes apart: more would take seconds before the engine could refuse them."""

FLOATS: dict[str, np.dtype[Any]] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
"""Dtypes a tensor may come in; all are computed in float32."""

FLOAT32 = np.dtype("<f4")


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
