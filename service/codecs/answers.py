"""What every answer says beside its tensors, what these are called, and their bytes."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from models.tokenizer import Tokens
from models.types import Array
from service.backends.base import BackendInfo
from service.messages import AttentionOutput

RAW = 1 << 18
"""Bytes of a piece of a binary answer."""


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
