"""Metrics of several processes as one."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from service.exposition import LARGEST, departed, merged, snapshot, written
from service.metrics import Metrics


def process(requests, seconds, difference=0.0):
    """The metrics of a process that has had so many requests."""
    registry = CollectorRegistry()
    Counter("attention_requests", "Requests.", ["status"], registry=registry).labels("200").inc(requests)
    Gauge("attention_requests_in_progress", "Requests.", registry=registry).set(1)
    Gauge("attention_parity_difference", "Difference.", ["pair"], registry=registry).labels("a-b").set(difference)
    histogram = Histogram("attention_duration_seconds", "Time.", buckets=(1.0, 2.0), registry=registry)
    for value in seconds:
        histogram.observe(value)
    return snapshot(registry)


def value(families, sample, **labels):
    found = [v for family in families for name, has, v in family["samples"] if name == sample and has == labels]
    assert len(found) == 1, (sample, labels, found)
    return found[0]


def test_one_process_is_written_as_prometheus_client_writes_it():
    metrics = Metrics()
    metrics.requests.labels("/v1/attention", "POST", "200", "ok").inc()
    metrics.duration.labels("/v1/attention").observe(0.003)

    taken = merged([snapshot(metrics.registry)])

    expected = generate_latest(metrics.registry).decode().splitlines()
    got = written(taken).decode().splitlines()
    assert [line.split(" ")[:3] for line in got if line[0] == "#"] == [
        line.split(" ")[:3] for line in expected if line[0] == "#"
    ]
    moving = ("process_", "python_gc")  # they change between two looks
    assert [line for line in got if not line.startswith(moving)] == [
        line for line in expected if not line.startswith(moving)
    ]


def test_what_was_counted_is_added_up():
    both = merged([process(3, [0.5, 1.5]), process(4, [5.0])])

    assert value(both, "attention_requests_total", status="200") == 7
    assert value(both, "attention_requests_in_progress") == 2
    assert value(both, "attention_duration_seconds_bucket", le="1.0") == 1
    assert value(both, "attention_duration_seconds_bucket", le="+Inf") == 3
    assert value(both, "attention_duration_seconds_sum") == 7


def test_of_what_all_measure_the_largest_counts():
    both = merged([process(0, [], 1e-7), process(0, [], 3e-7)])

    assert value(both, "attention_parity_difference", pair="a-b") == 3e-7


def test_a_counter_was_made_when_the_first_was():
    first, second = process(1, []), process(1, [])
    moments = [value(taken, "attention_requests_created", status="200") for taken in (first, second)]

    assert value(merged([second, first]), "attention_requests_created", status="200") == min(moments)


def test_a_counter_does_not_fall_when_a_process_ends():
    one, other = process(3, [0.5]), process(4, [5.0])

    after = merged([one, departed([], other)])

    assert value(after, "attention_requests_total", status="200") == 7
    assert value(after, "attention_duration_seconds_count") == 2
    assert value(after, "attention_requests_in_progress") == 1


def test_several_processes_can_end():
    gone = departed(departed([], process(3, [0.5])), process(4, [0.5]))

    assert value(gone, "attention_requests_total", status="200") == 7


def test_requests_that_ended_with_their_process_count_as_failed():
    """So that those received are still those that ended and those in progress."""
    gone = departed([], process(3, []))

    lost = {"route": "unmatched", "method": "other", "status": "503", "outcome": "failed"}
    assert value(gone, "attention_requests_total", **lost) == 1


def test_whatever_is_not_added_up_is_a_metric_that_there_is():
    names = {family["name"] for family in snapshot(Metrics().registry)}
    assert names >= {name for name in LARGEST if name.startswith("attention_")}


@pytest.mark.parametrize("name", ["attention_workers_ready", "attention_slots"])
def test_what_each_has_some_of_is_added_up(name):
    assert name not in LARGEST
