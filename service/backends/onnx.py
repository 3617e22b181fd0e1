"""ONNX Runtime over graphs exported from the same module that `eager` runs."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

from models.encoder_spec import EncoderSpec, encoder_tensor_names, placed
from models.export import Variant, narrow, specialise
from models.repository import EncoderEntry, ModelEntry
from models.store import ArtifactStore
from models.types import Array, Bool
from service.backends.base import BackendInfo, Batch, Tensors
from service.devices import Device
from service.errors import ConfigurationError
from service.settings import Settings

CPU_BATCH_TOKENS = 256
"""So many tokens of small sequences share a run on a CPU; longer sequences are better spread over the slots."""

GPU_BATCH_TOKENS = 16_384

SESSIONS = 24
"""Specialised graphs kept open per layer."""

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
        return OnnxRunner(self, self.store.layer(entry.spec, entry.weights), stacked=self.stacked)

    def encoder(self, entry: EncoderEntry) -> "OnnxEncoder":
        """See `Backend.encoder`."""
        return OnnxEncoder(self, self.store.encoder(entry.spec, entry.weights), entry.spec)

    def projections(self) -> "OnnxRunner":
        """See `Backend.projections`. Matrices that are inputs are not packed: these sequences run one by one."""
        return OnnxRunner(self, self.store.projections(), stacked=False)

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

    def __init__(self, backend: OnnxBackend, graph: ModelProto, *, stacked: bool) -> None:
        """Serve `graph`; `stacked` says whether sequences may share a run."""
        self.backend, self.graph, self.stacked = backend, graph, stacked
        self.batch_tokens = backend.batch_tokens
        self._sessions = _Sessions[Variant](SESSIONS, self._open)

    def warm(self) -> None:
        """Open the sessions of ordinary requests: outputs and weights, with and without a mask."""
        for masked in (False, True):
            self._sessions.get(Variant(("outputs", "weights"), masked=masked))

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        masked = batch.masks is not None or batch.is_causal
        session = self._sessions.get(Variant(batch.wanted, masked=masked, biased=batch.biases is not None))
        if self.stacked:
            return self._stack(session, batch, 0, len(batch.inputs))
        return [self._stack(session, batch, i, i + 1)[0] for i in range(len(batch.inputs))]

    def _stack(self, session: ort.InferenceSession, batch: Batch, start: int, stop: int) -> list[Tensors]:
        """The sequences from `start` to `stop` in one go."""
        with np.errstate(over="ignore"):  # a scale that overflows float32 gives what is not finite, and is refused
            scale = np.array(batch.scale, np.float32)
        feed = {"inputs": _stacked(batch.inputs[start:stop]), "scale": scale}
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

    def _open(self, variant: Variant) -> ort.InferenceSession:
        return self.backend.session(specialise(self.graph, variant))


class OnnxEncoder:
    """One exported encoder, with a session for each layer that was the last one asked for: none is computed beyond."""

    def __init__(self, backend: OnnxBackend, graph: ModelProto, spec: EncoderSpec) -> None:
        """Serve `graph`."""
        self.backend, self.graph, self.spec = backend, graph, spec
        self.stacked, self.batch_tokens = backend.stacked, backend.batch_tokens
        self._sessions = _Sessions[int](ENCODER_SESSIONS, self._open)

    def warm(self) -> None:
        """Open the sessions of the first layer alone and of all layers."""
        for layer in (0, self.spec.num_layers - 1):
            self._sessions.get(layer)

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


def _stacked(arrays: tuple[Array, ...]) -> Array:
    """One array with a leading axis; a single array is not copied."""
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


@lru_cache(maxsize=64)
def _causal(n: int) -> Bool:
    keep: Bool = np.tri(n, dtype=np.bool_)
    return keep
