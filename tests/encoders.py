"""Small encoders with weights drawn at random."""

from typing import Any

import numpy as np

from models.encoder_spec import EncoderSpec
from models.encoder_weights import EncoderWeights, checked, shapes

SIZES: dict[str, Any] = {
    "num_layers": 3,
    "embed_dim": 24,
    "num_heads": 4,
    "head_dim": 6,
    "intermediate_dim": 40,
    "vocab_size": 50,
    "max_positions": 300,
}


def make_spec(**changes: Any) -> EncoderSpec:
    """A small encoder's."""
    return EncoderSpec(**{"name": "tiny", **SIZES, **changes})


def draw_tensors(spec: EncoderSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers that make attention far from uniform and keep hidden states of order 1."""
    random = np.random.RandomState(seed)
    found = {}
    for name, shape in shapes(spec).items():
        numbers = random.standard_normal(shape)
        if len(shape) == 2 and name.startswith("layers"):
            numbers *= 1.5 / np.sqrt(shape[0])
        elif name.endswith(("norm", "norm1", "norm2")):
            numbers = 1 + 0.3 * numbers
        found[name] = numbers.astype(np.float32)
    return found


def draw_weights(spec: EncoderSpec, seed: int = 0) -> EncoderWeights:
    """The same as weights."""
    return checked(spec, draw_tensors(spec, seed), spec.id)


def draw_ids(spec: EncoderSpec, n: int, count: int = 1) -> np.ndarray:
    """Token ids, (count, n)."""
    return np.random.RandomState(n).randint(0, spec.vocab_size, (count, n)).astype(np.int64)
