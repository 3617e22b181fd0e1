"""What a backend is: it turns a `Batch` into the tensors asked for, and does nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from models.repository import EncoderEntry, ModelEntry
from models.spec import ComputeDtype
from models.types import F32, Array, Bool, Projections
from service.lane import Spread, in_turn

SCORED = frozenset({"weights", "scores"})
"""Tensors that are not to be had without a matrix of scores."""

Tensors = Mapping[str, F32]
"""Tensors of one sequence by name: per-head ones (h, n, ·), outputs (n, h * value_dim), projected (n, embed_dim)."""


class BackendInfo(NamedTuple):
    """What an answer was computed with.

    Attributes:
        name: the backend's name in the registry.
        device: such as `cpu` or `cuda:0`.
        provider: what the runtime truly runs on, such as `CPUExecutionProvider` or `torch`.
        dtype: what products are rounded to: `float64`, `float32`, or `tf32` where that was allowed; of a model that
            declares another, `float16` or `bfloat16`.
        as_declared: whether models are computed in the dtype that they declare.
    """

    name: str
    device: str
    provider: str
    dtype: str
    as_declared: bool = False

    def of(self, compute_dtype: ComputeDtype) -> "BackendInfo":
        """What a model is computed with that declares this dtype."""
        return self._replace(dtype=compute_dtype) if self.as_declared and compute_dtype != "float32" else self


@dataclass(frozen=True, slots=True)
class Batch:
    """b sequences that want the same: of one length n, or of lengths that `Runner.bucket` makes one.

    Attributes:
        inputs: b arrays (n, embed_dim) float32; or, for an encoder, (n,) int64 token ids.
        masks: b arrays (n, n), True = may attend, or None if every row sees every column it may by `is_causal`. A
            layer's own causality and window are in these two; runners add none.
        biases: b arrays (1, n, n) or (h, n, n), all of as many heads, or None.
        is_causal: rows see earlier columns only; never together with `masks`, which then hold causality too.
        scale: factor of the scores.
        wanted: names of the tensors to compute.
        projections: the caller's own matrices, for the runner of `Backend.projections`.
        spread: what a runner may have the parts of its work computed by; which parts there are must not depend on it.
    """

    inputs: tuple[Array, ...]
    masks: tuple[Bool, ...] | None
    biases: tuple[F32, ...] | None
    is_causal: bool
    scale: float
    wanted: tuple[str, ...]
    projections: Projections | None = None
    spread: Spread = in_turn

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(map(len, self.inputs))

    def alone(self, i: int) -> "Batch":
        """The sequence i by itself."""
        return replace(
            self,
            inputs=self.inputs[i : i + 1],
            masks=None if self.masks is None else self.masks[i : i + 1],
            biases=None if self.biases is None else self.biases[i : i + 1],
        )


class Runner(Protocol):
    """One layer, or one encoder, loaded on one backend."""

    @property
    def batch_tokens(self) -> int:
        """Tokens up to which a larger batch pays; a batch of one sequence may exceed it."""

    @property
    def exact(self) -> bool:
        """Whether a sequence has the same bits alone and in company; else it has them within rounding."""

    def bucket(self, n: int) -> int:
        """Tokens that a sequence of n is computed with, n itself where the runner is exact.

        Sequences for which it is the same number may share a batch.
        """

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """Whether a matrix of scores is held, asked for or not, to compute these tensors for n tokens."""

    def run(self, batch: Batch) -> list[Tensors]:
        """Compute one mapping per sequence, with exactly the tensors wanted.

        Called from several threads at once. The numbers for a sequence do not depend on the others in the batch.
        A row that sees nothing may hold anything: the caller makes it zero. But its `projected` is what the output
        projection makes of zeros.
        """

    def warm(self) -> None:
        """Do now what the first request would otherwise wait for."""


class Backend(Protocol):
    """A runtime."""

    @property
    def info(self) -> BackendInfo:
        """What it truly runs on."""

    def layer(self, entry: ModelEntry) -> Runner:
        """Load a layer of the repository.

        Raises:
            InvalidModel, ArtifactError: if this backend cannot serve it.
        """

    def encoder(self, entry: EncoderEntry) -> Runner:
        """Load an encoder of the repository; errors as in `layer`. Its tensors are those of `encoder_tensor_names`."""

    def projections(self) -> Runner:
        """A runner of batches that bring their own `projections`: one head, no bias."""
