"""What NVML says of the GPUs, read when metrics are scraped."""

import logging
from functools import partial
from typing import Any

from service.metrics import Metrics

log = logging.getLogger(__name__)


def watch_gpus(metrics: Metrics) -> int:
    """Let the GPU gauges read NVML.

    Returns:
        How many GPUs there are: 0 where there is no NVIDIA driver.
    """
    import pynvml  # noqa: PLC0415 - loads the driver's library, and only a GPU's owner has one

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        log.debug("no GPU metrics: %s", error)
        return 0
    for index in range(count):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        metrics.watch(metrics.gpu_memory.labels(str(index)), partial(_used_bytes, handle))
        metrics.watch(metrics.gpu_utilisation.labels(str(index)), partial(_utilisation, handle))
    return count


def _used_bytes(handle: Any) -> float:
    import pynvml  # noqa: PLC0415 - as above

    return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _utilisation(handle: Any) -> float:
    import pynvml  # noqa: PLC0415 - as above

    return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
