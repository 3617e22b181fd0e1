"""`attention doctor`."""

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import typer
from rich.console import Console

from models import repository
from models.errors import AttentionError
from service.backends import BACKENDS, open_backend
from service.backends.base import Batch
from service.catalog import available
from service.devices import Device, choose_device, cuda_obstacles, onnxruntime_distributions
from service.settings import Settings, load_settings

PACKAGES = ("torch", "numpy", "onnx", "fastapi", "uvicorn", "uvloop", "orjson", "numba")


class Doctor:
    """Prints findings, and counts those that keep the service from working as it is set."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.faults = 0

    def say(self, sign: str, text: str) -> None:
        """A line; `sign` is one of ok, note, bad."""
        style = {"ok": "green", "note": "yellow", "bad": "red"}[sign]
        self.console.print(f"[{style}]{sign:>4}[/{style}]  ", end="")
        self.console.print(text, markup=False)
        self.faults += sign == "bad"

    def attempt(self, what: str, action: Callable[[], str]) -> None:
        """Try something; whatever it raises is a finding."""
        try:
            self.say("ok", f"{what}: {action()}")
        except Exception as error:  # noqa: BLE001 - a doctor reports what ails, and goes on
            text = str(error) if isinstance(error, AttentionError) else f"{type(error).__name__}: {error}"
            self.say("bad", f"{what}: {text}")


def doctor() -> None:
    """Tell what is installed, which devices and providers really work, and what to do where they do not.

    Exits with 1 if the service would not work as it is set.
    """
    found = Doctor()
    found.say("ok", f"Python {platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores")
    found.say("ok", ", ".join(f"{name} {_version(name)}" for name in PACKAGES))
    distributions = onnxruntime_distributions()
    if len(distributions) == 1:
        found.say("ok", distributions[0])
    elif distributions:
        found.say("bad", f"{' and '.join(distributions)} overwrite each other. Run: pip uninstall -y onnxruntime "
                         "onnxruntime-gpu && pip install onnxruntime-gpu")  # fmt: skip
    else:
        found.say("bad", "ONNX Runtime is not installed. Run: pip install onnxruntime-gpu")
    try:
        settings = load_settings()
    except AttentionError as error:
        found.say("bad", f"settings: {error}")
        raise typer.Exit(1) from error
    _check_device(found, settings)
    _check_artifacts(found, settings.artifacts)
    found.attempt("model repository", lambda: _repository(settings))
    if found.faults:
        found.console.print(f"\n{found.faults} of these keep the service from working as it is set.")
        raise typer.Exit(1)
    found.console.print("\nEverything the service needs works.")


def _check_device(found: Doctor, settings: Settings) -> None:
    for obstacle in cuda_obstacles():
        found.say("note", f"CUDA does not work here: {obstacle}")
    try:
        device = choose_device(settings.device)
    except AttentionError as error:
        found.say("bad", f"{error}. Set ATTENTION_DEVICE=auto to compute on the CPU meanwhile")
        device = Device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        trial = settings.model_copy(update={"artifacts": Path(folder)})
        for name in BACKENDS:
            found.attempt(f"backend {name}", partial(_try_backend, name, device, trial))


def _try_backend(name: str, device: Device, settings: Settings) -> str:
    """Load the lesson and compute it, for real."""
    backend = open_backend(name, device, settings)
    entry = next(entry for entry in repository.builtin() if entry.spec.name == "lesson")
    assert entry.spec.example is not None
    inputs = np.array(entry.spec.example.inputs, np.float32)
    runner = backend.layer(entry)
    (tensors,) = runner.run(Batch((inputs,), None, None, False, entry.spec.effective_scale, ("weights",)))
    error = float(np.abs(tensors["weights"].sum(axis=-1) - 1).max())
    return f"works on {backend.info.device} ({backend.info.provider}); rows sum to 1 within {error:.0e}"


def _check_artifacts(found: Doctor, folder: Path) -> None:
    """A folder that cannot be written is fine where the graphs lie in it already, as in a container."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            found.say("ok", f"artifacts: {folder} can be written")
    except OSError as error:
        text = f"artifacts: {folder} cannot be written ({error.strerror})"
        found.say("note", f"{text}: graphs that are not in it already are exported anew at every start")


def _repository(settings: Settings) -> str:
    entries, broken = available(settings)
    if broken:
        raise AttentionError("; ".join(f"{entry.origin}: {entry.reason}" for entry in broken))
    own = sum(entry.origin != repository.BUILT_IN for entry in entries)
    return f"{own} models in {settings.model_repository}, {len(entries) - own} built in"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
