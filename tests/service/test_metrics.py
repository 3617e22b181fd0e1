import re

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import LATENCY_BUCKETS, OUTCOMES, SHADOW_OUTCOMES, SIZE_BUCKETS, STAGES, Metrics, package_version

OWN = [metric for metric in Metrics().registry.collect() if metric.name.startswith("attention_")]


def test_every_metric_of_the_class_is_in_its_registry():
    """One that is not registered is counted for nobody."""
    metrics = Metrics()
    registered = {metric.name for metric in metrics.registry.collect()}

    named = {name: value._name for name, value in vars(metrics).items() if hasattr(value, "_name")}

    assert len(named) == len(OWN) - 1, "all but `attention_build`, which is set once"
    assert set(named.values()) <= registered


@pytest.mark.parametrize("metric", OWN, ids=lambda metric: metric.name)
def test_a_metric_is_named_in_the_style_of_prometheus(metric):
    """Base units, spelt out; `_total` is the library's to add."""
    assert re.fullmatch(r"attention(_[a-z]+)+", metric.name)
    assert not re.search(r"_(total|count|sum|bucket|ms|millis\w*|micros\w*|us|mb|mib|kb|percent)$", metric.name)
    if "duration" in metric.name:
        assert metric.name.endswith("_seconds")


@pytest.mark.parametrize("metric", OWN, ids=lambda metric: metric.name)
def test_a_metric_says_what_it_is(metric):
    assert metric.documentation
    assert metric.documentation[0].isupper() or metric.documentation[0].isdigit()


def test_no_metric_is_there_twice():
    """BentoML#2286: duplicated series break the scrape."""
    names = [metric.name for metric in Metrics().registry.collect()]

    assert len(names) == len(set(names))


def filled():
    """Metrics with a sample for each label there is."""
    metrics = Metrics()
    metrics.received.inc()
    metrics.requests.labels("/v1/attention", "POST", "200", "ok").inc()
    metrics.duration.labels("/v1/attention").observe(0.003)
    metrics.stage.labels("decode").observe(0.0001)
    for histogram in (metrics.batch_sequences, metrics.batch_tokens):
        histogram.labels("onnx").observe(3)
    for counter in (metrics.padded_tokens, metrics.batch_failures):
        counter.labels("onnx").inc()
    metrics.rejected.labels("rate").inc()
    metrics.parity.labels("lesson", "1", 'a"b\\c\nd').set(1e-7)
    metrics.add_shadow("lesson", "1", "eager-onnx", float("inf"))
    metrics.backend_info.labels("onnx", "cpu", "CPUExecutionProvider", "float32").set(1)
    metrics.gpu_memory.labels("0").set(1)
    metrics.gpu_utilisation.labels("0").set(0.5)
    return metrics


def test_the_page_parses_and_every_series_is_there_once():
    page = generate_latest(filled().registry).decode()

    families = list(text_string_to_metric_families(page))

    series = [(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples]
    assert len(series) == len(set(series))
    assert all(family.documentation for family in families)
    assert {metric.name for metric in OWN} - {family.name for family in families} == {"attention_build"}
    assert "attention_build_info" in {family.name for family in families}
    parity = next(family for family in families if family.name == "attention_parity_difference")
    assert parity.samples[0].labels["pair"] == 'a"b\\c\nd'
    assert 'attention_shadow_difference{model="lesson",pair="eager-onnx",version="1"} +Inf' in page


def test_the_process_and_its_garbage_collector_are_on_the_page():
    names = {metric.name for metric in Metrics().registry.collect()}

    assert {"process_resident_memory_bytes", "process_open_fds", "python_gc_collections"} <= names


def test_every_stage_and_every_outcome_of_the_shadow_is_there_from_the_start():
    """A series that appears with its first sample makes rates lie."""
    registry = Metrics().registry

    for stage in STAGES:
        assert registry.get_sample_value("attention_stage_duration_seconds_count", {"stage": stage}) == 0
    for outcome in SHADOW_OUTCOMES:
        assert registry.get_sample_value("attention_shadow_sequences_total", {"outcome": outcome}) == 0


def test_metrics_of_two_applications_do_not_meet():
    """Tests and embedders make several in one process."""
    one, two = Metrics(), Metrics()

    one.received.inc()

    assert one.registry.get_sample_value("attention_requests_received_total") == 1
    assert two.registry.get_sample_value("attention_requests_received_total") == 0


def test_a_watched_gauge_is_read_at_every_scrape():
    metrics, value = Metrics(), [3]
    metrics.watch(metrics.queued, lambda: value[0])

    assert metrics.registry.get_sample_value("attention_queue_requests") == 3
    value[0] = 4
    assert metrics.registry.get_sample_value("attention_queue_requests") == 4


def test_build_information_names_the_runtimes():
    """The first question of every bug report."""
    (build,) = [metric for metric in Metrics().registry.collect() if metric.name == "attention_build"]

    labels = build.samples[0].labels
    assert labels["version"] == package_version()
    assert {"python", "torch", "numpy"} <= labels.keys()
    assert {"onnxruntime", "onnxruntime_gpu"} & labels.keys()


def test_buckets_rise_and_cover_what_is_measured():
    """Below 100 µs are the stages of a small request; above them the longest deadline of a usual one."""
    for buckets in (LATENCY_BUCKETS, SIZE_BUCKETS):
        assert list(buckets) == sorted(set(buckets))
    assert LATENCY_BUCKETS[0] <= 100e-6
    assert LATENCY_BUCKETS[-1] >= 10
    assert (SIZE_BUCKETS[0], SIZE_BUCKETS[-1]) == (1, 16_384)


def test_the_ways_a_request_can_end_are_documented_on_the_page():
    """`attention_requests_total` sums over them to what was received."""
    (requests,) = [metric for metric in OWN if metric.name == "attention_requests"]

    assert all(outcome in requests.documentation for outcome in OUTCOMES)
