"""How a batch reaches a GPU and its tensors come back: through pinned memory, padded, on a stream of its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.types import Array
from service.backends.base import Batch, Tensors
from service.backends.buckets import cut, fill

DTYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.bool_): torch.bool, np.dtype(np.int64): torch.int64}


@dataclass(frozen=True, slots=True)
class Form:
    """What decides which kernels a run launches, and on which shapes: runs of one form can replay one graph.

    Attributes:
        shapes: of what is put on the device, by name: `inputs`; `mask` where the rows of each sequence see what they
            are told, or `lengths` where they see their own sequence and not its padding, or neither where causality
            hides it or there is none; `bias`; and `query`, `key` and `value`, matrices of the caller's own.
        wanted, is_causal, scale: as in `Batch`.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    wanted: tuple[str, ...]
    is_causal: bool
    scale: float


def form_of(batch: Batch, length: int, count: int) -> Form:
    """The form of a batch padded to `count` sequences of `length` tokens."""
    shapes: dict[str, tuple[int, ...]] = {"inputs": (count, length, *batch.inputs[0].shape[1:])}
    if batch.masks is not None:
        shapes["mask"] = (count, length, length)
    elif not batch.is_causal and any(len(x) < length for x in batch.inputs):
        shapes["lengths"] = (count,)
    if batch.biases is not None:
        shapes["bias"] = (count, len(batch.biases[0]), length, length)
    if (own := batch.projections) is not None:
        shapes |= {"query": own.query.shape, "key": own.key.shape, "value": own.value.shape}
    return Form(tuple(shapes.items()), batch.wanted, batch.is_causal, batch.scale)


def staged(batch: Batch, form: Form) -> dict[str, Tensor]:
    """The batch in pinned memory, from which it is copied while the host does something else.

    torch keeps pinned memory that is let go of, and gives it again once no copy reads it any more.
    """
    hosts: dict[str, Tensor] = {}
    own = batch.projections
    for name, shape in form.shapes:
        match name:
            case "inputs":
                hosts[name] = _pinned(shape, batch.inputs)
            case "mask":
                hosts[name] = _pinned(shape, batch.masks or ())
            case "bias":
                hosts[name] = _pinned(shape, batch.biases or ())
            case "lengths":
                hosts[name] = _pinned(shape, [np.array(len(x)) for x in batch.inputs])
            case _:
                hosts[name] = _pinned((1, *shape), (getattr(own, name),))[0]
    return hosts


def _pinned(shape: tuple[int, ...], arrays: Sequence[Array]) -> Tensor:
    host = pinned(shape, DTYPES[arrays[0].dtype])
    fill(host.numpy(), arrays)
    return host


def pinned(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """New memory of the host that a GPU copies to and from by itself; any memory where there is no GPU."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=torch.cuda.is_available())


def fetched(found: Mapping[str, Tensor], wanted: Iterable[str], longest: int) -> dict[str, Tensor]:
    """Pinned copies of the tensors wanted, without what is padding in all of them; whole once the stream is."""
    hosts = {}
    for name in wanted:
        tensor = cut(name, found[name], longest)
        hosts[name] = pinned(tensor.shape, tensor.dtype)
        hosts[name].copy_(tensor, non_blocking=True)
    return hosts


def parted(hosts: Mapping[str, Tensor], lengths: Sequence[int]) -> list[Tensors]:
    """One mapping per sequence, each cut to its own tokens."""
    arrays = {name: host.numpy() for name, host in hosts.items()}
    return [{name: cut(name, array[i], n) for name, array in arrays.items()} for i, n in enumerate(lengths)]


def sees(given: Mapping[str, Tensor], length: int) -> Tensor | None:
    """What rows see, causality aside: (b, n, n), (b, 1, n) where that is the same for all rows, or None for all."""
    if "lengths" in given:
        return torch.arange(length, device=given["lengths"].device) < given["lengths"][:, None, None]
    return given.get("mask")
