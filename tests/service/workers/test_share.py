"""How many workers, and what each gets."""

import pytest

from service.errors import ConfigurationError
from service.settings import Settings
from service.workers import share as module
from service.workers.share import engine_apart, share, worker_count


@pytest.fixture
def machine(monkeypatch):
    """A machine of so many cores, with or without a GPU's driver."""

    def make(cores, *, driver=False, platform="linux"):
        monkeypatch.setattr(module, "available_cores", lambda: cores)
        monkeypatch.setattr(module, "has_cuda_driver", lambda: driver)
        monkeypatch.setattr(module.sys, "platform", platform)

    return make


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 2), (8, 8), (64, 8)])
def test_by_default_there_is_one_per_core_of_a_cpu_up_to_a_limit(machine, cores, count):
    machine(cores)

    assert worker_count(Settings(device="cpu")) == worker_count(Settings()) == count


def test_by_default_there_is_one_where_a_gpu_may_compute(machine):
    machine(8, driver=True)

    assert worker_count(Settings()) == worker_count(Settings(device="cuda:1")) == 1
    assert worker_count(Settings(device="cpu")) == 8


def test_what_is_asked_for_is_had(machine):
    machine(2, driver=True)

    assert worker_count(Settings(workers=5)) == 5


def test_elsewhere_than_on_linux_there_is_one(machine):
    machine(8, platform="darwin")

    assert worker_count(Settings()) == 1
    with pytest.raises(ConfigurationError, match="ATTENTION_WORKERS=2: several workers need Linux"):
        worker_count(Settings(workers=2))


@pytest.mark.parametrize(("cores", "count", "threads"), [(2, 2, 1), (2, 1, 2), (16, 8, 2), (2, 3, 1), (7, 2, 3)])
def test_cores_are_divided(machine, cores, count, threads):
    machine(cores)

    assert share(Settings(device="cpu"), count).compute_threads == threads


def test_threads_that_were_asked_for_are_divided(machine):
    machine(2)

    assert share(Settings(compute_threads=6), 3).compute_threads == 2


def test_limits_of_what_is_in_flight_are_divided_and_never_fall_to_nothing(machine):
    machine(2)
    settings = Settings(max_inflight_requests=3, max_inflight_sequences=10, max_inflight_tokens=1, max_inflight_mib=9)

    part = share(settings, 2)

    limits = (part.max_inflight_requests, part.max_inflight_sequences, part.max_inflight_tokens, part.max_inflight_mib)
    assert limits == (2, 5, 1, 5)
    assert part.max_body_mib == settings.max_body_mib
    assert part.workers == 2


def test_several_workers_share_one_engine_on_a_gpu_only(machine):
    """On a CPU it would be one event loop for all that computes."""
    machine(8, driver=True)

    assert engine_apart(Settings(), 2)
    assert engine_apart(Settings(device="cuda:1"), 2)
    assert not engine_apart(Settings(device="cuda"), 1)
    assert not engine_apart(Settings(device="cpu"), 2)
    machine(8)
    assert not engine_apart(Settings(), 2)


def test_where_the_engine_is_may_be_said(machine):
    machine(8, driver=True)

    assert not engine_apart(Settings(engine="worker"), 2)
    assert engine_apart(Settings(engine="process", device="cpu"), 1)
    machine(8, platform="darwin")
    with pytest.raises(ConfigurationError, match="ATTENTION_ENGINE=process"):
        engine_apart(Settings(engine="process"), 1)
