"""The metrics of a replica, handed to Ray, whose agent on every node shows Prometheus those of all its replicas.

`/metrics` behind Serve's proxy would be that of whichever replica got the question.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from ray.util.metrics import Gauge

from deploy.ray.replica import labels
from service.exposition import Family, snapshot

log = logging.getLogger(__name__)

EVERY_S = 5.0
"""How often the numbers are handed over. Ray's agents take them every 10 s."""

Sample = tuple[str, dict[str, str], float, str]
"""Name, labels, value and description."""


def samples_of(families: Iterable[Family]) -> Iterator[Sample]:
    """What is exported: all samples of our own, buckets and counts of histograms among them."""
    for family in families:
        if family["name"].startswith("attention_"):
            for name, own, value in family["samples"]:
                if not name.endswith("_created") and math.isfinite(value):
                    yield name, dict(own), value, family["documentation"]


class Exporter:
    """Repeats a registry of prometheus-client as gauges of Ray's.

    Ray's own counters and histograms can be added to, not set, so everything is a gauge there: the same names, with
    `ray_` before them, and the same numbers, for which `rate` and `histogram_quantile` ask no type.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Of that registry."""
        self._registry, self._labels = registry, labels()
        self._gauges: dict[str, Gauge] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._export, snapshot(self._registry))
            except Exception:  # whatever Ray raises, requests are answered without metrics too
                log.exception("metrics could not be handed to Ray")
            await asyncio.sleep(EVERY_S)

    def _export(self, families: list[Family]) -> None:
        for name, own, value, description in samples_of(families):
            gauge = self._gauges.get(name)
            if gauge is None:
                gauge = self._gauges[name] = Gauge(name, description, tag_keys=(*own, *self._labels))
                gauge.set_default_tags(self._labels)
            gauge.set(value, own)
