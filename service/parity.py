"""Do all backends say the same? Checked when a layer is loaded, on lengths and masks that have tripped others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.encoder_spec import EncoderSpec, encoder_tensor_names
from models.types import TENSOR_NAMES, Projections, TensorName
from service.backends.base import Batch, Runner, Tensors
from service.errors import ParityError

LENGTHS = (33, 7, 2, 1)
"""The longest first: differences are measured against the largest value so far, and a single score may cancel to 0."""

LONG = 512
"""Tokens from which every backend that computes long sequences in another way does so."""

BETWEEN_BACKENDS = 1e-5
"""Largest difference allowed between two backends, relative to the largest value of the tensor, float32, where scores
are not in the hundreds (see `allowed`)."""

TO_REFERENCE = 1e-4
"""Largest difference allowed to the float64 reference: float32 itself is this coarse where scores are large."""

COARSE = {"tf32": 2**-11, "float16": 2**-11, "bfloat16": 2**-8}
"""Half of the last place of what products are rounded to, where that is not float32; by `BackendInfo.dtype`."""

COARSE_STEPS = 32
"""Largest difference allowed to a backend that computes so, in such halves, where scores are small."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What a check needs to know of a layer."""

    embed_dim: int
    num_heads: int
    scale: float
    tensor_names: tuple[TensorName, ...] = TENSOR_NAMES
    projections: Projections | None = None

    def cases(self) -> Iterator[tuple[str, Batch]]:
        """Two seeded sequences of each length: plain, causal, masked with a row that sees nothing, biased."""
        random = np.random.default_rng(0)
        for n in LENGTHS:
            inputs = tuple(random.standard_normal((n, self.embed_dim)).astype(np.float32) for _ in range(2))
            masks = tuple(random.random((n, n)) < 0.6 for _ in range(2))
            masks[0][0] = False
            heads = (self.num_heads, n, n)
            biases = tuple(random.standard_normal(heads).astype(np.float32) for _ in range(2))
            plain = Batch(inputs, None, None, False, self.scale, ("outputs", "weights"), self.projections)
            everything = replace(plain, wanted=self.tensor_names)
            yield f"n={n}", plain
            yield f"n={n}, outputs alone, causal", replace(plain, wanted=("outputs",), is_causal=True)
            yield f"n={n}, every tensor, masked", replace(everything, masks=masks)
            yield f"n={n}, every tensor, causal, biased", replace(everything, is_causal=True, biases=biases)
        inputs = tuple(random.standard_normal((LONG, self.embed_dim)).astype(np.float32) for _ in range(2))
        outputs = Batch(inputs, None, None, False, self.scale, ("outputs",), self.projections)
        yield f"n={LONG}, outputs alone", outputs

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores."""
        return ("scores",)


@dataclass(frozen=True, slots=True)
class Stack:
    """What a check needs to know of an encoder."""

    spec: EncoderSpec

    def cases(self) -> Iterator[tuple[str, Batch]]:
        """Two seeded sequences of token ids of each length that fits, every tensor of every layer."""
        random = np.random.default_rng(0)
        for n in LENGTHS:
            if n <= self.spec.max_positions:
                ids = tuple(random.integers(self.spec.vocab_size, size=n) for _ in range(2))
                yield f"n={n}", Batch(ids, None, None, False, 1.0, tuple(encoder_tensor_names(self.spec)))

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores."""
        return tuple(name for name in encoder_tensor_names(self.spec) if name.endswith(".scores"))


