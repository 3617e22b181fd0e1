"""The computation of every peer: the same graphs in ONNX Runtime. Runs where the peers do, beside NumPy alone."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

F32 = npt.NDArray[np.float32]
Answer = tuple[F32, F32]

MOST = 16
"""Sequences of a batch."""


class Attention:
    """The layers of `BENCH_MODELS`, by the width of their inputs."""

    def __init__(self, threads: int = 0) -> None:
        """Open every graph; by default each computation is shared among `BENCH_THREADS` threads."""
        threads = threads or int(os.environ["BENCH_THREADS"])
        graphs = sorted(Path(os.environ["BENCH_MODELS"]).glob("*.onnx"))
        self._sessions: dict[str, Any] = {graph.stem: _opened(graph, threads) for graph in graphs}

    def stacked(self, x: F32) -> Answer:
        """Outputs (b, n, d) and weights (b, n, n) of sequences of one length, (b, n, d)."""
        outputs, weights = self._sessions[str(x.shape[2])].run(None, {"inputs": x})
        return outputs, weights

    def batch(self, sequences: Sequence[F32]) -> list[Answer]:
        """Outputs (n, d) and weights (n, n) of each of some sequences of one width; padded where lengths differ."""
        lengths = [len(x) for x in sequences]
        longest, width = max(lengths), sequences[0].shape[1]
        if min(lengths) == longest:
            outputs, weights = self.stacked(np.stack(sequences))
            return list(zip(outputs, weights, strict=True))
        inputs = np.zeros((len(sequences), longest, width), np.float32)
        bias = np.full((len(sequences), longest), -np.inf, np.float32)
        for i, x in enumerate(sequences):
            inputs[i, : len(x)], bias[i, : len(x)] = x, 0
        outputs, weights = self._sessions[f"{width}-padded"].run(None, {"inputs": inputs, "bias": bias})
        return [(outputs[i, :n], weights[i, :n, :n]) for i, n in enumerate(lengths)]


def _opened(graph: Path, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin for work would take the cores from the front, and from the load generator.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
