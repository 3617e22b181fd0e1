"""Whether numbers are finite, asked cheaply first."""

import math

import numpy as np

from models.types import F32


def all_finite(array: F32) -> bool:
    """Whether no element is NaN or infinite.

    A sum of squares is finite only where all of them are, and takes half the time of asking each number; where it
    overflows, each is asked.

    Args:
        array: float32, any shape.
    """
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())
