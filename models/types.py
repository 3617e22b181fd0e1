"""Array aliases and the names of the tensors an answer may hold."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

TensorName = Literal["outputs", "weights", "scores", "query", "key", "value", "projected"]

TENSOR_NAMES: Final[tuple[TensorName, ...]] = ("outputs", "weights", "scores", "query", "key", "value")
"""What every layer has, in the order answers list them."""

ALL_TENSOR_NAMES: Final[tuple[TensorName, ...]] = (*TENSOR_NAMES, "projected")
"""Every tensor a caller may ask for: `projected` is outputs W_o + b_o, of layers with an output projection."""

PER_HEAD: Final[frozenset[TensorName]] = frozenset({"weights", "scores", "query", "key", "value"})
"""The tensors that have a leading axis of heads where the model has several."""


@dataclass(slots=True)  # a frozen one takes four times as long to make, and each request has one
class SequenceInput:
    """One sequence as a caller sends it, checked and finite, n tokens.

    Attributes:
        inputs: token embeddings, (n, embed_dim) float32; or, for an encoder, token ids, (n,) int64.
        attn_mask: (n, n), True = may attend, or None.
        attn_bias: (n, n) or (heads, n, n), added to the scaled scores, or None.
    """

    inputs: Array
    attn_mask: Bool | None = None
    attn_bias: F32 | None = None


@dataclass(frozen=True, slots=True)
class Projections:
    """A caller's own matrices: query and key (d, d_k), value (d, d_v)."""

    query: F32
    key: F32
    value: F32
