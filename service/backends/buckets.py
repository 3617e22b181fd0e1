"""Lengths that sequences are padded to on a GPU, so that unlike ones share a batch and few shapes are ever computed."""

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from models.types import Array
from service.backends.base import SCORED

LAST = 1_024
"""Tokens beyond which a sequence fills a GPU by itself, and padding it would only cost."""

STEP = 8
"""Every bucket is a multiple of it: so the fused kernels want the rows of a mask aligned."""


def bucket(n: int) -> int:
    """The least of 8, 16, 24, 32, 48, 64, 96, …, 768, 1024 that n tokens fit; n itself where it is longer than all."""
    if n > LAST:
        return n
    power = max(STEP, 1 << (n - 1).bit_length())
    between = power * 3 // 4
    return between if n <= between and between % STEP == 0 else power


def rung(count: int) -> int:
    """The least power of two that `count` sequences fit."""
    return 1 << (count - 1).bit_length()


def fill(out: Array, arrays: Sequence[Array]) -> None:
    """Lay arrays into the first corners of the first rows of `out`, and zeros everywhere else.

    Nothing of what was in that memory may stay: a weight of 0 does not hide a NaN.
    """
    for i, array in enumerate(arrays):
        if out.shape[1:] != array.shape:
            out[i] = 0
        corner: list[int | slice] = [i, *(slice(size) for size in array.shape)]
        out[tuple(corner)] = array
    out[len(arrays) :] = 0


Tensorlike = TypeVar("Tensorlike", Array, Tensor)


def cut(name: str, tensor: Tensorlike, n: int) -> Tensorlike:
    """The part of a tensor, with or without an axis of sequences before it, that belongs to the first n tokens."""
    kind = name.rpartition(".")[2]  # an encoder's are called layers.5.weights
    return tensor[..., :n, :n] if kind in SCORED else tensor[..., :n, :]
