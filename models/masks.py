"""Which columns a row may see."""

import numpy as np

from models.types import Bool


def visible(n: int, attn_mask: Bool | None, *, is_causal: bool) -> Bool | None:
    """Combine a boolean mask and causality.

    Args:
        n: tokens.
        attn_mask: (n, n), True = may attend, or None for all.
        is_causal: row i sees columns 0..i only.

    Returns:
        (n, n), True = may attend; None if every row sees every column.
    """
    if not is_causal:
        return attn_mask
    causal: Bool = np.tri(n, dtype=np.bool_)
    return causal if attn_mask is None else attn_mask & causal


def fully_masked_rows(keep: Bool | None) -> list[int]:
    """Rows that see no column at all: their weights and outputs are zeros."""
    return [] if keep is None else np.flatnonzero(~keep.any(axis=-1)).tolist()
