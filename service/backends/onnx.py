"""ONNX Runtime over graphs exported from the same module that `eager` runs."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

from models.encoder_spec import EncoderSpec, encoder_tensor_names, placed
from models.graphs import Variant, by_row, folded, narrow, projecting, specialise, with_kernel
from models.repository import EncoderEntry, ModelEntry
from models.spec import AttentionSpec
from models.store import ArtifactStore
from models.types import F32, Array, Bool
from service.backends.base import SCORED, BackendInfo, Batch, Tensors
from service.backends.tiles import Tiles, run_into
from service.devices import Device
from service.errors import ConfigurationError
from service.settings import Settings

CPU_BATCH_TOKENS = 256
"""So many tokens of small sequences share a run on a CPU; longer sequences are better spread over the slots."""

GPU_BATCH_TOKENS = 16_384

SESSIONS = 24
"""Specialised graphs kept open per layer."""

TILE_FROM = 512
"""Tokens from which a sequence is computed in tiles, which threads may share; twice as many where there is one narrow
head. They then cost one thread less than a tenth, but a third where 512 tokens have one head of 64."""

WIDE_HEAD = 256
"""Numbers of a query and of a key from which a head is wide."""

PROJECTED_ROWS = 256
"""Rows of a long sequence that are multiplied by a matrix of the layer's at a time."""

MIXED = frozenset({"outputs", "projected"})
"""Tensors in which values are mixed by weights."""

ATTENDED = MIXED | SCORED
"""Tensors that take more than the projections of queries, keys and values."""

UNFOLDED = frozenset({"query", "key", "scores"})
"""Tensors that a graph without keys does not have."""

