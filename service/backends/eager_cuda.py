"""PyTorch on a GPU: stacked batches, a stream per batch under way, and launches recorded once for small work."""

import logging
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from models.eager import Projections, SelfAttention
from models.encoder_eager import Encoder
from models.repository import EncoderEntry, ModelEntry
from models.spec import ComputeDtype
from service.backends.base import BackendInfo, Batch, Tensors
from service.backends.buckets import bucket, rung
from service.backends.eager import Module, computed, encoded, fuses
from service.backends.staging import Form, fetched, form_of, parted, sees, staged
from service.devices import Device
from service.settings import Settings

log = logging.getLogger(__name__)

DTYPES: Mapping[ComputeDtype, torch.dtype] = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip

BATCH_TOKENS = 16_384

RECORDINGS = 32
"""Recorded runs kept per layer and lane."""

RECORD_TOKENS = 2_048
RECORD_BYTES = 8 << 20
"""Tokens of a run that is recorded, and what it may hold on the device. Beyond, launching takes less time than
computing, and hides behind it."""

_RECORDING = threading.Lock()
"""One recording at a time."""


class CudaEagerBackend:
    """torch on a CUDA device.

    Sequences are padded to the lengths of `buckets` and stacked; where `ATTENTION_DETERMINISTIC` is set, each is
    computed by itself as it is, and has the same bits whatever else there is to compute.
    """

    def __init__(self, device: Device, settings: Settings) -> None:
        """Open torch on `device`."""
        self.device = torch.device(str(device))
        self.exact = settings.deterministic
        self.batch_tokens = settings.max_batch_tokens or BATCH_TOKENS
        torch.backends.cuda.matmul.allow_tf32 = settings.allow_tf32
        self.lanes = Lanes(self.device)
        dtype = "tf32" if settings.allow_tf32 else "float32"
        self.info = BackendInfo("eager", str(device), "torch", dtype, as_declared=True)

    def layer(self, entry: ModelEntry) -> "CudaEagerRunner":
        """See `Backend.layer`."""
        spec = entry.spec
        module = SelfAttention(spec, entry.weights, DTYPES[spec.compute_dtype])
        return CudaEagerRunner(self, module, spec.embed_dim, pads=spec.steady)

    def encoder(self, entry: EncoderEntry) -> "CudaEagerEncoder":
        """See `Backend.encoder`."""
        return CudaEagerEncoder(self, Encoder(entry.spec, entry.weights, DTYPES[entry.spec.compute_dtype]))

    def projections(self) -> "CudaEagerRunner":
        """See `Backend.projections`."""
        return CudaEagerRunner(self, Projections(), 0, pads=True)


class Recordable(Protocol):
    """Something whose launches can be recorded."""

    def found(self, given: Mapping[str, Tensor], form: Form) -> dict[str, Tensor]:
        """The tensors wanted, on the device, of what has been put there."""


