"""Which device there truly is: found out by trying, never by what a library claims to support."""

import ctypes
import importlib.metadata
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path

from service.errors import ConfigurationError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Device:
    """Where to compute.

    Attributes:
        kind: `cpu` or `cuda`.
        index: number of the GPU; 0 on a CPU.
        note: why this device and not a better one, for people; empty where there is nothing to say.
    """

    kind: str
    index: int = 0
    note: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


def onnxruntime_distributions() -> list[str]:
    """The installed ONNX Runtime distributions, `name version`; two of them overwrite each other's files."""
    found = []
    for name in ("onnxruntime-gpu", "onnxruntime"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where a container is told how many cores' time it may use, as `quota period`; `max` for no quota."""


def available_cores() -> int:
    """Cores that this process may use: those it may run on, and no more than its container's share of time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # none on macOS
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def has_cuda_driver() -> bool:
    """Whether NVIDIA's driver can be loaded; whether anything can compute on it is a longer question."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def cuda_obstacles() -> list[str]:
    """What keeps this machine from computing on CUDA; empty if nothing does.

    The order is that of repair: driver, torch, ONNX Runtime.
    """
    obstacles = []
    if not has_cuda_driver():
        obstacles.append("no NVIDIA driver (libcuda.so.1 cannot be loaded)")
    import torch  # noqa: PLC0415 - takes a second, and only those who ask for a device need it

    if torch.version.cuda is None:
        obstacles.append(f"torch {torch.__version__} is built without CUDA")
    elif not torch.cuda.is_available():
        obstacles.append(f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no usable GPU")
    distributions = onnxruntime_distributions()
    if len(distributions) > 1:
        obstacles.append(f"{' and '.join(distributions)} are both installed and overwrite each other: uninstall both, "
                         "then install onnxruntime-gpu")  # fmt: skip
    import onnxruntime  # noqa: PLC0415 - as above

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        obstacles.append(f"{distributions[0] if distributions else 'onnxruntime'} has no CUDA provider")
    return obstacles


def choose_device(asked: str) -> Device:
    """The device for a setting `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        ConfigurationError: if CUDA is asked for and does not work; the message lists what is missing.
    """
    if asked == "cpu":
        return Device("cpu")
    obstacles = cuda_obstacles()
    index = int(asked.partition(":")[2] or 0)
    if not obstacles:
        import torch  # noqa: PLC0415 - loaded by cuda_obstacles already

        if index >= torch.cuda.device_count():
            obstacles = [f"there is no GPU {index}: {torch.cuda.device_count()} found"]
    if not obstacles:
        return Device("cuda", index)
    if asked == "auto":
        return Device("cpu", note=f"no CUDA: {obstacles[0]}")
    raise ConfigurationError(f"ATTENTION_DEVICE={asked}, but " + "; ".join(obstacles))