Way = Literal["whole", "kernel", "causal", "rows", "folded rows", "projecting"]
"""How a graph is run: as exported; with one operator for attention, which may see to causality; or in parts, some rows
of one of its projections, or its last part."""

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
        self.tiles = Tiles(self.session)

    def layer(self, entry: ModelEntry) -> "OnnxRunner":
        """See `Backend.layer`."""
        graph = self.store.layer(entry.spec, entry.weights)
        return OnnxRunner(self, graph, _layer(entry.spec), stacked=self.stacked)

    def encoder(self, entry: EncoderEntry) -> "OnnxEncoder":
        """See `Backend.encoder`."""
        return OnnxEncoder(self, self.store.encoder(entry.spec, entry.weights), entry.spec)

    def projections(self) -> "OnnxRunner":
        """See `Backend.projections`. Matrices that are inputs are not packed: these sequences run one by one."""
        return OnnxRunner(self, self.store.projections(), Layer(1, 2 * TILE_FROM, {}), stacked=False)

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


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer whose scores are a product and what the caller adds.

    Attributes:
        heads: of queries.
        tiles_from: tokens from which it is computed in tiles.
        by_row: widths of those projections of which a row is the same whichever others are computed with it.
        folded: the width of its inputs, which stand for keys where none are asked for; 0 where they cannot.
    """

    heads: int
    tiles_from: int
    by_row: Mapping[str, int]
    folded: int = 0


def _layer(spec: AttentionSpec) -> Layer | None:
    """What tiles need to know of a layer, or None where its scores are more."""
    if not spec.plain_scores:
        return None
    by_row = {"value": spec.v_dim}
    # Rotations depend on the place of a row, and what is normalised is not as its product leaves it.
    if spec.position.scheme == "none" and spec.query_key_norm is None:
        by_row |= {"query": spec.head_dim, "key": spec.head_dim}
    narrow = spec.num_heads == 1 and spec.head_dim < WIDE_HEAD
    folds = spec.embed_dim if spec.foldable else 0
    return Layer(spec.num_heads, 2 * TILE_FROM if narrow else TILE_FROM, by_row, folds)


class OnnxRunner:
    """One exported layer, with a session for each set of tensors that has been asked for."""

    exact = True

    def __init__(self, backend: OnnxBackend, graph: ModelProto, layer: "Layer | None", *, stacked: bool) -> None:
        """Serve a graph.

        Args:
            backend: the runtime.
            graph: as exported.
            layer: what the kernel that fuses attention, and tiles, need to know of a layer that they can compute; else
                None.
            stacked: whether sequences may share a run.
        """
        self.backend, self.graph, self.stacked = backend, graph, stacked
        self.layer = layer if backend.device.kind == "cpu" else None
        self._folded = folded(graph) if self.layer is not None and self.layer.folded else None
        self.batch_tokens = backend.batch_tokens
        self._sessions = _Sessions[tuple[Variant, Way]](SESSIONS, self._open)

    def warm(self) -> None:
        """Open the sessions of ordinary requests: outputs and weights, of all columns, of earlier ones, by a mask."""
        for masked, is_causal in ((False, False), (False, True), (True, False)):
            self._sessions.get(self._cut(("outputs", "weights"), masked=masked, biased=False, is_causal=is_causal))

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return n

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return not self._tiles(n, wanted) or not SCORED.isdisjoint(wanted)

    def _tiles(self, n: int, wanted: Sequence[str]) -> bool:
        """Whether n tokens are computed in tiles for these tensors."""
        if self.layer is None or ATTENDED.isdisjoint(wanted):
            return False
        return n >= self.layer.tiles_from

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        count = len(batch.inputs)
        if self._tiles(batch.length, batch.wanted):
            return [self._tiled(batch, i) for i in range(count)]
        masked, biased = batch.masks is not None, batch.biases is not None
        key = self._cut(batch.wanted, masked=masked, biased=biased, is_causal=batch.is_causal)
        opened = self._sessions.get(key)
        if self.stacked:
            return self._stack(opened, batch, 0, count)
        return [self._stack(opened, batch, i, i + 1)[0] for i in range(count)]

    def _cut(self, wanted: tuple[str, ...], *, masked: bool, biased: bool, is_causal: bool) -> tuple[Variant, Way]:
        """Which graph computes these tensors.

        The operator for attention gives no scores, takes no bias, and leaves open what the outputs are of a row that a
        mask lets see nothing, though they may be projected.
        """
        fits = "scores" not in wanted and not biased and not (masked and "projected" in wanted)
        if self.layer is not None and fits and not MIXED.isdisjoint(wanted):
            return Variant(wanted, masked=masked), "causal" if is_causal else "kernel"
        return Variant(wanted, masked=masked or is_causal, biased=biased), "whole"

    def _tiled(self, batch: Batch, i: int) -> Tensors:
        """A long sequence: projections, tiles, and the output projection; each in parts that threads may share."""
        wanted = set(batch.wanted)
        made = tuple(name for name in ("scores", "weights", "outputs") if name in wanted)
        if "projected" in wanted and "outputs" not in wanted:
            made = (*made, "outputs")
        names = {"query", "key"} | ({"value"} if "outputs" in made else set()) | (wanted - ATTENDED)
        found = self._projections(batch, i, sorted(names), folds=self._folds(wanted))
        found |= self.backend.tiles.attend(found, batch, i, made)
        if "projected" in wanted:
            found["projected"] = self._projected(found["outputs"], batch)
        return {name: found[name] for name in batch.wanted}

    def _folds(self, wanted: Collection[str]) -> bool:
        """Whether these tensors take no keys."""
        return self._folded is not None and UNFOLDED.isdisjoint(wanted)

    def _projections(self, batch: Batch, i: int, names: Sequence[str], *, folds: bool) -> dict[str, F32]:
        """Those of queries, keys and values (h, n, ·) that are named, where possible some rows at a time."""
        assert self.layer is not None, "only layers with heads are computed in parts"
        heads, widths = self.layer.heads, self.layer.by_row
        inputs, n = batch.inputs[i], batch.length
        if folds:
            names, widths = [name for name in names if name != "key"], {**widths, "query": self.layer.folded}
        made = {name: np.empty((heads, n, widths[name]), np.float32) for name in names if name in widths}
        plain = replace(batch, masks=None, biases=None, is_causal=False)

        def project(name: str) -> None:
            opened = self._sessions.get((Variant((name,)), "whole"))
            made[name] = self._stack(opened, replace(plain, wanted=(name,)), i, i + 1)[0][name]

        def project_rows(name: str, start: int) -> None:
            rows = slice(start, start + PROJECTED_ROWS)
            way: Way = "whole" if heads > 1 else "folded rows" if folds and name == "query" else "rows"
            opened = self._sessions.get((Variant((name,)), way))
            place = made[name][0, rows] if heads == 1 else made[name][:, rows]
            run_into(opened.session, {"inputs": inputs[rows]}, {name: place})

        parts = [partial(project, name) for name in names if name not in widths]
        starts = range(0, n, PROJECTED_ROWS)
        parts += [partial(project_rows, name, start) for name in names if name in widths for start in starts]
        batch.spread(parts)
        if folds:
            made["key"] = inputs[None]
        return made

    def _projected(self, outputs: F32, batch: Batch) -> F32:
        """Outputs (n, h * value_dim) after the output projection, a few rows at a time."""
        session = self._sessions.get((Variant(("projected",)), "projecting")).session
        rows: dict[int, F32] = {}

        def project(start: int) -> None:
            (rows[start],) = session.run(None, {"outputs": outputs[None, start : start + PROJECTED_ROWS]})

        starts = range(0, len(outputs), PROJECTED_ROWS)
        batch.spread([partial(project, start) for start in starts])
        return np.concatenate([rows[start][0] for start in starts])

    def _stack(self, opened: "Opened", batch: Batch, start: int, stop: int) -> list[Tensors]:
        """The sequences from `start` to `stop` in one go."""
        feed = {"inputs": _stacked(batch.inputs[start:stop]), "scale": _scale(batch.scale)}
        if batch.masks is not None:
            feed["attn_mask"] = _stacked(batch.masks[start:stop])
        elif batch.is_causal and "attn_mask" in opened.takes:
            feed["attn_mask"] = _stacked((_causal(batch.length),) * (stop - start))
        if batch.biases is not None:
            feed["attn_bias"] = _stacked(batch.biases[start:stop])
        if batch.projections is not None:
            feed["query_projection"] = batch.projections.query
            feed["key_projection"] = batch.projections.key
            feed["value_projection"] = batch.projections.value
        # A graph of projections alone takes no scale, and one that sees to causality no mask.
        fed = {name: array for name, array in feed.items() if name in opened.takes}
        arrays = opened.session.run(list(batch.wanted), fed)
        return [{name: a[i] for name, a in zip(batch.wanted, arrays, strict=True)} for i in range(stop - start)]

    def _open(self, key: tuple[Variant, Way]) -> "Opened":
        variant, way = key
        source = self._folded if self._folded is not None and self._folds(variant.wanted) else self.graph
        if way == "whole":
            graph = specialise(source, variant)
        elif way == "rows":
            graph = by_row(self.graph, *variant.wanted)
        elif way == "folded rows":
            assert self._folded is not None, "only what folds is computed so"
            graph = by_row(self._folded, *variant.wanted)
        elif way == "projecting":
            graph = projecting(self.graph)
        else:
            assert self.layer is not None, "the operator computes layers that have heads for it"
            graph = with_kernel(
                source, self.layer.heads, variant.wanted, masked=variant.masked, is_causal=way == "causal"
            )
        return _opened(self.backend, graph)


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
        session = self._sessions.get(max(placed(name)[0] for name in batch.wanted)).session
        if self.stacked:
            return self._stack(session, batch.inputs, batch.wanted)
        return [self._stack(session, (ids,), batch.wanted)[0] for ids in batch.inputs]

    def _stack(
        self, session: ort.InferenceSession, sequences: tuple[Array, ...], wanted: tuple[str, ...]
    ) -> list[Tensors]:
        arrays = session.run(list(wanted), {"ids": _stacked(sequences)})
        return [{name: a[i] for name, a in zip(wanted, arrays, strict=True)} for i in range(len(sequences))]

    def _open(self, last: int) -> "Opened":
        if last == self.spec.num_layers - 1:
            return _opened(self.backend, self.graph)
        names = [name for name in encoder_tensor_names(self.spec) if placed(name)[0] <= last]
        return _opened(self.backend, narrow(self.graph, names))


@dataclass(frozen=True, slots=True)
class Opened:
    """A session and the names of its inputs, which it takes long to tell."""

    session: ort.InferenceSession
    takes: frozenset[str]


def _opened(backend: OnnxBackend, graph: ModelProto) -> Opened:
    session = backend.session(graph)
    return Opened(session, frozenset(value.name for value in session.get_inputs()))


Key = TypeVar("Key")


class _Sessions(Generic[Key]):
    """Sessions by key, opened when they are first asked for; the least recently used one is closed first."""

    def __init__(self, most: int, opened: Callable[[Key], Opened]) -> None:
        self._most, self._opened = most, opened
        self._sessions: OrderedDict[Key, Opened] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Opened:
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


@lru_cache(maxsize=64)
def _scale(scale: float) -> F32:
    """The factor of the scores, 0-d; one that overflows float32 gives what is not finite, and is refused for that."""
    with np.errstate(over="ignore"):
        return np.array(scale, np.float32)


def _stacked(arrays: tuple[Array, ...]) -> Array:
    """One array with a leading axis, of arrays of one shape; a single one is not copied.

    NumPy's own `stack` looks at each array in Python first, which takes longer than to copy a short one.
    """
    if len(arrays) == 1:
        return arrays[0][None]
    return np.concatenate(arrays).reshape(len(arrays), *arrays[0].shape)


@lru_cache(maxsize=64)
def _causal(n: int) -> Bool:
    keep: Bool = np.tri(n, dtype=np.bool_)
    return keep
