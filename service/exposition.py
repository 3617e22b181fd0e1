"""Metrics of several processes as one: taken, put together and written."""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Family = dict[str, Any]
"""A metric as JSON can hold it: `name`, `documentation`, `type`, and `samples` of [name, labels, value]."""

LARGEST = frozenset(
    {
        "attention_backend_info",
        "attention_build",
        "attention_gpu_memory_used_bytes",
        "attention_gpu_utilisation_ratio",
        "attention_parity_difference",
        "attention_ready",
        "attention_shadow_difference",
        "attention_workers",
        "process_max_fds",
    }
)
"""Metrics of which all processes say the same, or the largest is what matters. Others are added up."""

SMALLEST = frozenset({"process_start_time_seconds"})

CUMULATIVE = frozenset({"counter", "histogram", "summary"})


def snapshot(registry: CollectorRegistry) -> list[Family]:
    """Every metric as it is now."""
    return [
        {
            "name": metric.name,
            "documentation": metric.documentation,
            "type": metric.type,
            "samples": [[sample.name, sample.labels, sample.value] for sample in metric.samples],
        }
        for metric in registry.collect()
    ]


def merged(snapshots: Sequence[Sequence[Family]]) -> list[Family]:
    """One snapshot of several: each sample is the sum, or what `LARGEST` and `SMALLEST` say."""
    families: dict[str, Family] = {}
    found: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for family in (family for taken in snapshots for family in taken):
        name = family["name"]
        families.setdefault(name, family)
        samples = found.setdefault(name, {})
        for sample, labels, value in family["samples"]:
            key = (sample, tuple(sorted(labels.items())))
            samples[key] = _together(name, sample, samples[key], value) if key in samples else value
    return [
        family | {"samples": [[sample, dict(labels), value] for (sample, labels), value in found[name].items()]}
        for name, family in families.items()
    ]


def _together(family: str, sample: str, one: float, other: float) -> float:
    if family in LARGEST:
        return max(one, other)
    if family in SMALLEST or sample.endswith("_created"):
        return min(one, other)
    return one + other


def departed(before: Sequence[Family], last: Sequence[Family]) -> list[Family]:
    """What is kept of processes that have ended: what they counted.

    Without it, counters would fall with every process that ends, and Prometheus would take that for a restart of all.
    Requests that such a process had not answered were answered in its stead, or are lost: they count as failed.

    Args:
        before: of those that ended earlier.
        last: the last snapshot of the one that has ended now.
    """
    kept = [family for family in last if family["type"] in CUMULATIVE]
    unanswered = sum(value for family in last if family["name"] == "attention_requests_in_progress"
                     for _, _, value in family["samples"])  # fmt: skip
    if unanswered:
        labels = {"route": "unmatched", "method": "other", "status": "503", "outcome": "failed"}
        lost = [family | {"samples": [["attention_requests_total", labels, unanswered]]}
                for family in kept if family["name"] == "attention_requests"]  # fmt: skip
        kept = merged([kept, lost])
    return merged([before, kept])


def written(families: Iterable[Family]) -> bytes:
    """In Prometheus' text format."""
    return generate_latest(_Collected(families))


class _Collected(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            metric = Metric(family["name"], family["documentation"], family["type"])
            for sample, labels, value in family["samples"]:
                metric.add_sample(sample, labels, value)
            yield metric
