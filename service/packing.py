"""Pure steps between the queue and a backend: units of work to a batch, and tensors back to answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from models.errors import NumericOverflow
from models.finite import all_finite
from models.masks import fully_masked_rows, visible
from models.types import F32, PER_HEAD, Array, Bool, Projections, SequenceInput
from service.backends.base import Batch, Runner, Tensors
from service.lane import Spread, in_turn
from service.messages import Answer, AnswerOptions, TopK
from service.statistics import Statistics

MOST_LENGTHS = 256
"""Lengths of which a job remembers how they are sorted."""


class Sorted(NamedTuple):
    """Where a unit belongs in the queue.

    Attributes:
        bucket: tokens it is computed with: padding may come to its own.
        masked: whether what its rows see takes a matrix to say, beyond all or all that came before.
        kind: units of equal kinds take equally long.
        key: units with equal keys may share a batch: one bucket of lengths, one layer, one graph, one scale.
    """

    bucket: int
    masked: bool
    kind: tuple[object, ...]
    key: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What every sequence of a request shares.

    Attributes:
        runner: the layer, or the encoder, that computes it.
        backend: the backend's name, for metrics.
        options: what the caller asked for.
        wanted: names of the tensors that makes.
        is_causal: asked for by the caller or by the model.
        scale: factor of the scores, the caller's or the model's.
        window: the model's sliding window, or None.
        projections: the caller's own matrices, or None.
        statistics: of the model, or None where nobody counts.
        plain: how sequences without a mask and a bias are sorted, by their lengths; jobs may be shared by requests.
    """

    runner: Runner
    backend: str
    options: AnswerOptions
    wanted: tuple[str, ...]
    is_causal: bool
    scale: float
    window: int | None = None
    projections: Projections | None = None
    statistics: Statistics | None = None
    plain: dict[int, Sorted] = field(default_factory=dict, init=False, repr=False)

    def plainly_sorted(self, length: int) -> Sorted:
        """How a sequence without a mask and a bias is sorted, which is remembered in `plain`."""
        if len(self.plain) >= MOST_LENGTHS:
            self.plain.clear()
        found = self.plain[length] = self.sorted(length, masked=False, biases=0)
        return found

    def sorted(self, length: int, *, masked: bool, biases: int) -> Sorted:
        """How a sequence is sorted.

        Args:
            length: tokens.
            masked: whether it has a mask.
            biases: heads that it has a bias for; 0 for none.
        """
        masked = masked or (self.window is not None and self.window < length)
        bucket = self.runner.bucket(length)
        kind = (id(self.runner), bucket, self.wanted, self.is_causal, masked, not biases)
        matrices = None if self.projections is None else id(self.projections)
        return Sorted(bucket, masked, kind, (*kind, biases, self.scale, matrices))


class Unit:
    """One sequence of one request: what is queued, batched and answered. It does not change.

    Attributes:
        job: what it shares with its request's other sequences.
        sequence: its tensors.
        pointer: where it stands in the request, for errors.
        length: tokens.
        bucket, masked, kind, key: see `Sorted`.
    """

    __slots__ = ("bucket", "job", "key", "kind", "length", "masked", "pointer", "sequence")

    def __init__(self, job: Job, sequence: SequenceInput, pointer: str) -> None:
        self.job, self.sequence, self.pointer = job, sequence, pointer
        self.length = length = len(sequence.inputs)
        mask, bias = sequence.attn_mask, sequence.attn_bias
        if mask is None and bias is None:
            found = job.plain.get(length) or job.plainly_sorted(length)
        else:
            biases = 0 if bias is None else len(_with_heads(bias))
            found = job.sorted(length, masked=mask is not None, biases=biases)
        self.bucket, self.masked, self.kind, self.key = found

    def visible(self) -> Bool | None:
        """Which columns a row sees, by the caller's mask and the model: (n, n), or None for all."""
        mask, job = self.sequence.attn_mask, self.job
        return visible(self.length, mask, is_causal=job.is_causal, window=job.window)


