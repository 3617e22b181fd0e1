"""What the computation alone takes: raw ONNX Runtime and raw torch, called in a loop, with no service around them.

On all cores there is a process for each: in one process, Python's lock would be part of the floor.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, Literal

import numpy as np
import onnxruntime as ort
import torch
from onnx import ModelProto

from loadtest.bench import graphs
from loadtest.bench.machine import cores
from loadtest.bench.work import F32, Layer, cases

Backend = Literal["onnx", "eager"]
Device = str

BATCH: Final = 16
"""Sequences of one length computed together, where the floor is of batches."""


class Floor:
    """Processes that compute, kept for a whole run."""

    def __init__(self, pool: ProcessPoolExecutor, count: int, device: Device) -> None:
        """Use `count` processes of `pool`."""
        self._pool, self.count, self._device = pool, count, device

    def rate(self, case: str, backend: Backend, *, processes: int, batch: int, seconds: float) -> float:
        """Sequences a second, of so many processes at the same time."""
        asked = [self._pool.submit(_rate, case, backend, self._device, batch, seconds) for _ in range(processes)]
        return sum(future.result() for future in asked)


@contextmanager
def opened(device: Device) -> Iterator[Floor]:
    """Start a process for each core; one for a GPU. `auto` is what the service would take."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    count = 1 if device.startswith("cuda") else cores()
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        yield Floor(pool, count, device)


def session(graph: ModelProto, device: Device = "cpu") -> ort.InferenceSession:
    """Open a graph, for one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    provider = "CPUExecutionProvider"
    if device.startswith("cuda"):
        ort.preload_dlls(directory="")
        provider = "CUDAExecutionProvider"
    return ort.InferenceSession(graph.SerializeToString(), options, providers=[provider])


def _rate(case: str, backend: Backend, device: Device, batch: int, seconds: float) -> float:
    """Sequences a second of this process alone."""
    run, batches = _prepared(case, backend, device, batch)
    for x in batches:
        run(x)
    done, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        run(batches[done % len(batches)])
        done += 1
    return done * batch / took


@cache
def _prepared(case: str, backend: Backend, device: Device, batch: int) -> tuple[Callable[[F32], Any], list[F32]]:
    asked = cases()[case]
    batches = [np.repeat(x[None], batch, axis=0) for x in asked.inputs()]
    if backend == "eager":
        return _torch(asked.layer, device), batches
    opened = session(graphs.attention(asked.layer), device)
    return lambda x: opened.run(None, {"inputs": x}), batches


def _torch(layer: Layer, device: Device) -> Callable[[F32], Any]:
    """The same in torch: projections in one product, and weights that are kept."""
    torch.set_num_threads(1)
    size = layer.width // layer.heads
    query, key, value = layer.weights()
    joined = torch.from_numpy(np.concatenate([query / np.sqrt(np.float32(size)), key, value], axis=1)).to(device)

    @torch.inference_mode()
    def run(x: F32) -> tuple[torch.Tensor, torch.Tensor]:
        b, n, _ = x.shape
        projected = (torch.from_numpy(x).to(device) @ joined).view(b, n, 3, layer.heads, size)
        q, k, v = projected.permute(2, 0, 3, 1, 4)  # (b, heads, n, size) each
        weights = torch.softmax(q @ k.transpose(-1, -2), dim=-1)
        return (weights @ v).transpose(1, 2).reshape(b, n, layer.width).cpu(), weights.cpu()

    return run
