"""Layers that every backend must compute alike, and the way from a sequence to its answer that the service takes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from models.reference import self_attention
from models.repository import ModelEntry
from models.spec import AttentionSpec
from models.types import PER_HEAD, TENSOR_NAMES, Projections, SequenceInput, TensorName
from models.weights import seeded, shapes
from service.backends import BACKENDS, open_backend
from service.backends.base import Backend, Runner
from service.devices import Device
from service.messages import Options
from service.packing import Job, Unit, answer, batch_of
from service.settings import Settings
from tests import exports

DEVICE = Device(os.environ.get("TEST_DEVICE", "cpu"))
DETERMINISTIC = bool(os.environ.get("TEST_DETERMINISTIC"))
"""Where the laws are tried: `TEST_DEVICE=cuda pytest tests/contract`, and once more with `TEST_DETERMINISTIC=1`."""


def make_layer(
    name: str, *, with_biases: bool = False, with_output: bool = False, seed: int = 0, **sizes
) -> ModelEntry:
    """A layer with seeded weights, and seeded biases and a seeded output projection where asked for."""
    spec = AttentionSpec(name=name, **sizes)
    weights = seeded(spec, seed)
    if with_biases:
        random, want = np.random.default_rng(seed), shapes(spec)
        biases = {f"{n}_bias": random.standard_normal(want[f"{n}_bias"], np.float32) for n in ("query", "key", "value")}
        weights = replace(weights, **biases)
    if with_output:
        random, want = np.random.default_rng(seed), shapes(spec)
        output = {n: random.standard_normal(want[n], np.float32) for n in ("output", "output_bias")}
        weights = replace(weights, **output)
    return ModelEntry(spec, weights, "test")


_ALL = (
    make_layer("one-wide", embed_dim=1, head_dim=1),
    make_layer("odd", embed_dim=7, head_dim=5, value_dim=3),
    make_layer("heads", embed_dim=12, num_heads=3, head_dim=4, with_biases=True),
    make_layer("grouped", embed_dim=9, num_heads=4, num_kv_heads=2, head_dim=5, value_dim=3, with_biases=True),
    make_layer("multi-query", embed_dim=10, num_heads=3, num_kv_heads=1, head_dim=4),
    make_layer("projecting", embed_dim=9, num_heads=2, head_dim=4, value_dim=3, with_output=True),
)
ORDERLESS: dict[str, ModelEntry] = {entry.spec.name: entry for entry in _ALL}
"""Small ones, for laws: one head, several, grouped; values as wide as queries and narrower; with and without biases."""

_LLAMA3 = {"type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_positions": 16}
_YARN = {"type": "yarn", "factor": 4, "original_max_positions": 16, "beta_fast": 2, "truncate": False}
_DYNAMIC = {"type": "dynamic", "factor": 3, "original_max_positions": 7}
_LONGROPE = {
    "type": "longrope",
    "short_factor": (1, 1.5, 2),
    "long_factor": (1, 3, 9),
    "original_max_positions": 7,
    "attention_factor": 1.2,
}
_SCHEMES = (
    *(
        make_layer(
            scaling["type"],
            embed_dim=8,
            num_heads=2,
            head_dim=6,
            position={"scheme": "rope", "base": 100, "scaling": scaling},
        )
        for scaling in ({"type": "linear", "factor": 4}, _YARN, _DYNAMIC, _LONGROPE)
    ),
    make_layer(
        "rotary",
        embed_dim=10,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        position={"scheme": "rope", "base": 500, "scaling": _LLAMA3},
        with_biases=True,
    ),
    make_layer(
        "interleaved",
        embed_dim=9,
        num_heads=2,
        head_dim=6,
        position={"scheme": "rope", "pairing": "interleaved", "rotary_dim": 4},
        query_key_norm={"scope": "all"},
    ),
    make_layer("alibi", embed_dim=8, num_heads=3, head_dim=4, position={"scheme": "alibi"}),
    make_layer(
        "relative",
        embed_dim=8,
        num_heads=2,
        head_dim=4,
        scale=1.0,
        position={"scheme": "relative", "num_buckets": 8, "max_distance": 9},
    ),
    make_layer(
        "capped",
        embed_dim=8,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        window=3,
        logit_softcap=2.0,
        query_key_norm={},
        position={"scheme": "rope"},
    ),
)
LAYERS: dict[str, ModelEntry] = ORDERLESS | {entry.spec.name: entry for entry in _SCHEMES}
"""Those, and one or more of each position scheme, of windows, soft caps and normalisations."""


STEADY = [name for name in LAYERS if name not in ("dynamic", "longrope")]
"""All but those whose pairs turn at a speed that depends on the sequence's length."""


