"""A problem small enough to be worked by hand: embeddings, projections, and how to attend."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.errors import ShapeMismatch
from models.masks import visible
from models.types import F64, Bool

MOST_TOKENS, MOST_WIDTH = 16, 16
"""Largest problem: tokens, and columns of embeddings, queries, keys and values of a head."""


@dataclass(frozen=True)
class Problem:
    """Self-attention to be worked step by step; n tokens, h heads.

    Attributes:
        inputs: token embeddings X, (n, embed_dim).
        query, key: projections W_Q and W_K, (embed_dim, h * head_dim).
        value: projection W_V, (embed_dim, h * value_dim).
        num_heads: h.
        query_bias, key_bias, value_bias: added to a projection's rows, (its columns,), or None.
        is_causal: row i sees columns 0..i only.
        attn_mask: (n, n) booleans, True = may attend, or None.
        attn_bias: added to the scaled scores, (n, n) or (h, n, n), or None.
        scale: factor of the scores, None for 1/sqrt(head_dim).
        labels: a word per token.
        widest: most columns of embeddings, and of a head's queries, keys and values.
    """

    inputs: F64
    query: F64
    key: F64
    value: F64
    num_heads: int = 1
    query_bias: F64 | None = None
    key_bias: F64 | None = None
    value_bias: F64 | None = None
    is_causal: bool = False
    attn_mask: Bool | None = None
    attn_bias: F64 | None = None
    scale: float | None = None
    labels: tuple[str, ...] = ()
    widest: int = MOST_WIDTH

    def __post_init__(self) -> None:
        """Raise `ShapeMismatch` unless the arrays fit one another, and into the largest problem."""
        n, d = self.inputs.shape
        for name in ("query", "key", "value"):
            rows, columns = getattr(self, name).shape
            if rows != d or not columns or columns % self.num_heads:
                raise ShapeMismatch.at(
                    f"/projections/{name}",
                    f"has shape ({rows}, {columns}), expected ({d}, columns), as many as {self.num_heads} heads share",
                )
        if self.query.shape != self.key.shape:
            raise ShapeMismatch.at("/projections/key", f"has shape {self.key.shape}, the query's is {self.query.shape}")
        if not 1 <= n <= MOST_TOKENS:
            raise ShapeMismatch.at("/inputs", f"has {n} tokens; by hand 1 to {MOST_TOKENS} are worked")
        widest = max(d, self.head_dim, self.value_dim)
        if widest > self.widest:
            raise ShapeMismatch.at("/inputs", f"rows of {widest} numbers; by hand up to {self.widest} are worked")
        if self.labels and len(self.labels) != n:
            raise ShapeMismatch.at("/labels", f"{len(self.labels)} labels for {n} tokens")

    @property
    def n(self) -> int:
        """Tokens."""
        return len(self.inputs)

    @property
    def embed_dim(self) -> int:
        """Columns of the embeddings."""
        return int(self.inputs.shape[1])

    @property
    def head_dim(self) -> int:
        """Columns of a head's queries and keys, d_k."""
        return int(self.query.shape[1]) // self.num_heads

    @property
    def value_dim(self) -> int:
        """Columns of a head's values, d_v."""
        return int(self.value.shape[1]) // self.num_heads

    @property
    def factor(self) -> float:
        """What raw scores are multiplied by."""
        return float(1 / np.sqrt(self.head_dim)) if self.scale is None else self.scale

    @property
    def masked(self) -> bool:
        """Whether there is a step of masking."""
        return self.is_causal or self.attn_mask is not None

    @cached_property
    def keep(self) -> Bool | None:
        """Which column each row may see, (n, n), or None where all see all."""
        return visible(self.n, self.attn_mask, is_causal=self.is_causal, window=None)

    @property
    def tokens(self) -> tuple[str, ...]:
        """A word per token, `t1`, `t2` and so on where none were given."""
        return self.labels or tuple(f"t{i + 1}" for i in range(self.n))
