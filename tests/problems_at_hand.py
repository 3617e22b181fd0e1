"""Problems that several tests explain."""

import numpy as np

from models import repository
from service.tutor.problem import Problem


def lesson(**options) -> Problem:
    """The example of the model `lesson`."""
    entry = next(entry for entry in repository.builtin() if entry.spec.name == "lesson")
    weights = {name: np.array(rows) for name, rows in entry.spec.weights.items()}
    example = entry.spec.example
    options = {"labels": example.labels} | options
    return Problem(np.array(example.inputs), weights["query"], weights["key"], weights["value"], **options)


def drawn(seed=0, n=4, d=5, k=3, v=2, heads=1, whole=False, **options) -> Problem:
    """Numbers from a seed; whole ones in -2..2 if `whole`."""
    random = np.random.default_rng(seed)

    def matrix(rows, columns):
        return random.integers(-2, 3, (rows, columns)).astype(float) if whole else random.normal(size=(rows, columns))

    return Problem(
        matrix(n, d), matrix(d, heads * k), matrix(d, heads * k), matrix(d, heads * v), num_heads=heads, **options
    )


def blind(n=4) -> np.ndarray:
    """A mask that lets the first row see nothing."""
    mask = np.ones((n, n), bool)
    mask[0] = False
    return mask
