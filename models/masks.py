"""Which columns a row may see."""

import numpy as np

from models.types import Bool


def visible(n: int, attn_mask: Bool | None, *, is_causal: bool, window: int | None = None) -> Bool | None:
    """Combine a boolean mask, causality and a sliding window.

    Args:
        n: tokens.
        attn_mask: (n, n), True = may attend, or None for all.
        is_causal: row i sees columns 0..i only.
        window: row i sees columns above i - window only, so that a window of 1 is the token itself; without
            causality as many after it too: |i - j| < window.

    Returns:
        (n, n), True = may attend; None if every row sees every column.
    """
    keep = attn_mask
    if is_causal:
        causal: Bool = np.tri(n, dtype=np.bool_)
        keep = causal if keep is None else keep & causal
    if window is not None and window < n:
        near: Bool = np.tri(n, k=window - 1, dtype=np.bool_) & ~np.tri(n, k=-window, dtype=np.bool_)
        keep = near if keep is None else keep & near
    return keep


def fully_masked_rows(keep: Bool | None) -> list[int]:
    """Rows that see no column at all: their weights and outputs are zeros."""
    return [] if keep is None else np.flatnonzero(~keep.any(axis=-1)).tolist()
