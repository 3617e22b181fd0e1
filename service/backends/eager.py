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
from service.backends.staging import DTYPES
from service.devices import Device
from service.settings import Settings

CPU_BATCH_TOKENS = 256

Module = SelfAttention | Projections


class EagerBackend:
    """torch on a CPU.

    Each sequence is computed by itself on one thread: folding several into one product makes torch choose other
    kernels, and the last bits of an answer would depend on its neighbours. Parallelism comes from batches computed side
    by side.
    """

    def __init__(self, device: Device, settings: Settings) -> None:
        """Open torch; `device` is the CPU."""
        self.batch_tokens = settings.max_batch_tokens or CPU_BATCH_TOKENS
        _on_one_thread()
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

    exact = True

    def __init__(self, backend: EagerBackend, module: Module, embed_dim: int) -> None:
        """Serve `module`; `embed_dim` is for warming, 0 where it is not fixed."""
        self.batch_tokens = backend.batch_tokens
        self.module = module.eval()
        self.embed_dim = embed_dim

    def warm(self) -> None:
        """Let torch load its kernels."""
        if self.embed_dim:
            x = np.zeros((16, self.embed_dim), np.float32)
            self.run(Batch((x,), None, None, False, 1.0, ("outputs", "weights")))
            self.run(Batch((x,), None, None, False, 1.0, ("outputs",)))

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return n

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return not fuses(self.module, wanted)

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        _on_one_thread()
        with torch.inference_mode():
            return [self._one(batch, i) for i in range(len(batch.inputs))]

    def _one(self, batch: Batch, i: int) -> Tensors:
        own = batch.projections
        found = computed(
            self.module,
            _copied(batch.inputs[i]),
            None if batch.masks is None else _copied(batch.masks[i]),
            None if batch.biases is None else _copied(batch.biases[i]),
            () if own is None else [_copied(matrix)[0] for matrix in (own.query, own.key, own.value)],
            is_causal=batch.is_causal,
            scale=batch.scale,
            wanted=batch.wanted,
        )
        return {name: found[name].numpy()[0] for name in batch.wanted}


def _on_one_thread() -> None:
    """Let this thread compute by itself: products of several threads differ in their last bits.

    The number is each thread's own. One that has met torch before keeps the number it had then, whatever another sets,
    and one that has not computes its first product on as many as the math library likes, until it is asked.
    """
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def fuses(module: Module, wanted: Sequence[str]) -> bool:
    """Whether these tensors are made without a matrix of scores."""
    return SCORED.isdisjoint(wanted) and (not isinstance(module, SelfAttention) or module.plain_scores)


def computed(
    module: Module,
    inputs: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    matrices: Sequence[Tensor],
    *,
    is_causal: bool,
    scale: float,
    wanted: Sequence[str],
) -> dict[str, Tensor]:
    """The tensors wanted of b sequences, on whatever device they are.

    Args:
        module: a layer, or the way to compute with a caller's own matrices.
        inputs: (b, n, d).
        mask: (b, n, n), or (b, 1, n) where all rows see the same; or None.
        bias: (b, 1 or h, n, n), or None.
        matrices: the caller's own, for query, key and value.
        is_causal: as in `Batch`.
        scale: as in `Batch`.
        wanted: as in `Batch`.
    """
    layer = module if isinstance(module, SelfAttention) else None
    dtype = torch.float32 if layer is None else layer.dtype
    if layer is not None:
        query, key, value = layer.project(inputs)
    else:
        query, key, value = (split_heads(inputs @ matrix, 1) for matrix in matrices)
    if fuses(module, wanted):
        found = {"query": query, "key": key, "value": value}
        if not {"outputs", "projected"}.isdisjoint(wanted):
            if is_causal and bias is not None:  # the fused kernel takes a bias or the flag
                mask, is_causal = _causal(inputs), False
            outputs = fused_outputs(query, key, value, scale, mask, bias, is_causal=is_causal, dtype=dtype)
            if mask is not None and "projected" in wanted:  # rows that see nothing are projected too
                outputs = torch.where(mask.any(dim=-1, keepdim=True), outputs, 0.0)
            found["outputs"] = outputs
    else:
        if is_causal:
            mask = _causal(inputs)
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            factor = torch.full((), float(np.float32(scale)), device=inputs.device)
        found = attend(
            query,
            key,
            value,
            factor,
            mask,
            bias,
            logit_softcap=layer.logit_softcap if layer else None,
            position_bias=layer.position_bias(inputs) if layer else None,
            dtype=dtype,
        )._asdict()
    if layer is not None and "projected" in wanted:
        found["projected"] = layer.project_outputs(found["outputs"])
    return {name: found[name] for name in wanted}


def _causal(inputs: Tensor) -> Tensor:
    """(1, n, n): row i sees columns 0..i."""
    n = inputs.shape[1]
    return torch.ones(1, n, n, dtype=torch.bool, device=inputs.device).tril()


class EagerEncoder:
    """One encoder, shared by all threads."""

    exact = True

    def __init__(self, backend: EagerBackend, module: Encoder) -> None:
        """Serve `module`."""
        self.batch_tokens = backend.batch_tokens
        self.module = module.eval()

    def warm(self) -> None:
        """Let torch load its kernels."""
        self.run(Batch((np.zeros(8, np.int64),), None, None, False, 1.0, ("layers.0.weights",)))

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return n

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return True

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        _on_one_thread()
        with torch.inference_mode():
            return [self._one(ids, batch.wanted) for ids in batch.inputs]

    def _one(self, ids: Array, wanted: Sequence[str]) -> Tensors:
        found = encoded(self.module, _copied(ids), wanted)
        return {name: found[name].numpy()[0] for name in wanted}


def encoded(module: Encoder, ids: Tensor, wanted: Sequence[str]) -> dict[str, Tensor]:
    """The tensors wanted of sequences of one length, (b, n) ids, up to the last layer of which there is one."""
    places = {name: placed(name) for name in wanted}
    last = max(layer for layer, _ in places.values())
    layers = list(islice(module.intermediates(ids), last + 1))
    return {name: getattr(layers[layer], tensor) for name, (layer, tensor) in places.items()}


def _copied(array: Array) -> Tensor:
    """An array as one new tensor with an axis of sequences: torch wants memory it may write to."""
    host = torch.empty((1, *array.shape), dtype=DTYPES[array.dtype])
    host.numpy()[0] = array
    return host
