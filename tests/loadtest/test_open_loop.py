"""What a stalled service looks like, from outside and from inside of a closed loop."""

import json
import socket
import threading
import time
from typing import ClassVar

import numpy as np
import pytest

from loadtest.samples import Samples, merge
from tests.loadtest.running import Handler, command, locust, serving, started

RATE = 100
STALL_S = 0.6
CONNECTIONS = 4


class Stalling(Handler):
    """Answers anything with anything, at once; but from the 50th request on nobody is answered for STALL_S."""

    counted: ClassVar[list[int]]
    lock: ClassVar[threading.Lock]

    def answer(self, request):
        with self.lock:
            self.counted.append(1)
            if len(self.counted) == 50:
                time.sleep(STALL_S)
        return {}


class Quick(Handler):
    """Answers anything with anything."""

    def answer(self, request):
        return {}


def stalled(tmp_path, *arguments):
    """Samples of a run against such a service, and when its stall began and ended: nothing is answered meanwhile."""
    Stalling.counted, Stalling.lock = [], threading.Lock()
    file = tmp_path / "run.npz"
    options = ["JsonUser", "--models", "lesson", "--tokens", "1", "--check-every", "0", "-u", str(CONNECTIONS)]

    with serving(Stalling) as url:
        result = locust(url, *options, "--samples", str(file), *arguments, seconds=3)

    assert result.returncode == 0, result.stdout + result.stderr
    samples = Samples.load(file)
    done = np.sort(samples.done_s)
    last = np.diff(done).argmax()
    began, ended = done[last], done[last + 1]
    assert ended - began > 0.9 * STALL_S
    return samples, began, ended


def test_a_stall_shows_in_everything_that_was_due_meanwhile(tmp_path):
    """Each waits for the stall's end, and then for those before it, as whoever comes by chance would."""
    samples, began, ended = stalled(tmp_path, "--rate", str(RATE))

    assert samples.ok.all()
    np.testing.assert_allclose(np.diff(samples.due_s[np.argsort(samples.due_s)]), 1 / RATE, atol=1e-6)
    slow = (samples.due_s > began) & (samples.due_s < ended - 0.15)
    assert slow.sum() == pytest.approx(RATE * (ended - began - 0.15), abs=2)
    assert (samples.latency_s[slow] > 0.14).all()
    assert np.percentile(samples.latency_s, 99) > 0.9 * STALL_S
    # More were due than there are connections: those waited here, and their wait counts.
    assert ((samples.sent_s - samples.due_s)[slow] > 0.1).sum() >= slow.sum() - CONNECTIONS


def test_a_closed_loop_sees_a_stall_once_for_each_connection(tmp_path):
    """Nobody asks while everybody waits: that is what is wrong with percentiles of a closed loop."""
    samples, _, ended = stalled(tmp_path, "-r", "2")  # the last one comes a second and a half after the first

    np.testing.assert_array_equal(samples.due_s, samples.sent_s)
    assert samples.due_s.min() >= 0
    met = (samples.due_s < ended - 0.05) & (samples.done_s >= ended)
    assert 1 <= met.sum() <= CONNECTIONS


def test_what_is_due_and_never_sent_counts(tmp_path):
    """A service that answers nothing has not a good percentile, it has none."""

    over = threading.Event()

    class Silent(Handler):
        def answer(self, request):
            over.wait()
            return {}

    file = tmp_path / "run.npz"
    options = ["JsonUser", "-u", "2", "--rate", "20", "--stop-timeout", "1", "--samples", str(file)]
    with serving(Silent) as url:
        result = locust(url, *options, seconds=2)
        over.set()

    samples = Samples.load(file)
    assert result.returncode == 1
    assert not samples.ok.any()
    counts = {samples.names[i]: count for i, count in enumerate(np.bincount(samples.name))}
    in_flight = sum(count for name, count in counts.items() if name.startswith("json "))
    assert in_flight == 2
    assert counts["not sent"] == len(samples) - 2 > 2
    np.testing.assert_allclose(np.diff(np.sort(samples.due_s)), 1 / 20, atol=1e-6)
    assert (samples.latency_s > 0.9).all()
    assert "not sent: due, but no connection was free until the end" in result.stdout + result.stderr


def test_a_shape_changes_the_rate(tmp_path):
    """In an open loop the load is the rate; connections are there from the start."""
    file = tmp_path / "run.npz"
    options = ["JsonUser", "--models", "lesson", "--tokens", "1", "--check-every", "0", "--samples", str(file)]
    with serving(Quick) as url:
        result = locust(url, *options, "--rate", "50", "--shape", "steps", "--levels", "2", seconds=4)

    assert result.returncode == 0, result.stdout + result.stderr
    gaps = np.diff(np.sort(Samples.load(file).due_s))
    changed = (gaps < 0.03).argmax()
    assert 20 < changed < 80
    np.testing.assert_allclose(gaps[:changed], 1 / 25, atol=1e-6)
    np.testing.assert_allclose(gaps[changed:], 1 / 50, atol=1e-6)


def test_a_ramp_ends_by_itself_and_says_where_the_knee_is(tmp_path):
    """Here, in the first level: nobody answers in a microsecond."""
    options = ["JsonUser", "--models", "lesson", "--tokens", "1", "--check-every", "0"]
    with serving(Quick) as url:
        result = locust(url, *options, "--shape", "ramp", "--levels", "10", "--max-p99-ms", "0", seconds=20)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "ramp: the knee is at less than the first level; at 1 users: " in result.stderr


def test_workers_share_the_rate_and_the_master_has_the_sum(tmp_path):
    """Two generators are one load: nothing is sent twice, and nothing is lost when they are told to end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    # Options after --worker are Locust's own: what is sent and how is told by the master.
    worker = [*command(), "--worker", "--master-host", "127.0.0.1", "--master-port", port]
    test = ["JsonUser", "--models", "lesson", "--tokens", "1", "--check-every", "0", "-u", "4"]
    test += ["--rate", "40", "-t", "4s", "--samples", "run.npz", "--json-file", "stats"]

    with serving(Quick) as url:
        master = [*command(), "--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
        master += ["--expect-workers", "2", "--host", url, *test]
        processes = [started(each, tmp_path) for each in (master, worker, worker)]
        outputs = [process.communicate(timeout=60)[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == ["run.worker0.npz", "run.worker1.npz"]
    parts = [Samples.load(path) for path in tmp_path.glob("*.npz")]
    counted = sum(entry["num_requests"] for entry in json.loads((tmp_path / "stats.json").read_text()))
    assert len(merge(parts)) == counted
    for part in parts:
        np.testing.assert_allclose(np.diff(np.sort(part.due_s)), 2 / 40, atol=1e-6)
    assert sorted(part.due_s.min() for part in parts) == pytest.approx([0, 1 / 40])
