"""What a run was made on."""

import datetime
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    "self-attention-service",
    "numpy",
    "onnxruntime-gpu",
    "onnxruntime",
    "torch",
    "uvicorn",
    "uvloop",
    "orjson",
)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def facts() -> dict[str, str]:
    """Processor, cores, memory, versions, the date, and how busy the machine is; a busy one is warned of on stderr."""
    load = os.getloadavg()[0]
    if load > cores() / 2:
        sys.stderr.write(f"The machine is busy (load average {load:.1f}): the figures will be worth little.\n")
    found = {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "processor": _processor(),
        "load average before": f"{load:.1f}",
        "cores": f"{cores()} of {os.cpu_count()}",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "Python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    return _field("/proc/cpuinfo", "model name") or platform.processor() or "unknown"


def _memory() -> str:
    kib = _field("/proc/meminfo", "MemTotal")
    return f"{int(kib.split()[0]) / (1 << 20):.1f} GiB" if kib else "unknown"


def _field(file: str, name: str) -> str:
    """The first value of that name in a file of `name: value` lines; empty if there is none."""
    place = Path(file)
    lines = place.read_text().splitlines() if place.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")
