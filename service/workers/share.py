"""How many workers there are, and what of the machine and of the limits each of them gets."""

import socket
import sys

from service.devices import available_cores, has_cuda_driver
from service.errors import ConfigurationError
from service.settings import Settings

MOST_BY_DEFAULT = 8
"""Workers started on a CPU unless more are asked for: each holds the libraries, and the models, by itself."""


def worker_count(settings: Settings) -> int:
    """As set; else one per core that this process may use, or one where a GPU may compute.

    Raises:
        ConfigurationError: if several are asked for where they cannot work.
    """
    possible = sys.platform == "linux" and hasattr(socket, "SOCK_SEQPACKET")
    if settings.workers > 1 and not possible:
        raise ConfigurationError(f"ATTENTION_WORKERS={settings.workers}: several workers need Linux")
    if settings.workers:
        return settings.workers
    return min(available_cores(), MOST_BY_DEFAULT) if possible and not _on_gpu(settings) else 1


def engine_apart(settings: Settings, count: int) -> bool:
    """Whether `count` workers let one process of its own compute.

    Raises:
        ConfigurationError: if that is asked for where it cannot work.
    """
    if settings.engine == "process" and sys.platform != "linux":
        raise ConfigurationError("ATTENTION_ENGINE=process: an engine in a process of its own needs Linux")
    return settings.engine == "process" or (settings.engine == "auto" and count > 1 and _on_gpu(settings))


def _on_gpu(settings: Settings) -> bool:
    return settings.device.startswith("cuda") or (settings.device == "auto" and has_cuda_driver())


def share(settings: Settings, count: int) -> Settings:
    """What one of `count` workers gets: an equal part of the compute threads and of what may be in flight."""

    def part(total: int) -> int:
        return -(-total // count)

    threads = settings.compute_threads
    if not threads and not settings.device.startswith("cuda"):
        threads = available_cores()
    return settings.model_copy(
        update={
            "workers": count,
            "compute_threads": max(1, threads // count),
            "max_inflight_requests": part(settings.max_inflight_requests),
            "max_inflight_sequences": part(settings.max_inflight_sequences),
            "max_inflight_tokens": part(settings.max_inflight_tokens),
            "max_inflight_mib": part(settings.max_inflight_mib),
        }
    )