def check(
    target: Layer | Stack, runners: Mapping[str, Runner], dtypes: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Compare every pair of backends, and each with itself in company.

    Args:
        target: the layer or encoder.
        runners: by backend name; one of them is `reference`.
        dtypes: `BackendInfo.dtype` by backend name; float32 where it says nothing.

    Returns:
        For each pair `a-b`, the largest difference relative to the largest value of the same tensor, so far.

    Raises:
        ParityError: if a difference is too large, or an answer depends on its batch that must not.
    """
    worst: dict[str, float] = {}
    largest: dict[str, float] = {}
    steepest = steepest_score(target, runners["reference"]) if "reference" in runners else 0.0
    for label, batch in target.cases():
        together = {name: runner.run(batch) for name, runner in runners.items()}
        found = {name: [_living(batch, i, t) for i, t in enumerate(answer)] for name, answer in together.items()}
        names = sorted(found)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                difference = max(relative_difference(x, y, largest) for x, y in zip(found[a], found[b], strict=True))
                pair = f"{a}-{b}"
                worst[pair] = max(worst.get(pair, 0.0), difference)
                bound = allowed(a, b, steepest, dtypes or {})
                if not worst[pair] <= bound:
                    raise ParityError(f"{pair} differ by {difference:.1e} relative, allowed {bound:.0e}: {label}")
        for name in names:
            if runners[name].exact and name != "reference":  # which takes one sequence at a time in any company
                _check_company(name, runners[name], batch, together[name], label)
    return worst


def allowed(a: str, b: str, steepest: float, dtypes: Mapping[str, str]) -> float:
    """The largest difference allowed between two backends for a layer or encoder whose largest score is `steepest`.

    A score is rounded by up to 2^-24 of its size in each backend, and the softmax makes a relative difference of the
    weights of that. The tokens of a check are louder than those that a trained layer gets, so its scores may be in the
    hundreds; a few roundings of the largest are then allowed, though never more than to the reference.
    """
    if coarse := max(COARSE.get(dtypes.get(name, ""), 0.0) for name in (a, b)):
        return coarse * max(COARSE_STEPS, 4 * steepest)
    if "reference" in (a, b):
        return TO_REFERENCE
    return min(max(BETWEEN_BACKENDS, 4 * 2**-24 * steepest), TO_REFERENCE)


def steepest_score(target: Layer | Stack, reference: Runner) -> float:
    """The largest score of the first case."""
    _, plain = next(target.cases())
    found = reference.run(replace(plain, wanted=target.scores))
    return max(
        float(np.abs(scores).max(initial=0.0, where=np.isfinite(scores))) for t in found for scores in t.values()
    )


def _living(batch: Batch, i: int, tensors: Tensors) -> Tensors:
    """The tensors without the rows that see nothing: what a runtime makes of those is unspecified."""
    if batch.masks is None:
        return tensors
    rows = batch.masks[i].any(axis=-1)
    return {
        name: t[rows] if name == "outputs" else t[:, rows] if name in ("weights", "scores") else t
        for name, t in tensors.items()
    }


def relative_difference(a: Tensors, b: Tensors, largest: dict[str, float]) -> float:
    """Largest difference of two that should be equal, relative to the largest finite value of the tensor.

    Args:
        a: tensors of one sequence.
        b: the same of another backend.
        largest: of each tensor so far; brought up to date from `b`.

    Returns:
        The largest of all tensors; infinite where what is not finite differs.
    """
    worst = 0.0
    for name, x in a.items():
        y = b[name]
        finite = np.isfinite(y)
        if not np.array_equal(x[~finite], y[~finite]) or not np.isfinite(x[finite]).all():  # NaN equals nothing
            return float("inf")
        size = largest[name] = max(largest.get(name, 0.0), float(np.abs(y[finite]).max(initial=0.0)))
        gap = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
        worst = max(worst, gap / size if size else gap)
    return worst


def _check_company(name: str, runner: Runner, batch: Batch, together: Sequence[Tensors], label: str) -> None:
    """Bitwise equality of each sequence alone and in the batch."""
    for i, tensors in enumerate(together):
        (alone,) = runner.run(batch.alone(i))
        for tensor in tensors:
            if not np.array_equal(alone[tensor], tensors[tensor], equal_nan=True):
                raise ParityError(f"{name} computes other {tensor} alone than in a batch: {label}")
