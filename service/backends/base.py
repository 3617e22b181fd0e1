"""What a backend is: it turns a `Batch` into the tensors asked for, and does nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from models.repository import EncoderEntry, ModelEntry
from models.types import F32, Array, Bool, Projections

SCORED = frozenset({"weights", "scores"})
"""Tensors that are not to be had without a matrix of scores."""

Tensors = Mapping[str, F32]
"""Tensors of one sequence by name: per-head ones (h, n, ·), outputs (n, h * value_dim), projected (n, embed_dim)."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What an answer was computed with.

    Attributes:
        name: the backend's name in the registry.
        device: such as `cpu` or `cuda:0`.
        provider: what the runtime truly runs on, such as `CPUExecutionProvider` or `torch`.
        dtype: of the tensors it computes in.
    """

    name: str
    device: str
    provider: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Batch:
    """b sequences of one length n that want the same.

    Attributes:
        inputs: b arrays (n, embed_dim) float32; or, for an encoder, (n,) int64 token ids.
        masks: b arrays (n, n), True = may attend, or None if every row sees every column it may by `is_causal`. A
            layer's own causality and window are in these two; runners add none.
        biases: b arrays (1, n, n) or (h, n, n), all alike, or None.
        is_causal: rows see earlier columns only; never together with `masks`, which then hold causality too.
        scale: factor of the scores.
        wanted: names of the tensors to compute.
        projections: the caller's own matrices, for the runner of `Backend.projections`.
    """

    inputs: tuple[Array, ...]
    masks: tuple[Bool, ...] | None
    biases: tuple[F32, ...] | None
    is_causal: bool
    scale: float
    wanted: tuple[str, ...]
    projections: Projections | None = None

    @property
    def length(self) -> int:
        """Tokens of each sequence, n."""
        return len(self.inputs[0])


class Runner(Protocol):
    """One layer, or one encoder, loaded on one backend."""

    @property
    def batch_tokens(self) -> int:
        """Tokens up to which a larger batch pays; a batch of one sequence may exceed it."""

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """Whether a matrix of scores is held, asked for or not, to compute these tensors for n tokens."""

    def run(self, batch: Batch) -> list[Tensors]:
        """Compute one mapping per sequence, with exactly the tensors wanted.

        Called from several threads at once. The numbers for a sequence must not depend on the others in the batch.
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
