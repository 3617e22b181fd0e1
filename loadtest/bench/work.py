"""The work that every server here is given, and the right answer to it in float64.

Pure. The layers are the benchmark's own, not the service's built-in ones: their numbers are known here, so that answers
can be checked, and other servers can be given the same.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from loadtest.payloads import draw_lengths, write_safetensors

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Tensors = dict[str, npt.NDArray[np.floating]]

TOLERANCE: Final = 1e-4
"""How far a number of an answer may be from float64."""


class WrongAnswer(Exception):
    """An answer arrived, and its numbers are not right. The message says by how much."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Self-attention without biases, its weights drawn from a seed.

    Attributes:
        width: of a token embedding, and of all heads side by side.
        heads: how many share the width.
    """

    width: int
    heads: int = 1

    @property
    def name(self) -> str:
        """As servers call it."""
        return f"bench-{self.width}x{self.heads}"

    def weights(self) -> tuple[F32, F32, F32]:
        """Query, key and value projections, (width, width) each, for `x @ W`."""
        random = np.random.default_rng([self.width, self.heads])
        drawn = (random.standard_normal((3, self.width, self.width)) / np.sqrt(self.width)).astype(np.float32)
        return drawn[0], drawn[1], drawn[2]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request.

    Attributes:
        name: short, for tables.
        layer: what is asked.
        lengths: tokens of the sequences, sent in turn.
    """

    name: str
    layer: Layer
    lengths: tuple[int, ...]

    @property
    def title(self) -> str:
        """What it is, for people."""
        least, most = min(self.lengths), max(self.lengths)
        tokens = str(least) if least == most else f"{least} to {most}"
        heads = f", {self.layer.heads} heads" if self.layer.heads > 1 else ""
        return f"{tokens} tokens × {self.layer.width}{heads}"

    def inputs(self) -> list[F32]:
        """Token embeddings, (n, width) for each n of `lengths`."""
        return [inputs(n, self.layer.width, seed) for seed, n in enumerate(self.lengths)]


def _mixed() -> tuple[int, ...]:
    return tuple(int(n) for n in draw_lengths(np.random.default_rng(7), 64))


def cases() -> dict[str, Case]:
    """The cases by name; 8 different sequences in turn, or 64 of mixed lengths."""
    made = (
        Case("S", Layer(64), (16,) * 8),
        Case("M", Layer(384), (128,) * 8),
        Case("heads", Layer(384, 12), (128,) * 8),
        Case("L", Layer(384), (1024,) * 4),
        Case("mixed", Layer(384), _mixed()),
    )
    return {case.name: case for case in made}


def inputs(n: int, width: int, seed: int = 0) -> F32:
    """Token embeddings, (n, width)."""
    return np.random.default_rng([seed, n, width]).standard_normal((n, width), dtype=np.float32)


def reference(layer: Layer, x: F32, rows: int | None = None) -> tuple[F64, F64]:
    """Attention in float64.

    Args:
        layer: whose weights.
        x: token embeddings, (n, width).
        rows: compute the first so many rows only.

    Returns:
        Outputs, (rows, width), and weights, (rows, n), with a leading axis of heads if there are several.
    """
    n, size = len(x), layer.width // layer.heads
    query, key, value = (  # (heads, n, size) each
        (x.astype(np.float64) @ w.astype(np.float64)).reshape(n, layer.heads, size).swapaxes(0, 1)
        for w in layer.weights()
    )
    scores = query[:, :rows] @ key.swapaxes(1, 2) / np.sqrt(size)  # (heads, rows, n)
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))  # (heads, rows, n)
    weights = exp / exp.sum(axis=-1, keepdims=True)  # (heads, rows, n)
    outputs = (weights @ value).swapaxes(0, 1).reshape(-1, layer.width)  # (rows, width)
    return outputs, weights if layer.heads > 1 else weights[0]


def check(layer: Layer, x: F32, answer: Tensors, rows: int | None = None) -> None:
    """Compare an answer with float64.

    Args:
        layer: what was asked.
        x: what was sent, (n, width).
        answer: `outputs`, and `weights` unless they were not asked for.
        rows: compare the first so many rows only.

    Raises:
        WrongAnswer: if a shape is not right, or a number is further off than TOLERANCE.
    """
    for name, right in zip(("outputs", "weights"), reference(layer, x, rows), strict=True):
        if name not in answer:
            continue
        got = answer[name][..., :rows, :]
        if got.shape != right.shape:
            raise WrongAnswer(f"{name} have shape {got.shape}, expected {right.shape}")
        off = float(np.abs(got - right).max())
        if not off <= TOLERANCE:  # NaN is not right either
            raise WrongAnswer(f"{name} are {off:.1e} from float64, at most {TOLERANCE:.0e} is right")


def write_repository(folder: Path, layers: Iterable[Layer]) -> None:
    """Write layers as a model repository of the service, `docs/models.md`."""
    for layer in layers:
        place = folder / layer.name
        place.mkdir(parents=True, exist_ok=True)
        size = layer.width // layer.heads
        spec = {"name": layer.name, "embed_dim": layer.width, "num_heads": layer.heads, "head_dim": size}
        (place / "spec.json").write_text(json.dumps(spec))
        named = dict(zip(("query", "key", "value"), layer.weights(), strict=True))
        (place / "weights.safetensors").write_bytes(write_safetensors(named))