class Recording:
    """The launches of a run, recorded once and replayed as one piece on other inputs of the same form."""

    def __init__(self, graph: torch.cuda.CUDAGraph, runner: Recordable, given: dict[str, Tensor], form: Form) -> None:
        """What `graph` makes of `given` is what `runner` does."""
        self.graph, self.given = graph, given
        self.found = runner.found(given, form)

    def replayed(self, hosts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the run finds for other inputs, on the device; the next replay writes over it."""
        for name, host in hosts.items():
            self.given[name].copy_(host, non_blocking=True)
        self.graph.replay()
        return self.found


class Lane:
    """A stream for one run at a time, and the recordings that are replayed on it.

    All of them share one pool of memory, which is safe because none starts before the last one's tensors have been
    fetched. They are recorded on a stream where nothing ever runs: what another thread did there meanwhile would be
    recorded too. torch takes streams of unlike priorities from separate stocks.
    """

    def __init__(self, lanes: "Lanes") -> None:
        """Open the streams."""
        self._lanes = lanes
        self.stream = torch.cuda.Stream(lanes.device)  # type: ignore[no-untyped-call]
        self._recorder = torch.cuda.Stream(lanes.device, priority=-1)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self.recordings: WeakKeyDictionary[Recordable, OrderedDict[Form, Recording | None]] = WeakKeyDictionary()

    def found(self, runner: Recordable, hosts: Mapping[str, Tensor], form: Form, *, small: bool) -> dict[str, Tensor]:
        """Launch a run on the current stream; what is small and comes a second time is recorded then."""
        known = self.recordings.setdefault(runner, OrderedDict())
        if form in known:
            known.move_to_end(form)
            if known[form] is None and self._lanes.records:
                known[form] = self._recorded(runner, hosts, form)
            if (recording := known[form]) is not None:
                return recording.replayed(hosts)
        given = self._given(hosts)
        found = runner.found(given, form)
        if small and self._lanes.records and _bytes(given) + _bytes(found) <= RECORD_BYTES:
            known[form] = None
            while len(known) > RECORDINGS:
                known.popitem(last=False)
        return found

    def _given(self, hosts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: host.to(self._lanes.device, non_blocking=True) for name, host in hosts.items()}

    def _recorded(self, runner: Recordable, hosts: Mapping[str, Tensor], form: Form) -> Recording | None:
        graph = torch.cuda.CUDAGraph()
        others = [other for known in self.recordings.values() for other in known.values() if other is not None]
        if not others:  # torch takes no pool again that nobody uses any more; and none of these must go meanwhile
            self._pool = torch.cuda.graph_pool_handle()
        with _RECORDING, torch.cuda.stream(self._recorder):
            given = self._given(hosts)
            runner.found(given, form)  # lets the libraries prepare themselves for this stream
            self._recorder.synchronize()
            try:
                graph.capture_begin(self._pool, "thread_local")
                recording = Recording(graph, runner, given, form)
                graph.capture_end()
            except RuntimeError as error:
                log.warning("runs are launched piece by piece from now on: %s", str(error).partition("\n")[0])
                self._lanes.give_up(graph)
                return None
        return recording


class Lanes:
    """As many lanes as batches have been under way at a time; the one used last is used again first.

    Attributes:
        device: theirs.
        records: whether small runs are recorded.
    """

    def __init__(self, device: torch.device) -> None:
        """Open lanes on `device` as they are needed."""
        self.device, self.records = device, True
        self._free: list[Lane] = []
        self._broken: list[torch.cuda.CUDAGraph] = []

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """A lane that is nobody else's meanwhile, its stream the current one."""
        try:
            lane = self._free.pop()
        except IndexError:
            lane = Lane(self)
        try:
            with torch.cuda.stream(lane.stream):
                yield lane
        finally:
            self._free.append(lane)

    def give_up(self, graph: torch.cuda.CUDAGraph) -> None:
        """Record nothing any more; a graph that broke off is kept, since torch's allocator goes on asking it."""
        self.records = False
        with suppress(RuntimeError):
            graph.capture_end()
        self._broken.append(graph)


class _CudaRunner(ABC):
    """What layers and encoders share: a batch staged, launched, fetched."""

    def __init__(self, backend: CudaEagerBackend) -> None:
        self.backend = backend
        self.exact, self.batch_tokens = backend.exact, backend.batch_tokens

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return n

    @abstractmethod
    def found(self, given: Mapping[str, Tensor], form: Form) -> dict[str, Tensor]:
        """See `Recordable.found`."""

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        with torch.inference_mode(), self.backend.lanes.lane() as lane:
            if self.exact:
                return [self._stack(lane, batch.alone(i))[0] for i in range(len(batch.inputs))]
            return self._stack(lane, batch)

    def _stack(self, lane: Lane, batch: Batch) -> list[Tensors]:
        lengths = [len(x) for x in batch.inputs]
        count, length = len(lengths), self.bucket(batch.length)
        small = count * length <= RECORD_TOKENS
        form = form_of(batch, length, rung(count) if small else count)
        found = lane.found(self, staged(batch, form), form, small=small)
        hosts = fetched(found, batch.wanted, batch.length)
        lane.stream.synchronize()
        return parted(hosts, lengths)


class CudaEagerRunner(_CudaRunner):
    """One torch module, shared by all threads."""

    def __init__(self, backend: CudaEagerBackend, module: Module, embed_dim: int, *, pads: bool) -> None:
        """Move `module` to the device.

        Args:
            backend: the runtime.
            module: what computes.
            embed_dim: for warming, 0 where it is not fixed.
            pads: whether more tokens change nothing for those before them that do not see them.
        """
        super().__init__(backend)
        self.module = module.eval().to(backend.device)
        self.embed_dim, self.pads = embed_dim, pads and not self.exact

    def warm(self) -> None:
        """Let torch load its kernels, and record what a lone short sequence takes."""
        if self.embed_dim:
            x = np.zeros((16, self.embed_dim), np.float32)
            for wanted in (("outputs", "weights"), ("outputs",)):
                for _ in range(2):
                    self.run(Batch((x,), None, None, False, 1.0, wanted))

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return bucket(n) if self.pads else n

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return not fuses(self.module, wanted)

    def found(self, given: Mapping[str, Tensor], form: Form) -> dict[str, Tensor]:
        """See `Recordable.found`."""
        inputs = given["inputs"]
        return computed(
            self.module,
            inputs,
            sees(given, inputs.shape[1]),
            given.get("bias"),
            [given[name] for name in ("query", "key", "value") if name in given],
            is_causal=form.is_causal,
            scale=form.scale,
            wanted=form.wanted,
        )


class CudaEagerEncoder(_CudaRunner):
    """One encoder, shared by all threads. Nothing is padded: its layers take no mask."""

    def __init__(self, backend: CudaEagerBackend, module: Encoder) -> None:
        """Move `module` to the device."""
        super().__init__(backend)
        self.module = module.eval().to(backend.device)

    def warm(self) -> None:
        """Let torch load its kernels."""
        self.run(Batch((np.zeros(8, np.int64),), None, None, False, 1.0, ("layers.0.weights",)))

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return True

    def found(self, given: Mapping[str, Tensor], form: Form) -> dict[str, Tensor]:
        """See `Recordable.found`."""
        return encoded(self.module, given["inputs"], form.wanted)


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
