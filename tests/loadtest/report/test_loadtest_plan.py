import os

import pytest
from recorded import plan

from loadtest.report.cores import Cores, halves, on
from loadtest.report.plan import Slo, Subject, parse_ladder, parse_slo, subjects_of


@pytest.mark.parametrize(
    ("text", "slo"),
    [("p99=20ms", Slo(99, 20)), (" p99.9 = 0.5 s", Slo(99.9, 500)), ("p50=1.5ms", Slo(50, 1.5))],
)
def test_targets_are_read(text, slo):
    """In milliseconds, or in seconds."""
    assert parse_slo(text) == slo


@pytest.mark.parametrize("text", ["p99", "99=20ms", "p99=20", "p100=20ms", "p10=20ms", "p99=0ms", "p99=-1ms", ""])
def test_other_targets_are_refused(text):
    """With one that would be read."""
    with pytest.raises(ValueError, match="such as p99=20ms"):
        parse_slo(text)


def test_a_target_is_written_as_people_do():
    """Without zeros."""
    assert str(parse_slo("p99.9=0.5s")) == "p99.9 ≤ 500 ms"


def test_every_backend_is_measured_on_every_device():
    """With a name that TOML takes as it is."""
    assert [s.name for s in subjects_of(["eager", "onnx"], ["auto"], None)] == ["eager", "onnx"]
    assert [s.name for s in subjects_of(["onnx"], ["cpu", "cuda:1"], None)] == ["onnx-cpu", "onnx-cuda1"]
    assert subjects_of(["onnx"], ["auto"], "http://host:1/") == (Subject("service", url="http://host:1"),)


@pytest.mark.parametrize(
    ("compare", "devices", "url", "said"),
    [
        (["onix"], ["auto"], None, "'onix': there are eager, onnx, reference"),
        (["onnx", "onnx"], ["auto"], None, "each once"),
        (["onnx"], ["cpu", "cpu"], None, "each once"),
        (["onnx"], ["auto"], "host:1", "give an address"),
    ],
)
def test_who_cannot_be_measured_is_said(compare, devices, url, said):
    """Before anything is started."""
    with pytest.raises(ValueError, match=said):
        subjects_of(compare, devices, url)


def test_connections_are_gone_through_from_the_fewest_on():
    """Each number once."""
    assert parse_ladder("16,1, 4,4") == (1, 4, 16)
    for text in ("0", "a", "", "1,,2", "-1"):
        with pytest.raises(ValueError, match="positive whole numbers"):
            parse_ladder(text)


def test_a_slow_service_is_asked_for_longer():
    """For some requests beyond the percentile, within reason; and a queue must have the time to show."""
    asked = plan(seconds=2, slo=Slo(99, 50))

    assert asked.seconds_for(1000) == 2
    assert asked.seconds_for(1000, longer=True) == 4
    assert asked.seconds_for(50) == 6
    assert asked.seconds_for(1) == 10
    assert plan(seconds=1, slo=Slo(99, 2000)).seconds_for(1000) == 8


def test_cores_are_halved_between_services_and_generator():
    """And given back."""
    before = os.sched_getaffinity(0)
    found = halves(True)
    if len(before) > 1:
        assert set(found.service) | set(found.generator) == before
        assert len(found.service) == len(before) // 2
        with on(found.generator):
            assert os.sched_getaffinity(0) == set(found.generator)
    assert os.sched_getaffinity(0) == before
    with on(()):
        assert os.sched_getaffinity(0) == before
    assert halves(False) == Cores()


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (Cores((0, 1), (2, 3)), "services on cores 0-1, generator on cores 2-3"),
        (Cores((0,), (3,)), "services on core 0, generator on core 3"),
        (Cores((0, 2), (4, 6)), "services on cores 0, 2, generator on cores 4, 6"),
        (Cores(), "not pinned: services and generator share all cores"),
    ],
)
def test_who_ran_where_is_said(cores, said):
    """In every report."""
    assert str(cores) == said