def batch_limit(unit: Unit, most_sequences: int) -> int:
    """How many units of this one's key may share a batch: as many as pay for the runner, at least one."""
    return max(1, min(most_sequences, unit.job.runner.batch_tokens // unit.bucket))


def batch_of(units: Sequence[Unit], spread: Spread = in_turn) -> Batch:
    """The batch of units of one key, with what is to compute the parts of a long one."""
    job = units[0].job
    masks: tuple[Bool, ...] | None = None
    if units[0].masked:
        masks = tuple(_keep(unit) for unit in units)
    biases: tuple[F32, ...] | None = None
    if units[0].sequence.attn_bias is not None:
        biases = tuple(_with_heads(unit.sequence.attn_bias) for unit in units)
    return Batch(
        inputs=tuple([unit.sequence.inputs for unit in units]),
        masks=masks,
        biases=biases,
        is_causal=job.is_causal and masks is None,
        scale=job.scale,
        wanted=job.wanted,
        projections=job.projections,
        spread=spread,
    )


def _keep(unit: Unit) -> Bool:
    keep = unit.visible()
    assert keep is not None, "a masked unit sees some columns only"
    return keep


def _with_heads(bias: F32 | None) -> F32:
    assert bias is not None, "units of one key all have a bias"
    return bias if bias.ndim == 3 else bias[None]


def answer(unit: Unit, tensors: Tensors) -> tuple[Answer, list[int]]:
    """What the caller gets for a unit: rows that see nothing made zero, heads averaged, weights made sparse.

    Args:
        unit: the unit.
        tensors: what the runner made of it; changed in place.

    Returns:
        The answer, and the rows that see nothing.

    Raises:
        NumericOverflow: if a tensor is not finite: the inputs were too large for float32.
    """
    masked = unit.sequence.attn_mask is not None
    keep = None
    if masked or "scores" in tensors:
        keep = unit.visible()
    dead = fully_masked_rows(keep) if masked else []
    if dead:
        _silence(tensors, dead)
    options = unit.job.options
    found: Answer = {}
    for name, tensor in tensors.items():
        # A masked score is -inf, and right.
        allowed = None if keep is None or name != "scores" else (tensor < 0) & ~keep
        if not (all_finite(tensor) if allowed is None else (np.isfinite(tensor) | allowed).all()):
            raise NumericOverflow.at(
                unit.pointer, f"the numbers are finite, but so large that {name} overflow float32; scale them down"
            )
        kind = name.rpartition(".")[2]  # an encoder's are called layers.5.weights
        if kind not in PER_HEAD:
            found[name] = tensor
            continue
        value = tensor
        if len(value) == 1:
            value = value[0]
        elif options.average_heads and kind in ("weights", "scores"):
            value = value.mean(axis=0)
        found[name] = top_k(value, options.top_k) if options.top_k and kind == "weights" else value
    return found, dead


def _silence(tensors: Tensors, rows: list[int]) -> None:
    """Zero weights and outputs of rows that see nothing, whatever a runtime made of them."""
    if (weights := tensors.get("weights")) is not None:
        weights[:, rows] = 0
    if (outputs := tensors.get("outputs")) is not None:
        outputs[rows] = 0
    if (scores := tensors.get("scores")) is not None:
        scores[:, rows] = -np.inf


def top_k(weights: F32, k: int) -> TopK:
    """The min(k, n) largest of each row of (..., n, n), largest first; equal ones in the order of their columns."""
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :k]
    return TopK(order.astype(np.int32), np.take_along_axis(weights, order, axis=-1))


FLOAT16_MAX = 65_504
"""The largest number of float16."""


def as_float16(found: Answer, pointer: str) -> Answer:
    """An answer rounded to float16, to the nearest and of two to the even one; indices stay what they are.

    Args:
        found: the answer in float32.
        pointer: where its sequence stands in the request, for errors.

    Raises:
        NumericOverflow: naming the tensor that has a number beyond float16.
    """
    return {
        name: TopK(value.indices, _float16(name, value.values, pointer))
        if isinstance(value, TopK)
        else _float16(name, value, pointer)
        for name, value in found.items()
    }


def _float16(name: str, tensor: Array, pointer: str) -> Array:
    with np.errstate(over="ignore"):
        rounded = tensor.astype(np.float16)
    beyond = np.isinf(rounded) & np.isfinite(tensor)  # a masked score was infinite before
    if beyond.any():
        raise NumericOverflow.at(
            pointer,
            f"{name} would hold {float(tensor[beyond][0]):g}, but float16 ends at {FLOAT16_MAX}; leave `dtype` out",
        )
    return rounded
