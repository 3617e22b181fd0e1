"""`attention measure`."""

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import groupby
from typing import Annotated

import numpy as np
import typer

from models.repository import ModelEntry
from models.spec import AttentionSpec
from models.types import F32
from models.weights import seeded
from service.backends import open_backend
from service.backends.base import Backend, Batch, Runner
from service.devices import Device, choose_device, onnxruntime_distributions
from service.settings import Settings, load_settings

BOTH, OUTPUTS = ("outputs", "weights"), ("outputs",)


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences to compute: their lengths, the layer's width and heads, and the tensors wanted."""

    name: str
    lengths: tuple[int, ...]
    embed_dim: int
    heads: int
    wanted: tuple[str, ...]


def _mixed(count: int) -> tuple[int, ...]:
    """Log-normal lengths around 64, from 8 to 256."""
    drawn = np.random.default_rng(0).lognormal(np.log(64), 0.7, count)
    return tuple(int(n) for n in np.clip(drawn, 8, 256))


CASES = (
    Case("16 × 64", (16,), 64, 1, BOTH),
    Case("128 × 384", (128,), 384, 6, BOTH),
    Case("512 × 768, outputs", (512,), 768, 12, OUTPUTS),
    Case("512 × 768", (512,), 768, 12, BOTH),
    Case("2048 × 768, outputs", (2_048,), 768, 12, OUTPUTS),
    Case("32 of 16 × 64", (16,) * 32, 64, 1, BOTH),
    Case("32 of 128 × 384", (128,) * 32, 384, 6, BOTH),
    Case("32 of 8..256 × 384", _mixed(32), 384, 6, BOTH),
    Case("32 of 8..256 × 384, outputs", _mixed(32), 384, 6, OUTPUTS),
)


def measure(
    device: Annotated[str, typer.Option(help="As ATTENTION_DEVICE.")] = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which the median counts.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.001, help="Least time of each way in each round, s.")] = 0.2,
) -> None:
    """Measure how long the backends take on this machine, without the service around them.

    Ways take turns in each round, so that a busy moment hits all of them.
    """
    settings = load_settings(device=device)
    place = choose_device(settings.device)
    typer.echo(f"{_machine(place)}; medians of {rounds} rounds of {seconds:g} s or more\n")
    _table("Computing: ms", "sequences", dict(_computing(place, settings)), rounds, seconds)
    if place.kind == "cuda":
        _table("Copying to the GPU and back: ms", "MiB", dict(_copying(place)), rounds, seconds)


Ways = Mapping[str, Callable[[], object]]
"""What to time, by name."""


def _computing(device: Device, settings: Settings) -> Iterator[tuple[str, Ways]]:
    """The ways to compute each case: both backends, and on a GPU what they would be without each of their means."""
    opened: dict[str, Backend] = {name: open_backend(name, device, settings) for name in ("onnx", "eager")}
    if device.kind == "cuda":
        exact = settings.model_copy(update={"deterministic": True})
        opened |= {f"{name}, exact": open_backend(name, device, exact) for name in ("onnx", "eager")}
        from service.backends.eager_cuda import CudaEagerBackend  # noqa: PLC0415 - runtimes are loaded by now
        from service.backends.onnx import OnnxBackend  # noqa: PLC0415 - as above

        opened["eager, not recorded"] = plain = CudaEagerBackend(device, settings)
        plain.lanes.records = False
        opened["onnx, not bound"] = OnnxBackend(device, settings)
    for case in CASES:
        spec = AttentionSpec(
            name="measured", embed_dim=case.embed_dim, num_heads=case.heads, head_dim=case.embed_dim // case.heads
        )
        entry = ModelEntry(spec, seeded(spec, 0), "measured")
        random = np.random.default_rng(0)
        inputs = [random.standard_normal((n, case.embed_dim), np.float32) for n in case.lengths]
        yield case.name, {name: _computes(backend.layer(entry), inputs, case) for name, backend in opened.items()}


def _computes(runner: Runner, inputs: list[F32], case: Case) -> Callable[[], object]:
    """Computes all sequences, in batches as the queue would form them of sequences that wait."""

    def batches() -> Iterator[Batch]:
        for length, group in groupby(sorted(inputs, key=len), key=lambda x: runner.bucket(len(x))):
            together, most = list(group), max(1, runner.batch_tokens // length)
            for start in range(0, len(together), most):
                share = tuple(together[start : start + most])
                yield Batch(share, None, None, False, 0.125, case.wanted)

    made = list(batches())
    return lambda: [runner.run(batch) for batch in made]


def _copying(device: Device) -> Iterator[tuple[str, Ways]]:
    """Through pinned memory, as the backends do it, and from memory that the system may move."""
    import torch  # noqa: PLC0415 - on a GPU it is loaded already

    def pinned(array: F32) -> None:
        host, back = (torch.empty(array.shape, pin_memory=True) for _ in range(2))
        host.numpy()[...] = array
        back.copy_(host.to(str(device), non_blocking=True), non_blocking=True)
        torch.cuda.current_stream().synchronize()

    def pageable(array: F32) -> None:
        torch.from_numpy(array.copy()).to(str(device)).cpu()

    for mib in (0.0625, 1, 16):
        array = np.ones(int(mib * (1 << 18)), np.float32)
        yield f"{mib:g}", {"pinned": partial(pinned, array), "pageable": partial(pageable, array)}


def _table(title: str, what: str, cases: Mapping[str, Ways], rounds: int, seconds: float) -> None:
    """A table in Markdown: a row per case, each way's time and how many times that of the first it is."""
    names = list(next(iter(cases.values())))
    typer.echo(f"{title}\n\n| {what} | {' | '.join(names)} |\n|{' --- |' * (1 + len(names))}")
    for name, ways in cases.items():
        took = _timed(ways, rounds, seconds)
        first = took[names[0]]
        cells = [f"{1e3 * took[way]:.3f} ({took[way] / first:.2f})" for way in names]
        typer.echo(f"| {name} | {' | '.join(cells)} |")
    typer.echo()


def _timed(ways: Ways, rounds: int, seconds: float) -> dict[str, float]:
    """Seconds of one call of each way, the median over the rounds."""
    counts = {}
    for name, way in ways.items():
        for _ in range(3):  # opens sessions, records what is small
            way()
        started = time.perf_counter()
        way()
        counts[name] = max(1, int(seconds / (time.perf_counter() - started)))
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            for _ in range(counts[name]):
                way()
            found[name].append((time.perf_counter() - started) / counts[name])
    return {name: statistics.median(times) for name, times in found.items()}


def _machine(device: Device) -> str:
    where = platform.machine()
    if device.kind == "cuda":
        import torch  # noqa: PLC0415 - as above

        where = f"{torch.cuda.get_device_name(device.index)}, CUDA {torch.version.cuda}"
    return f"{where}, torch {version('torch')}, {' and '.join(onnxruntime_distributions())}"
