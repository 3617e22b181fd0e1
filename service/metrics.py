"""Every metric of the service: names, labels and buckets in one class, one registry per application."""

import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.gc_collector import GCCollector

from service.tallies import LoopCounter, LoopHistogram

LATENCY_BUCKETS = (
    50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Seconds: from 50 µs, where a small request's stages are, to 10 s."""

SIZE_BUCKETS = tuple(float(1 << i) for i in range(15))
"""1 to 16,384, in powers of two: sequences and tokens of a batch."""

STAGES = ("decode", "queue", "compute", "encode")

REJECTIONS = ("requests", "sequences", "tokens", "bytes", "body", "rate", "draining")
"""Why a request can be refused for lack of room or time."""

OUTCOMES = ("ok", "invalid", "rejected", "expired", "cancelled", "failed")
"""How a request can end. Every received request ends in exactly one."""

SHADOW_OUTCOMES = ("compared", "skipped", "failed")
"""What became of a sequence that was sampled to be computed again."""


def package_version() -> str:
    """The installed version of this project, or `unknown` where it runs from a bare checkout."""
    try:
        return version("self-attention-service")
    except PackageNotFoundError:
        return "unknown"


class Metrics:
    """The service's own metrics in `registry`, beside those of the process and the garbage collector.

    What every request is counted in is counted in the event loop's thread only.
    """

    def __init__(self) -> None:
        """Make a new registry with every metric at zero."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self.received = LoopCounter(
            "attention_requests_received",
            "Requests whose headers have been read, over HTTP and gRPC.",
            registry=registry,
        )
        self.requests = LoopCounter(
            "attention_requests",
            "Requests that ended, by route template, method, status and outcome "
            f"({', '.join(OUTCOMES)}). Sums to attention_requests_received_total less attention_requests_in_progress.",
            ["route", "method", "status", "outcome"],
            registry=registry,
        )
        self.in_progress = Gauge(
            "attention_requests_in_progress", "Requests received and not ended.", registry=registry
        )
        self._in_progress = 0
        self.watch(self.in_progress, lambda: self._in_progress)
        self.duration = LoopHistogram(
            "attention_request_duration_seconds",
            "From the request's headers to the last byte of the answer.",
            ["route"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.stage = LoopHistogram(
            "attention_stage_duration_seconds",
            f"Time of an answered inference request in each stage ({', '.join(STAGES)}).",
            ["stage"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.batch_sequences = LoopHistogram(
            "attention_batch_sequences",
            "Sequences of a computed batch.",
            ["backend"],
            buckets=SIZE_BUCKETS,
            registry=registry,
        )
        self.batch_tokens = LoopHistogram(
            "attention_batch_tokens",
            "Tokens of a computed batch, without padding.",
            ["backend"],
            buckets=SIZE_BUCKETS,
            registry=registry,
        )
        self.padded_tokens = LoopCounter(
            "attention_padded_tokens",
            "Padding tokens computed beside the real ones; 0 on a CPU, where nothing is padded.",
            ["backend"],
            registry=registry,
        )
        self.queued = Gauge(
            "attention_queue_requests",
            "Accepted requests of which some work waits for a compute slot.",
            registry=registry,
        )
        self.queued_sequences = Gauge(
            "attention_queue_sequences", "Sequences that wait for a compute slot.", registry=registry
        )
        self.inflight_bytes = Gauge(
            "attention_inflight_bytes", "Bytes in and out of accepted, unanswered requests.", registry=registry
        )
        self.inflight_tokens = Gauge(
            "attention_inflight_tokens", "Tokens of accepted, unanswered requests.", registry=registry
        )
        self.busy_slots = Gauge("attention_busy_slots", "Compute slots at work.", registry=registry)
        self.slots = Gauge("attention_slots", "Compute slots there are.", registry=registry)
        self.rejected = Counter(
            "attention_rejected", "Requests refused for lack of room or time, by reason.", ["reason"], registry=registry
        )
        self.expired = Counter(
            "attention_expired",
            "Requests that passed their deadline; work of theirs that is still queued is not computed.",
            registry=registry,
        )
        self.cancelled = Counter(
            "attention_cancelled",
            "Accepted requests whose client went away; queued work of theirs is not computed.",
            registry=registry,
        )
        self.batch_failures = Counter(
            "attention_batch_failures",
            "Runs of a backend that raised; the batch is halved and tried again.",
            ["backend"],
            registry=registry,
        )
        self.parity = Gauge(
            "attention_parity_difference",
            "Largest difference at load, relative to the largest value, between a backend and another.",
            ["model", "version", "pair"],
            registry=registry,
        )
        self.shadow_difference = Gauge(
            "attention_shadow_difference",
            "Largest difference since start, relative to the largest value, between answers and the same computed "
            "again on another backend.",
            ["model", "version", "pair"],
            registry=registry,
        )
        self.shadow_sequences = Counter(
            "attention_shadow_sequences",
            f"Answered sequences sampled to be computed again, by outcome ({', '.join(SHADOW_OUTCOMES)}).",
            ["outcome"],
            registry=registry,
        )
        self._largest_shadow: dict[tuple[str, str, str], float] = {}
        self.ready = Gauge("attention_ready", "1 while /healthz/ready answers 200.", registry=registry)
        self.workers = Gauge("attention_workers", "Worker processes that there are to be.", registry=registry)
        self.workers_ready = Gauge(
            "attention_workers_ready", "Worker processes whose own readiness check passes.", registry=registry
        )
        self.worker_restarts = Counter(
            "attention_worker_restarts", "Worker processes started in the place of one that ended.", registry=registry
        )
        self.engine_restarts = Counter(
            "attention_engine_restarts",
            "Engine processes started in the place of one that ended; 0 where each worker computes by itself.",
            registry=registry,
        )
        self.backend_info = Gauge(
            "attention_backend_info",
            "1 for each loaded backend, with what it truly runs on.",
            ["backend", "device", "provider", "dtype"],
            registry=registry,
        )
        self.gpu_memory = Gauge(
            "attention_gpu_memory_used_bytes", "GPU memory in use, by NVML index.", ["gpu"], registry=registry
        )
        self.gpu_utilisation = Gauge(
            "attention_gpu_utilisation_ratio", "GPU utilisation, 0..1, by NVML index.", ["gpu"], registry=registry
        )
        build = Info("attention_build", "Versions of the service and what it computes with.", registry=registry)
        build.info({"version": package_version(), "python": platform.python_version()} | _runtime_versions())
        # Whoever looks a child up by its labels pays more for that than for counting.
        self._ended = cache(self.requests.labels)
        self._duration_of = cache(self.duration.labels)
        self.stage_of = {stage: self.stage.labels(stage) for stage in STAGES}
        self.batch_sequences_of = cache(self.batch_sequences.labels)
        self.batch_tokens_of = cache(self.batch_tokens.labels)
        self.padded_tokens_of = cache(self.padded_tokens.labels)
        # A series that first appears with its first event hides that event from Prometheus' rate().
        for reason in REJECTIONS:
            self.rejected.labels(reason)
        for outcome in SHADOW_OUTCOMES:
            self.shadow_sequences.labels(outcome)

    def begun(self) -> None:
        """Count a request whose headers have been read."""
        self.received.inc()
        self._in_progress += 1

    def ended(self, route: str, method: str, status: str, outcome: str, elapsed_s: float) -> None:
        """Count a request that has ended, `elapsed_s` after its headers had been read."""
        self._in_progress -= 1
        self._ended(route, method, status, outcome).inc()
        self._duration_of(route).observe(elapsed_s)

    def set_parity(self, model: str, version: str, differences: Mapping[str, float]) -> None:
        """Publish how far apart a layer's backends are, by pair."""
        for pair, difference in differences.items():
            self.parity.labels(model, version, pair).set(difference)

    def add_shadow(self, model: str, version: str, pair: str, difference: float) -> None:
        """Publish how far apart two backends were for a sequence, if it is the most so far."""
        key = (model, version, pair)
        self._largest_shadow[key] = largest = max(difference, self._largest_shadow.get(key, 0.0))
        self.shadow_difference.labels(*key).set(largest)

    def forget_shadow(self, model: str, version: str) -> None:
        """A layer is gone, or another has taken its name: what was measured is not true of it."""
        for key in [key for key in self._largest_shadow if key[:2] == (model, version)]:
            del self._largest_shadow[key]
            self.shadow_difference.remove(*key)

    def watch(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Read `gauge` when it is scraped, not whenever its value changes."""
        gauge.set_function(read)


def _runtime_versions() -> dict[str, str]:
    found = {}
    for package in ("torch", "onnxruntime-gpu", "onnxruntime", "numpy"):
        try:
            found[package.replace("-", "_")] = version(package)
        except PackageNotFoundError:
            continue
    return found
