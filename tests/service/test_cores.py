"""Cores counted over processes."""

import pytest

from service.cores import Cores


def test_a_core_is_idle_until_each_has_something_to_compute():
    cores = Cores(2)

    assert cores.idle
    with cores.computing():
        assert cores.idle
        with cores.computing():
            assert not cores.idle
        assert cores.idle


def test_what_another_process_computes_on_is_not_idle():
    shared = memoryview(bytearray(2))
    one, other = Cores(2, shared, 0), Cores(2, shared, 1)

    with one.computing(), other.computing():
        assert not one.idle
        assert not other.idle
    assert list(shared) == [0, 0]


def test_a_computation_that_fails_gives_its_core_back():
    cores = Cores(1)

    with pytest.raises(ZeroDivisionError), cores.computing():
        raise ZeroDivisionError

    assert cores.idle


def test_a_process_that_starts_anew_computes_nothing():
    """Whatever the one before it at its place left behind."""
    shared = memoryview(bytearray(b"\1\7"))
    cores = Cores(2, shared, 1)

    assert cores.idle
    assert list(shared) == [1, 0]
