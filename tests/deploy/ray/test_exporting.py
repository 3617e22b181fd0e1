"""What of a registry is handed to Ray."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.exposition import snapshot


def test_every_sample_of_ours_is_exported_and_nothing_else():
    pytest.importorskip("ray.serve", reason="Ray is not installed: `make test-ray` installs it")
    from deploy.ray.exporting import samples_of

    registry = CollectorRegistry()
    Counter("attention_requests", "Requests.", ["route"], registry=registry).labels("/v1").inc(3)
    Gauge("attention_oldest", "Not known.", registry=registry).set(float("nan"))
    Gauge("python_version", "Of others.", registry=registry).set(3)
    Histogram("attention_seconds", "How long.", buckets=(1, 2), registry=registry).observe(1.5)

    found = {(name, tuple(labels.items())): value for name, labels, value, _ in samples_of(snapshot(registry))}

    assert found == {
        ("attention_requests_total", (("route", "/v1"),)): 3,
        ("attention_seconds_bucket", (("le", "1.0"),)): 0,
        ("attention_seconds_bucket", (("le", "2.0"),)): 1,
        ("attention_seconds_bucket", (("le", "+Inf"),)): 1,
        ("attention_seconds_count", ()): 1,
        ("attention_seconds_sum", ()): 1.5,
    }
