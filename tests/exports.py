"""Graphs of layers, exported once in a run of the tests by whichever process is first: each takes seconds."""

import fcntl
import functools
import os
from pathlib import Path

from onnx import ModelProto
from torch.onnx._internal.exporter._registration import ONNXRegistry

from models.repository import ModelEntry
from models.store import ArtifactStore

# Torch makes its table of operators anew for each export, which is a third of the time; it is always the same.
ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


def graph(entry: ModelEntry) -> ModelProto:
    """The full graph of a layer, kept where this run's services look for theirs."""
    folder = Path(os.environ["TEST_ARTIFACTS"])
    with (folder / f"{entry.spec.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return ArtifactStore(folder).layer(entry.spec, entry.weights)