def seeing_all(entry: ModelEntry) -> ModelEntry:
    """The layer without its window: what a row sees is not a module's or a graph's to say, it is told by a mask."""
    return replace(entry, spec=entry.spec.model_copy(update={"window": None}))


WIDE: dict[str, ModelEntry] = {
    entry.spec.name: entry
    for entry in (
        make_layer("wide", embed_dim=64, head_dim=64, with_biases=True),
        make_layer("wide-odd", embed_dim=33, head_dim=17, value_dim=31, with_biases=True),
        make_layer("wide-heads", embed_dim=48, num_heads=6, num_kv_heads=3, head_dim=16, with_biases=True),
    )
}
"""Ones that fill vector registers, and ones that leave a remainder: kernels choose other paths for them."""


@lru_cache
def backend(name: str, artifacts: Path) -> Backend:
    """The backend of that name on `DEVICE`."""
    assert name in BACKENDS
    return open_backend(name, DEVICE, Settings(artifacts=artifacts, deterministic=DETERMINISTIC))


def served(name: str, entry: ModelEntry, artifacts: Path) -> Runner:
    """A layer on a backend, loaded now."""
    if name == "onnx":
        exports.graph(entry)  # or other processes might do so at the same time
    return backend(name, artifacts).layer(entry)


@lru_cache
def layer_runner(name: str, layer: str, artifacts: Path) -> Runner:
    """A layer of this module on a backend, loaded once."""
    return served(name, (LAYERS | WIDE)[layer], artifacts)


@lru_cache
def projections_runner(name: str, artifacts: Path) -> Runner:
    """The runner of a caller's own matrices on a backend, loaded once."""
    return backend(name, artifacts).projections()


def skip_unless_exact(runner: Runner) -> None:
    """On a GPU, who does not ask for determinism is promised equality within rounding only."""
    if not runner.exact:
        pytest.skip("not promised here without TEST_DETERMINISTIC=1")


@dataclass(frozen=True)
class Found:
    """An answer with its axis of heads restored, so that laws need no cases: weights are always (h, n, n).

    Attributes:
        tensors: by name.
        dead: the rows that see nothing.
    """

    tensors: dict[str, np.ndarray]
    dead: list[int]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.tensors[name]


def attend(
    runner: Runner,
    sequences: Sequence[SequenceInput],
    *,
    scale: float,
    wanted: Sequence[TensorName] = TENSOR_NAMES,
    is_causal: bool = False,
    window: int | None = None,
    projections: Projections | None = None,
) -> list[Found]:
    """Answer sequences of one length in one batch, as the service does."""
    options = Options.model_validate({"return": wanted})
    job = Job(runner, "test", options, options.wanted, is_causal, scale, window, projections)
    units = [Unit(job, sequence, f"/inputs/{i}") for i, sequence in enumerate(sequences)]
    found = []
    for unit, tensors in zip(units, runner.run(batch_of(units)), strict=True):
        assert tuple(tensors) == options.wanted
        result, dead = answer(unit, tensors)
        found.append(Found({k: t if k not in PER_HEAD or t.ndim == 3 else t[None] for k, t in result.items()}, dead))
    return found


def by_reference(entry: ModelEntry, sequence: SequenceInput, *, scale: float, is_causal: bool = False) -> Found:
    """The float64 answer of `models.reference`."""
    trace = self_attention(
        sequence.inputs,
        entry.weights,
        entry.spec,
        attn_mask=sequence.attn_mask,
        attn_bias=sequence.attn_bias,
        is_causal=is_causal,
        scale=scale,
    )
    return Found({name: trace.tensor(name) for name in entry.weights.tensor_names}, [])


def draw_sequence(entry: ModelEntry, n: int, seed: int, *, masked: bool = False, biased: bool = False) -> SequenceInput:
    """A seeded sequence; about a third of a mask is False, and sometimes a whole row."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((n, entry.spec.embed_dim), np.float32)
    mask = bias = None
    if masked:
        mask = random.random((n, n)) < 0.65
        mask[random.random(n) < 0.2] = False
    if biased:
        heads = (entry.spec.num_heads,) if random.random() < 0.5 else ()
        bias = random.standard_normal((*heads, n, n), np.float32)
    return SequenceInput(inputs, mask, bias)


def assert_close(got: np.ndarray, want: np.ndarray, tolerance: float, label: str = "") -> None:
    """Equal within `tolerance` of the largest value, or of 1: infinities must stand in the same places.

    Everything in these layers is about 1. A single score that cancels to 0.01 has an error all the same.
    """
    assert got.shape == want.shape, label
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=label)
    largest = np.abs(want[finite]).max(initial=0.0)
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=tolerance * max(largest, 1.0), err_msg=label)
