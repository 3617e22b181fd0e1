"""PyTorch, run as it is written."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from models.eager import Projections, SelfAttention, attend, fused_outputs, split_heads
from models.encoder_eager import Encoder
from models.encoder_spec import placed
from models.repository import EncoderEntry, ModelEntry
from models.types import Array
from service.backends.base import SCORED, BackendInfo, Batch, Tensors
from service.devices import Device
from service.settings import Settings

CPU_BATCH_TOKENS = 256
GPU_BATCH_TOKENS = 16_384

DTYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.bool_): torch.bool, np.dtype(np.int64): torch.int64}


class EagerBackend:
    """torch on a CPU or a CUDA device.

    On a CPU each sequence is computed by itself on one thread: folding several into one product makes torch choose
    other kernels, and the last bits of an answer would depend on its neighbours. Parallelism comes from batches
    computed side by side. On a GPU, batches are stacked unless `deterministic` asks for the same promise there.
    """

    def __init__(self, device: Device, settings: Settings) -> None:
        """Open torch on `device`."""
        self.device = torch.device(str(device))
        on_gpu = device.kind == "cuda"
        self.stacked = on_gpu and not settings.deterministic
        self.batch_tokens = settings.max_batch_tokens or (GPU_BATCH_TOKENS if on_gpu else CPU_BATCH_TOKENS)
        if on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = settings.allow_tf32
        else:
            torch.set_num_threads(1)
        self.info = BackendInfo("eager", str(device), "torch", "float32")

    def layer(self, entry: ModelEntry) -> "EagerRunner":
        """See `Backend.layer`."""
        return EagerRunner(self, SelfAttention(entry.spec, entry.weights), entry.spec.embed_dim)

    def encoder(self, entry: EncoderEntry) -> "EagerEncoder":
        """See `Backend.encoder`."""
        return EagerEncoder(self, Encoder(entry.spec, entry.weights))

    def projections(self) -> "EagerRunner":
        """See `Backend.projections`."""
        return EagerRunner(self, Projections(), 0)


class EagerRunner:
    """One torch module, shared by all threads."""

    def __init__(self, backend: EagerBackend, module: SelfAttention | Projections, embed_dim: int) -> None:
        """Move `module` to the device; `embed_dim` is for warming, 0 where it is not fixed."""
        self.device, self.stacked, self.batch_tokens = backend.device, backend.stacked, backend.batch_tokens
        self.module = module.eval().to(self.device)
        self.embed_dim = embed_dim

    def warm(self) -> None:
        """Let torch load its kernels."""
        if self.embed_dim:
            x = np.zeros((16, self.embed_dim), np.float32)
            self.run(Batch((x,), None, None, False, 1.0, ("outputs", "weights")))
            self.run(Batch((x,), None, None, False, 1.0, ("outputs",)))

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return not self._fuses(wanted)

    def _fuses(self, wanted: Sequence[str]) -> bool:
        return SCORED.isdisjoint(wanted) and (not isinstance(self.module, SelfAttention) or self.module.plain_scores)

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        # Asked for its number of threads, torch sets it for this thread; else the thread's first product, and only that
        # one, would run on as many as the math library likes, and differ in its last bits.
        torch.get_num_threads()
        with torch.inference_mode():
            if self.stacked:
                return self._stack(batch, 0, len(batch.inputs))
            return [self._stack(batch, i, i + 1)[0] for i in range(len(batch.inputs))]

    def _stack(self, batch: Batch, start: int, stop: int) -> list[Tensors]:
        """The sequences from `start` to `stop` in one go."""
        inputs = self._put(batch.inputs[start:stop])  # (b, n, d)
        mask = None if batch.masks is None else self._put(batch.masks[start:stop])  # (b, n, n)
        bias = None if batch.biases is None else self._put(batch.biases[start:stop])  # (b, 1 or h, n, n)
        query, key, value = self._project(inputs, batch)
        layer = self.module if isinstance(self.module, SelfAttention) else None
        if self._fuses(batch.wanted):
            found = {"query": query, "key": key, "value": value}
            if not {"outputs", "projected"}.isdisjoint(batch.wanted):
                found["outputs"] = self._fused(query, key, value, mask, bias, batch)
        else:
            if batch.is_causal:
                mask = self._causal(batch.length)
            scale = torch.tensor(batch.scale, dtype=torch.float32, device=self.device)
            found = attend(
                query,
                key,
                value,
                scale,
                mask,
                bias,
                logit_softcap=layer.logit_softcap if layer else None,
                position_bias=layer.position_bias(inputs) if layer else None,
            )._asdict()
        if layer is not None and "projected" in batch.wanted:
            found["projected"] = layer.project_outputs(found["outputs"])
        arrays = {name: found[name].cpu().numpy() for name in batch.wanted}
        return [{name: array[i] for name, array in arrays.items()} for i in range(stop - start)]

    def _fused(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, batch: Batch
    ) -> Tensor:
        if batch.is_causal and bias is not None:  # the fused kernel takes a bias or the flag
            mask = self._causal(batch.length)
        causal = batch.is_causal and bias is None
        outputs = fused_outputs(query, key, value, batch.scale, mask, bias, is_causal=causal)
        if mask is None or "projected" not in batch.wanted:
            return outputs
        return torch.where(mask.any(dim=-1, keepdim=True), outputs, 0.0)  # rows that see nothing are projected too

    def _causal(self, n: int) -> Tensor:
        """(1, n, n): row i sees columns 0..i."""
        return torch.ones(1, n, n, dtype=torch.bool, device=self.device).tril()

    def _project(self, inputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(self.module, SelfAttention):
            return self.module.project(inputs)
        assert batch.projections is not None, "a batch for a runner of projections brings them"
        matrices = (batch.projections.query, batch.projections.key, batch.projections.value)
        query, key, value = (split_heads(inputs @ self._put((matrix,))[0], 1) for matrix in matrices)
        return query, key, value

    def _put(self, arrays: Sequence[Array]) -> Tensor:
        return _copied(arrays, self.device)


class EagerEncoder:
    """One encoder, shared by all threads."""

    def __init__(self, backend: EagerBackend, module: Encoder) -> None:
        """Move `module` to the device."""
        self.device, self.stacked, self.batch_tokens = backend.device, backend.stacked, backend.batch_tokens
        self.module = module.eval().to(self.device)

    def warm(self) -> None:
        """Let torch load its kernels."""
        self.run(Batch((np.zeros(8, np.int64),), None, None, False, 1.0, ("layers.0.weights",)))

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return True

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        torch.get_num_threads()  # as in `EagerRunner.run`
        with torch.inference_mode():
            if self.stacked:
                return self._stack(batch.inputs, batch.wanted)
            return [self._stack((ids,), batch.wanted)[0] for ids in batch.inputs]

    def _stack(self, sequences: Sequence[Array], wanted: Sequence[str]) -> list[Tensors]:
        """Sequences of one length in one go, up to the last layer that is wanted."""
        places = {name: placed(name) for name in wanted}
        last = max(layer for layer, _ in places.values())
        found = list(islice(self.module.intermediates(_copied(sequences, self.device)), last + 1))
        arrays = {name: getattr(found[layer], tensor).cpu().numpy() for name, (layer, tensor) in places.items()}
        return [{name: array[i] for name, array in arrays.items()} for i in range(len(sequences))]


def _copied(arrays: Sequence[Array], device: torch.device) -> Tensor:
    """Equal arrays as one new tensor on a device: torch wants memory it may write to."""
    host = torch.empty((len(arrays), *arrays[0].shape), dtype=DTYPES[arrays[0].dtype])
    np.stack(arrays, out=host.numpy())
    return host.to(device)
