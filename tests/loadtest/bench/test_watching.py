"""The benchmark of what watching costs: it measures the service that it started, and says so in a table."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.bench.http import Failed, Request
from loadtest.bench.processes import Server
from loadtest.bench.watching import WAYS, collector, cpu_s, measure, rows
from service.settings import PREFIX, Settings
from tests.loadtest.bench.answering import answering

ROOT = Path(__file__).parents[3]


def test_processor_time_is_that_of_the_processes_of_the_server():
    """Waiting is not in it, and neither is what others compute."""
    busy = "end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    program = f"import os, time; os.setsid()\n{busy}\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline = time.monotonic() + 60
        while (found := cpu_s(Server(0, process.pid))) < 0.25 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()

    assert 0.25 <= found < 5


def test_the_first_round_only_warms_up_and_a_wrong_answer_is_no_measurement():
    """An error costs little, and would look like a gain."""
    with answering(lambda i, sent: (200, b"same", 0.0)) as port:
        took = measure([Server(port, os.getpid())], [Request(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")], 2, 0.05)
    with answering(lambda i, sent: (500, b"no", 0.0)) as port, pytest.raises(Failed):
        measure([Server(port, os.getpid())], [Request(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")], 1, 0.05)

    assert [len(times) for times in took] == [2]


def test_what_is_compared_is_compared_with_nothing():
    """Round by round, so that a machine that slows down slows both."""
    took = [[100.0, 200.0, 300.0]] + [[110.0, 230.0, 320.0]] * (len(WAYS) - 1)

    found = rows(took)

    assert [row[0] for row in found] == list(WAYS)
    assert found[0][1:] == ("200", "+0", "+0 to +0")
    assert found[1][1:] == ("230", "+20", "+10 to +30")


def test_ways_are_settings_of_the_service():
    """A misspelt one would keep it from starting, and one of OpenTelemetry's would be ignored."""
    for way in WAYS.values():
        for name in way:
            assert name.startswith("OTEL_TRACES_SAMPLER") or name.removeprefix(PREFIX).lower() in Settings.model_fields


def test_spans_are_taken_and_dropped():
    """So that sending them succeeds, as it would elsewhere."""
    from urllib.request import Request as Ask
    from urllib.request import urlopen

    with collector() as url, urlopen(Ask(f"{url}/v1/traces", b"x", method="POST"), timeout=30) as answer:
        assert answer.status == 200
