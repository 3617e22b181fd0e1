"""The oracle as a backend: NumPy float64, answers rounded to float32. Slow, exact, always on the CPU."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.encoder_reference import encode
from models.encoder_spec import placed
from models.reference import attention, self_attention
from models.repository import EncoderEntry, ModelEntry
from models.types import F32, F64, Array
from service.backends.base import BackendInfo, Batch, Tensors
from service.devices import Device
from service.settings import Settings


class ReferenceBackend:
    """Computes by `models.reference`."""

    def __init__(self, device: Device, settings: Settings) -> None:
        """`device` and `settings` are those of every backend; this one needs neither."""
        self.info = BackendInfo("reference", "cpu", "numpy", "float64")

    def layer(self, entry: ModelEntry) -> "ReferenceRunner":
        """See `Backend.layer`."""
        return ReferenceRunner(entry)

    def encoder(self, entry: EncoderEntry) -> "ReferenceEncoder":
        """See `Backend.encoder`."""
        return ReferenceEncoder(entry)

    def projections(self) -> "ReferenceRunner":
        """See `Backend.projections`."""
        return ReferenceRunner(None)


class ReferenceRunner:
    """A layer of the repository, or, without one, a caller's own projections."""

    batch_tokens, exact = 0, True

    def __init__(self, entry: ModelEntry | None) -> None:
        """Serve `entry`."""
        # What a row sees is the batch's to say, as for every runner.
        everything = {"is_causal": False, "window": None}
        self.entry = entry and replace(entry, spec=entry.spec.model_copy(update=everything))

    def warm(self) -> None:
        """Nothing to prepare."""

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return n

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return True

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, and refused for that
            return [self._one(batch, i) for i in range(len(batch.inputs))]

    def _one(self, batch: Batch, i: int) -> Tensors:
        mask = None if batch.masks is None else batch.masks[i]
        bias = None if batch.biases is None else batch.biases[i]
        if bias is not None and len(bias) == 1:
            bias = bias[0]
        x = batch.inputs[i]
        if self.entry is None:
            assert batch.projections is not None
            query, key, value = (
                _one_head(x, matrix)
                for matrix in (batch.projections.query, batch.projections.key, batch.projections.value)
            )
            trace = attention(
                query, key, value, attn_mask=mask, attn_bias=bias, is_causal=batch.is_causal, scale=batch.scale
            )
        else:
            trace = self_attention(
                x,
                self.entry.weights,
                self.entry.spec,
                attn_mask=mask,
                attn_bias=bias,
                is_causal=batch.is_causal,
                scale=batch.scale,
            )
        return {name: trace.tensor(name).astype(np.float32) for name in batch.wanted}


class ReferenceEncoder:
    """An encoder of the repository."""

    batch_tokens, exact = 0, True

    def __init__(self, entry: EncoderEntry) -> None:
        """Serve `entry`."""
        self.entry = entry

    def warm(self) -> None:
        """Nothing to prepare."""

    def bucket(self, n: int) -> int:
        """See `Runner.bucket`."""
        return n

    def holds_scores(self, n: int, wanted: Sequence[str]) -> bool:
        """See `Runner.holds_scores`."""
        return True

    def run(self, batch: Batch) -> list[Tensors]:
        """See `Runner.run`."""
        return [self._one(ids, batch.wanted) for ids in batch.inputs]

    def _one(self, ids: Array, wanted: Sequence[str]) -> Tensors:
        traces = encode(ids, self.entry.spec, self.entry.weights)
        places = [(name, *placed(name)) for name in wanted]
        return {name: traces[layer].tensor(tensor).astype(np.float32) for name, layer, tensor in places}


def _one_head(x: F32, matrix: F32) -> F64:
    product: F64 = (x.astype(np.float64) @ matrix.astype(np.float64))[None]  # (1, n, columns)
    return product
