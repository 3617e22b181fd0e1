import pytest

from loadtest.bench.formats import Message
from loadtest.bench.http import Failed, Request, wire
from loadtest.bench.measure import lone, parse_server_timing
from tests.loadtest.bench.answering import answering

REQUEST = Request(wire("127.0.0.1", Message("/", {}, b"")))


def test_server_timing_is_read_in_milliseconds():
    """The stages come from this header alone."""
    stages = parse_server_timing('decode;dur=0.012, queue;desc="a";dur="0.1",compute ; dur=1e-1, cache')

    assert stages == {"decode": 0.012, "queue": 0.1, "compute": 0.1}


def test_a_server_timing_that_is_no_number_is_refused():
    """A stage read as 0 would make the service look better than it is."""
    with pytest.raises(Failed, match="decode;dur=fast"):
        parse_server_timing("decode;dur=fast")


def timed(timing: str):
    return answering(lambda i, sent: (200, b"", 0.0), headers=f"Server-Timing: {timing}\r\n")


def test_the_time_of_a_lone_request_is_taken_apart():
    """What no stage counts is outside, and all but compute is overhead."""
    with timed("decode;dur=0.001, queue;dur=0.002, compute;dur=0.003, encode;dur=0.004") as port:
        found = lone(port, [REQUEST], 0.1)

    assert found["compute_ms"] == 0.003
    assert found["overhead_p50_ms"] == pytest.approx(found["p50_ms"] - 0.003)
    assert found["outside_ms"] == pytest.approx(found["p50_ms"] - 0.01)


def test_a_missing_stage_is_refused():
    """A stage read as 0 would make the service look better than it is."""
    with timed("decode;dur=1, compute;dur=1, encode;dur=1") as port, pytest.raises(Failed, match="lacks queue"):
        lone(port, [REQUEST], 0.05)


def test_a_clock_too_coarse_for_the_computation_is_refused():
    """An event loop's clock may tick in milliseconds: compute would be 0 and the overhead the whole latency."""
    timing = "decode;dur=0, queue;dur=0, compute;dur=0, encode;dur=0"

    with timed(timing) as port, pytest.raises(Failed, match="too coarse"):
        lone(port, [REQUEST], 0.05)


def test_the_floor_has_no_stages():
    """`GET /healthz/live` has no `Server-Timing`."""
    with answering(lambda i, sent: (200, b"", 0.0)) as port:
        found = lone(port, [REQUEST], 0.05, staged=False)

    assert found.keys() == {"p50_ms", "p99_ms"}


def test_a_lone_request_that_fails_is_no_measurement():
    """Nothing is said of a service that does not work."""
    with answering(lambda i, sent: (500, b"", 0.0)) as port, pytest.raises(Failed, match="status 500"):
        lone(port, [REQUEST], 0.05)
