from dataclasses import fields, replace

import numpy as np
import pytest

from loadtest.samples import STAGES, Samples, merge


def samples(count=3, *, started_at=100.0, names=("a", "b"), errors=("503 queue full",), **changes):
    """Requests due 1 s apart, sent 0.25 s and done 0.5 s later; the last of them failed."""
    due = np.arange(count, dtype=float)
    columns = {
        "due_s": due,
        "sent_s": due + 0.25,
        "done_s": due + 0.5,
        "name": [i % len(names) for i in range(count)],
        "ok": [i < count - 1 for i in range(count)],
        "status": [200 if i < count - 1 else 503 for i in range(count)],
        "bytes_in": [10] * count,
        "bytes_out": [20] * count,
        **{stage: [float("nan")] * count for stage in STAGES},
        "error": [-1 if i < count - 1 else 0 for i in range(count)],
    }
    rest = {"names": names, "errors": errors, "client_cpu_s": 0.5, "elapsed_s": 4.0, "started_at": started_at}
    return replace(Samples.of(columns, **rest), **changes)


def test_what_is_saved_is_read_again(tmp_path):
    """Every field with its kind, under exactly the name that was given."""
    path = tmp_path / "run.samples"
    written = samples()

    written.save(path)
    read = Samples.load(path)

    assert [each.name for each in tmp_path.iterdir()] == ["run.samples"]
    for field in fields(Samples):
        before, after = getattr(written, field.name), getattr(read, field.name)
        np.testing.assert_array_equal(before, after)
        assert np.asarray(before).dtype == np.asarray(after).dtype, field.name


def test_a_test_without_requests_has_samples_too(tmp_path):
    """A service that was down all the time is a result."""
    nothing = samples(0, names=(), errors=())

    nothing.save(tmp_path / "nothing.npz")

    assert len(Samples.load(tmp_path / "nothing.npz")) == 0
    assert len(merge([nothing, samples()])) == 3


def test_latency_counts_from_when_a_request_was_due():
    """A connection that was not free is a wait like any other."""
    np.testing.assert_array_equal(samples().latency_s, [0.5, 0.5, 0.5])
    np.testing.assert_array_equal(samples().service_s, [0.25, 0.25, 0.25])


def test_generators_are_merged_on_one_clock():
    """Each has its own origin, its own names and its own errors."""
    first = samples(2, started_at=100.0, names=("a", "b"), errors=("slow",))
    second = samples(2, started_at=100.5, names=("b", "c"), errors=("full",))

    both = merge([second, first])

    np.testing.assert_array_equal(both.due_s, [0, 0.5, 1, 1.5])
    assert [str(both.names[i]) for i in both.name] == ["a", "b", "b", "c"]
    assert [None if i < 0 else str(both.errors[i]) for i in both.error] == [None, None, "slow", "full"]
    assert (both.started_at, both.elapsed_s, both.client_cpu_s) == (100.0, 4.5, 1.0)
    with pytest.raises(ValueError, match="at least one"):
        merge([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ok": np.array([True])}, r"ok has shape \(1,\), expected \(3,\)"),
        ({"name": np.array([0, 1, 2], np.int32)}, "name points outside of its 2 texts"),
        ({"error": np.array([0, -2, 0], np.int32)}, "error points outside of its 1 texts"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, message):
    """A report of half of the requests would look like a report."""
    with pytest.raises(ValueError, match=message):
        samples(**change)


def test_another_file_is_refused_by_name(tmp_path):
    """People mistake one file for another; the message says which and why."""
    path = tmp_path / "notes.npz"
    path.write_text("not an archive")
    with pytest.raises(ValueError, match=r"notes\.npz is no file of samples"):
        Samples.load(path)

    np.savez(path, due_s=np.zeros(1))
    with pytest.raises(ValueError, match=r"notes\.npz has no sent_s"):
        Samples.load(path)
