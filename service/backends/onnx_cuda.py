"""ONNX Runtime on a GPU: inputs and outputs bound to the device, and fetched through pinned memory."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnx import ModelProto
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from models.encoder_spec import EncoderSpec
from models.graphs import Variant
from models.repository import EncoderEntry, ModelEntry
from models.types import Array
from service.backends.base import Batch, Tensors
from service.backends.buckets import bucket
from service.backends.onnx import OnnxBackend, OnnxEncoder, OnnxRunner
from service.backends.staging import Form, fetched, form_of, parted, sees, staged
from service.devices import Device
from service.settings import Settings

NUMPY = {torch.float32: np.float32, torch.bool: np.bool_, torch.int64: np.int64}


class CudaOnnxBackend(OnnxBackend):
    """ONNX Runtime on a CUDA device.

    Sequences are padded to the lengths of `buckets` and stacked, unless `ATTENTION_DETERMINISTIC` is set. Its kernels
    run on one stream of ours, between our copies, so that nobody waits for the device but whoever wants an answer.
    Launches take turns: the runtime cannot use a stream of ours from several threads.
    """

    def __init__(self, device: Device, settings: Settings) -> None:
        """Open the runtime on `device`; graphs are kept in `settings.artifacts`."""
        super().__init__(device, settings)
        self.exact = settings.deterministic
        if settings.allow_tf32:
            self.info = self.info._replace(dtype="tf32")
        ort.set_default_logger_severity(3)  # else each session warns that it is no plugin
        self.stream = torch.cuda.Stream(torch.device(str(device)))  # type: ignore[no-untyped-call]
        self.options["user_compute_stream"] = str(self.stream.cuda_stream)
        self.launching = threading.Lock()

    def layer(self, entry: ModelEntry) -> "CudaOnnxRunner":
        """See `Backend.layer`."""
        return CudaOnnxRunner(self, self.store.layer(entry.spec, entry.weights), pads=entry.spec.steady)

    def encoder(self, entry: EncoderEntry) -> "CudaOnnxEncoder":
        """See `Backend.encoder`."""
        return CudaOnnxEncoder(self, self.store.encoder(entry.spec, entry.weights), entry.spec)

    def projections(self) -> "CudaOnnxRunner":
        """See `Backend.projections`."""
        return CudaOnnxRunner(self, self.store.projections(), pads=True)

    def bound(self, session: ort.InferenceSession, batch: Batch, length: int) -> list[Tensors]:
        """Run a batch, padded to `length` tokens, with everything on the device but what goes in and what comes out."""
        form = form_of(batch, length, len(batch.inputs))
        hosts = staged(batch, form)
        # By its own stream, not by ours: its kernels may still run when it returns, and we wait for all of them.
        run = ort.RunOptions()
        run.add_run_config_entry("disable_synchronize_execution_providers", "1")
        with self.launching, torch.inference_mode(), torch.cuda.stream(self.stream):
            given = {name: host.to(self.stream.device, non_blocking=True) for name, host in hosts.items()}
            feed = _feed(given, form)
            binding = session.io_binding()
            for value in session.get_inputs():
                _bind(binding, value.name, feed[value.name])
            for name in batch.wanted:
                binding.bind_output(name, "cuda", self.device.index)
            session.run_with_iobinding(binding, run)
            values = dict(zip(batch.wanted, binding.get_outputs(), strict=True))
            found = {name: from_dlpack(value) for name, value in values.items()}
            fetching = fetched(found, batch.wanted, batch.length)
            done = self.stream.record_event()
        done.synchronize()  # until here, `binding` and `feed` hold what the kernels read and write
        return parted(fetching, [len(x) for x in batch.inputs])


def _feed(given: Mapping[str, Tensor], form: Form) -> dict[str, Tensor]:
    """What a graph may take, by its own names, on the device."""
    inputs = given["inputs"]
    b, n = inputs.shape[:2]
    feed = {"inputs": inputs, "ids": inputs}
    with np.errstate(over="ignore"):  # a scale that is too large becomes infinite, and the answer is refused for that
        feed["scale"] = torch.full((), float(np.float32(form.scale)), device=inputs.device)
    if form.is_causal:
        feed["attn_mask"] = torch.ones(b, n, n, dtype=torch.bool, device=inputs.device).tril_()
    elif (keep := sees(given, n)) is not None:
        feed["attn_mask"] = keep.expand(b, n, n).contiguous()
    if "bias" in given:
        feed["attn_bias"] = given["bias"]
    return feed | {f"{name}_projection": given[name] for name in ("query", "key", "value") if name in given}


def _bind(binding: Any, name: str, tensor: Tensor) -> None:
    device = tensor.device
    binding.bind_input(name, "cuda", device.index or 0, NUMPY[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())


class CudaOnnxRunner(OnnxRunner):
    """One exported layer on a GPU."""

    def __init__(self, backend: CudaOnnxBackend, graph: ModelProto, *, pads: bool) -> None:
        """Serve a graph.

        Args:
            backend: the runtime.
            graph: as exported.
            pads: whether more tokens change nothing for those before them that do not see them.
        """
        super().__init__(backend, graph, None, stacked=not backend.exact)
        self.cuda, self.exact, self.pads = backend, backend.exact, pads and not backend.exact

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return bucket(n) if self.pads else n

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        if self.exact:
            return [self._together(batch.alone(i))[0] for i in range(len(batch.inputs))]
        return self._together(batch)

    def _together(self, batch: Batch) -> list[Tensors]:
        length = self.bucket(batch.length)
        masked = batch.masks is not None or batch.is_causal or any(len(x) < length for x in batch.inputs)
        variant = Variant(batch.wanted, masked=masked, biased=batch.biases is not None)
        return self.cuda.bound(self._sessions.get((variant, "whole")), batch, length)


class CudaOnnxEncoder(OnnxEncoder):
    """One exported encoder on a GPU. Nothing is padded: its graph takes no mask."""

    def __init__(self, backend: CudaOnnxBackend, graph: ModelProto, spec: EncoderSpec) -> None:
        """Serve `graph`."""
        super().__init__(backend, graph, spec)
        self.cuda, self.exact = backend, backend.exact

    def _stack(
        self, session: ort.InferenceSession, sequences: tuple[Array, ...], wanted: tuple[str, ...]
    ) -> list[Tensors]:
        batch = Batch(sequences, None, None, False, 1.0, wanted)
        return self.cuda.bound(session, batch, batch.length)
