"""The service's own counters: `/metrics` before and after a measurement, and what lies between."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from loadtest.bench.http import Failed
from loadtest.bench.measure import STAGES

OWN_ROUTES: Final = ("/metrics", "/healthz/")
"""What watches a service, and is no load."""
SETTLE_S: Final = 2.0
"""How long the counters may lag behind the last answer."""
TIMEOUT_S: Final = 10.0

Labels = tuple[tuple[str, str], ...]
# Asked directly: a proxy of the environment is not between the load and the service either.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Counters:
    """The samples of a page of metrics, or how much they grew between two.

    Attributes:
        values: by name and sorted labels.
    """

    values: Mapping[tuple[str, Labels], float]

    @classmethod
    def of(cls, page: str) -> "Counters":
        """Read a page in Prometheus' text format.

        Raises:
            Failed: if it is not one of this service.
        """
        try:
            samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        except ValueError as error:
            raise Failed(f"/metrics is not in Prometheus' format: {error}") from error
        found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
        if not any(name == "attention_requests_received_total" for name, _ in found):
            raise Failed("/metrics has no attention_requests_received_total, so it is not of this service")
        return cls(found)

    def since(self, before: "Counters") -> "Counters":
        """How much each grew."""
        return Counters({key: value - before.values.get(key, 0.0) for key, value in self.values.items()})

    def each(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of every sample of that name."""
        for (found, labels), value in self.values.items():
            if found == name:
                yield dict(labels), value

    def total(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name that have these labels."""
        return sum(value for found, value in self.each(name) if labels.items() <= found.items())

    def requests(self) -> int:
        """Requests that were answered, without those that only watch."""
        return round(
            sum(
                value
                for labels, value in self.each("attention_requests_total")
                if not labels["route"].startswith(OWN_ROUTES) and labels["outcome"] != "cancelled"
            )
        )

    def stage_means_ms(self) -> dict[str, float]:
        """Mean time of an inference request in each stage, ms; empty if there was none."""
        name = "attention_stage_duration_seconds"
        counts = {stage: self.total(f"{name}_count", stage=stage) for stage in STAGES}
        return {
            f"{stage}_ms": self.total(f"{name}_sum", stage=stage) / count * 1e3
            for stage, count in counts.items()
            if count
        }

    def batches(self) -> dict[str, int]:
        """Computed batches by how many sequences they held: `1`, `2`, `3-4`, `5-8`, …; up to the largest there was."""
        cumulative: dict[float, float] = {}
        for labels, value in self.each("attention_batch_sequences_bucket"):
            edge = float(labels["le"])
            cumulative[edge] = cumulative.get(edge, 0.0) + value
        found, below, before = {}, 0.0, 0
        for edge in sorted(cumulative):
            first = before + 1
            label = f"{first}+" if edge == float("inf") else str(int(edge)) if edge == first else f"{first}-{int(edge)}"
            found[label] = round(cumulative[edge] - below)
            below, before = cumulative[edge], int(edge) if edge != float("inf") else before
        last = max((at for at, count in enumerate(found.values()) if count), default=-1)
        return dict(list(found.items())[: last + 1])

    def mean_batch(self) -> float:
        """Sequences of a computed batch; NaN if there was none."""
        count = self.total("attention_batch_sequences_count")
        return self.total("attention_batch_sequences_sum") / count if count else float("nan")

    def about(self) -> dict[str, str]:
        """What the service says of itself: versions, and what its backends truly run on."""
        found: dict[str, str] = {}
        for labels, _ in self.each("attention_build_info"):
            found |= labels
        for labels, _ in self.each("attention_backend_info"):
            backend = labels.pop("backend")
            found[f"backend {backend}"] = ", ".join(labels[name] for name in sorted(labels))
        if workers := self.total("attention_workers"):
            found["workers"] = f"{workers:g}"
        if slots := self.total("attention_slots"):
            found["compute slots"] = f"{slots:g}"
        return found


def read(url: str) -> Counters:
    """The counters now.

    Raises:
        Failed: if the service does not show them.
    """
    try:
        with _DIRECT.open(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
            return Counters.of(answer.read().decode())
    except (urllib.error.URLError, OSError) as error:
        raise Failed(f"{url}/metrics cannot be read: {error}") from error


def grown(url: str, before: Counters, requests: int) -> Counters:
    """How much they grew since `before`, once they count as many requests, or after SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while (found := read(url).since(before)).requests() < requests and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
