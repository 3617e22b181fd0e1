"""PyTorch, run as it is written."""

import numpy as np
import torch
from torch import Tensor

from models.eager import Projections, SelfAttention, attend, fused_outputs, split_heads
from models.repository import ModelEntry
from models.types import F32, Array, Bool
from service.backends.base import BackendInfo, Batch, Tensors
from service.devices import Device
from service.settings import Settings

CPU_BATCH_TOKENS = 256
GPU_BATCH_TOKENS = 16_384


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
        if {"weights", "scores"}.isdisjoint(batch.wanted) and (layer is None or layer.plain_scores):
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

    def _put(self, arrays: tuple[F32, ...] | tuple[Bool, ...]) -> Tensor:
        """Copy equal arrays into one new tensor on the device: torch wants memory it may write to."""
        first: Array = arrays[0]
        dtype = torch.bool if first.dtype == np.bool_ else torch.float32
        host = torch.empty((len(arrays), *first.shape), dtype=dtype)
        np.stack(arrays, out=host.numpy())
        return host.to(self.device)
