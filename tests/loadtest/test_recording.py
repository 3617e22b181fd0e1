import time

import numpy as np
import pytest

from loadtest.recording import Recorder, server_timing
from loadtest.wire import Answer

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n"
    b"server-timing: decode;dur=0.463, queue;dur=3.445, compute;dur=0.320, encode;dur=0.079\r\nx-request-id: 1"
)


def test_what_is_taken_down_becomes_samples():
    """Times count from the beginning, texts are told once."""
    recorder = Recorder()
    now = time.perf_counter()
    recorder.begin(now)

    for i in range(3):
        answer = None if i == 1 else Answer(200, HEAD, b"abc")
        failure = "no answer: it is gone" if i == 1 else None
        recorder.add(
            "xy"[i % 2], due=now + i, sent=now + i + 0.25, done=now + i + 0.5, size=7, answer=answer, failure=failure
        )
    recorder.fail(2, "wrong answer: it is")
    recorder.end(now + 4)
    samples = recorder.samples()

    np.testing.assert_allclose(samples.due_s, [0, 1, 2], atol=1e-9)
    np.testing.assert_allclose(samples.latency_s, 0.5, atol=1e-9)
    assert list(samples.names[samples.name]) == ["x", "y", "x"]
    assert list(samples.ok) == [True, False, False]
    assert list(samples.status) == [200, 0, 200]
    assert list(samples.bytes_in) == [3, 0, 3]
    assert list(samples.bytes_out) == [7, 7, 7]
    assert [samples.errors[i] if i >= 0 else "" for i in samples.error] == [
        "", "no answer: it is gone", "wrong answer: it is"
    ]  # fmt: skip
    np.testing.assert_allclose(samples.queue_ms, [3.445, np.nan, 3.445], rtol=1e-6)
    assert samples.elapsed_s == pytest.approx(4)
    assert samples.started_at == pytest.approx(time.time(), abs=60)
    assert samples.client_cpu_s >= 0


def test_stages_are_read_as_far_as_they_are_told():
    """Answers of the tutor have none, and there may be new ones."""
    assert server_timing(HEAD) == (0.463, 3.445, 0.320, 0.079)
    some = server_timing(b"HTTP/1.1 200 OK\r\nServer-Timing: new;dur=9, queue;dur=1")
    np.testing.assert_array_equal(some, [np.nan, 1, np.nan, np.nan])
    np.testing.assert_array_equal(server_timing(b"HTTP/1.1 200 OK"), [np.nan] * 4)
