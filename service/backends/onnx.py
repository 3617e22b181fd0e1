"""ONNX Runtime over graphs exported from the same module that `eager` runs."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

from models.encoder_spec import EncoderSpec, encoder_tensor_names, placed
from models.graphs import Variant, attending, fused, narrow, specialise
from models.repository import EncoderEntry, ModelEntry
from models.store import ArtifactStore
from models.types import F32, Array, Bool
from service.backends.base import SCORED, BackendInfo, Batch, Tensors
from service.devices import Device
from service.errors import ConfigurationError
from service.settings import Settings

CPU_BATCH_TOKENS = 256
"""So many tokens of small sequences share a run on a CPU; longer sequences are better spread over the slots."""

GPU_BATCH_TOKENS = 16_384

SESSIONS = 24
"""Specialised graphs kept open per layer."""

FUSE_FROM, TILE_FROM = 512, 1_024
"""Tokens from which outputs alone are computed by a kernel that fuses attention; and, where there is a mask or a bias,
which no kernel takes, a few rows at a time. Below, either costs more than it saves."""

TILE_BYTES = 32 << 20
LEAST_ROWS = 16
"""Scores held at a time, and rows computed at a time at the least."""

MIXED = frozenset({"outputs", "projected"})
"""Tensors in which values are mixed by weights."""

Way = Literal["whole", "fused", "attending"]
"""How a graph is run: as exported, with one kernel for attention, or only what comes after the projections."""

ENCODER_SESSIONS = 3
"""Graphs kept open per encoder: each holds the numbers it needs, most of which are the embeddings of words."""


class OnnxBackend:
    """ONNX Runtime on a CPU or a CUDA device.

    On a CPU, sequences of one length are stacked and each session runs on the calling thread: the matrices are packed
    once when a session opens, so the products of a row never depend on how many rows there are.
    """

    def __init__(self, device: Device, settings: Settings) -> None:
        """Open the runtime on `device`; graphs are kept in `settings.artifacts`."""
        self.device, self.store = device, ArtifactStore(settings.artifacts)
        on_gpu = device.kind == "cuda"
        self.stacked = not (on_gpu and settings.deterministic)
        self.batch_tokens = settings.max_batch_tokens or (GPU_BATCH_TOKENS if on_gpu else CPU_BATCH_TOKENS)
        self.provider, self.options = "CPUExecutionProvider", dict[str, Any]()
        if on_gpu:
            ort.preload_dlls(directory="")  # finds the CUDA libraries of the nvidia-* packages
            self.provider = "CUDAExecutionProvider"
            self.options = {
                "device_id": device.index,
                "use_tf32": int(settings.allow_tf32),
                "arena_extend_strategy": "kSameAsRequested",
            }
            if settings.gpu_mem_limit_mib:
                self.options["gpu_mem_limit"] = settings.gpu_mem_limit_mib << 20
        self.info = BackendInfo("onnx", str(device), self.provider, "float32")

    def layer(self, entry: ModelEntry) -> "OnnxRunner":
        """See `Backend.layer`."""
        heads = entry.spec.num_heads if entry.spec.plain_scores else None
        return OnnxRunner(self, self.store.layer(entry.spec, entry.weights), heads, stacked=self.stacked)

    def encoder(self, entry: EncoderEntry) -> "OnnxEncoder":
        """See `Backend.encoder`."""
        return OnnxEncoder(self, self.store.encoder(entry.spec, entry.weights), entry.spec)

    def projections(self) -> "OnnxRunner":
        """See `Backend.projections`. Matrices that are inputs are not packed: these sequences run one by one."""
        return OnnxRunner(self, self.store.projections(), 1, stacked=False)

    def session(self, graph: ModelProto) -> ort.InferenceSession:
        """Open a graph.

        Raises:
            ConfigurationError: if the runtime would compute it elsewhere than asked.
        """
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if self.device.kind == "cuda":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        session = ort.InferenceSession(graph.SerializeToString(), options, providers=[(self.provider, self.options)])
        if (got := session.get_providers()[0]) != self.provider:
            raise ConfigurationError(f"asked ONNX Runtime for {self.provider}, got {got}")
        return session


class OnnxRunner:
    """One exported layer, with a session for each set of tensors that has been asked for."""

    exact = True

    def __init__(self, backend: OnnxBackend, graph: ModelProto, heads: int | None, *, stacked: bool) -> None:
        """Serve a graph.

        Args:
            backend: the runtime.
            graph: as exported.
            heads: query heads, where the kernel that fuses attention can compute the layer; else None.
            stacked: whether sequences may share a run.
        """
        self.backend, self.graph, self.stacked = backend, graph, stacked
        self.heads = heads if backend.device.kind == "cpu" else None
        self.batch_tokens = backend.batch_tokens
        self._sessions = _Sessions[tuple[Variant, Way]](SESSIONS, self._open)

    def warm(self) -> None:
        """Open the sessions of ordinary requests: outputs and weights, with and without a mask."""
        for masked in (False, True):
            self._sessions.get((Variant(("outputs", "weights"), masked=masked), "whole"))

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return n

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return n < TILE_FROM or not self._apart(wanted)

    def _apart(self, wanted: Sequence[str]) -> bool:
        """Whether these tensors can be had without all scores at a time."""
        return self.heads is not None and SCORED.isdisjoint(wanted) and not MIXED.isdisjoint(wanted)

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        masked, biased = batch.masks is not None or batch.is_causal, batch.biases is not None
        variant = Variant(batch.wanted, masked=masked, biased=biased)
        way: Way = "whole"
        if self._apart(batch.wanted):
            if (masked or biased) and batch.length >= TILE_FROM:
                return [self._tiled(batch, i, variant) for i in range(len(batch.inputs))]
            if not masked and not biased and batch.length >= FUSE_FROM:
                way = "fused"
        session = self._sessions.get((variant, way))
        if self.stacked:
            return self._stack(session, batch, 0, len(batch.inputs))
        return [self._stack(session, batch, i, i + 1)[0] for i in range(len(batch.inputs))]

    def _tiled(self, batch: Batch, i: int, variant: Variant) -> Tensors:
        """A long sequence with few rows of its scores at a time: no kernel fuses masks or biases."""
        projected = replace(batch, wanted=("query", "key", "value"), masks=None, biases=None, is_causal=False)
        found = dict(self._stack(self._sessions.get((Variant(projected.wanted), "whole")), projected, i, i + 1)[0])
        n, made = batch.length, tuple(name for name in batch.wanted if name in MIXED)
        session = self._sessions.get((replace(variant, wanted=made), "attending"))
        rows = max(LEAST_ROWS, TILE_BYTES // (4 * len(found["query"]) * n))
        tiles = []
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            seen = stop if batch.is_causal else n  # what comes later is not even looked at
            feed: dict[str, Array] = {
                "query": found["query"][None, :, start:stop],
                "key": found["key"][None, :, :seen],
                "value": found["value"][None, :, :seen],
                "scale": _scale(batch),
            }
            if batch.masks is not None:
                feed["attn_mask"] = batch.masks[i][None, start:stop]
            elif batch.is_causal:
                feed["attn_mask"] = np.tri(stop - start, seen, start, dtype=np.bool_)[None]
            if batch.biases is not None:
                feed["attn_bias"] = batch.biases[i][None, :, start:stop, :seen]
            tiles.append(session.run(None, {name: np.ascontiguousarray(array) for name, array in feed.items()}))
        for at, name in enumerate(made):
            found[name] = np.concatenate([tile[at][0] for tile in tiles])
        return {name: found[name] for name in batch.wanted}

    def _stack(self, session: ort.InferenceSession, batch: Batch, start: int, stop: int) -> list[Tensors]:
        """The sequences from `start` to `stop` in one go."""
        feed = {"inputs": _stacked(batch.inputs[start:stop]), "scale": _scale(batch)}
        if batch.masks is not None:
            feed["attn_mask"] = _stacked(batch.masks[start:stop])
        elif batch.is_causal:
            feed["attn_mask"] = _stacked((_causal(batch.length),) * (stop - start))
        if batch.biases is not None:
            feed["attn_bias"] = _stacked(batch.biases[start:stop])
        if batch.projections is not None:
            feed["query_projection"] = batch.projections.query
            feed["key_projection"] = batch.projections.key
            feed["value_projection"] = batch.projections.value
        taken = {i.name for i in session.get_inputs()}  # a graph of projections alone takes no scale
        arrays = session.run(None, {name: array for name, array in feed.items() if name in taken})
        return [{name: a[i] for name, a in zip(batch.wanted, arrays, strict=True)} for i in range(stop - start)]

    def _open(self, key: tuple[Variant, Way]) -> ort.InferenceSession:
        variant, way = key
        graph = specialise(self.graph, variant)
        if way == "fused":
            graph = fused(graph, self.heads or 1)
        elif way == "attending":
            graph = attending(graph)
        return self.backend.session(graph)


class OnnxEncoder:
    """One exported encoder, with a session for each layer that was the last one asked for: none is computed beyond."""

    exact = True

    def __init__(self, backend: OnnxBackend, graph: ModelProto, spec: EncoderSpec) -> None:
        """Serve `graph`."""
        self.backend, self.graph, self.spec = backend, graph, spec
        self.stacked, self.batch_tokens = backend.stacked, backend.batch_tokens
        self._sessions = _Sessions[int](ENCODER_SESSIONS, self._open)

    def warm(self) -> None:
        """Open the sessions of the first layer alone and of all layers."""
        for layer in (0, self.spec.num_layers - 1):
            self._sessions.get(layer)

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return n

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return True

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        session = self._sessions.get(max(placed(name)[0] for name in batch.wanted))
        if self.stacked:
            return self._stack(session, batch.inputs, batch.wanted)
        return [self._stack(session, (ids,), batch.wanted)[0] for ids in batch.inputs]

    def _stack(
        self, session: ort.InferenceSession, sequences: tuple[Array, ...], wanted: tuple[str, ...]
    ) -> list[Tensors]:
        arrays = session.run(list(wanted), {"ids": _stacked(sequences)})
        return [{name: a[i] for name, a in zip(wanted, arrays, strict=True)} for i in range(len(sequences))]

    def _open(self, last: int) -> ort.InferenceSession:
        if last == self.spec.num_layers - 1:
            return self.backend.session(self.graph)
        names = [name for name in encoder_tensor_names(self.spec) if placed(name)[0] <= last]
        return self.backend.session(narrow(self.graph, names))


Key = TypeVar("Key")


class _Sessions(Generic[Key]):
    """Sessions by key, opened when they are first asked for; the least recently used one is closed first."""

    def __init__(self, most: int, opened: Callable[[Key], ort.InferenceSession]) -> None:
        self._most, self._opened = most, opened
        self._sessions: OrderedDict[Key, ort.InferenceSession] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> ort.InferenceSession:
        """The session for a key."""
        with self._lock:
            if (session := self._sessions.get(key)) is not None:
                self._sessions.move_to_end(key)
                return session
        session = self._opened(key)
        with self._lock:
            self._sessions[key] = session
            while len(self._sessions) > self._most:
                self._sessions.popitem(last=False)
        return session


def _scale(batch: Batch) -> F32:
    """The factor of the scores, 0-d; one that overflows float32 gives what is not finite, and is refused for that."""
    with np.errstate(over="ignore"):
        return np.array(batch.scale, np.float32)


def _stacked(arrays: tuple[Array, ...]) -> Array:
    """One array with a leading axis; a single array is not copied."""
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


@lru_cache(maxsize=64)
def _causal(n: int) -> Bool:
    keep: Bool = np.tri(n, dtype=np.bool_)
    return keep
