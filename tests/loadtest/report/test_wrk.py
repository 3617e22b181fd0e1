import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from loadtest.bench.http import Failed
from loadtest.payloads import MODELS, generate
from loadtest.report.wrk import PAYLOADS, main, read, run_wrk, write_requests

ROOT = Path(__file__).parents[3]
WRITTEN = """Running 2s test @ http://127.0.0.1:8000
  1 threads and 16 connections
  3126 requests in 2.00s, 9.64MB read
Requests/sec:   1561.77
Transfer/sec:      4.82MB
"""


def test_the_rate_is_read_from_what_wrk_writes():
    """And nothing else is taken for one."""
    assert read(WRITTEN) == (1561.77, 3126)
    with pytest.raises(Failed, match="no rate"):
        read("wrk 4.1.0")
    with pytest.raises(Failed, match="had trouble"):
        read(f"{WRITTEN}  Non-2xx or 3xx responses: 3\n")
    with pytest.raises(Failed, match="had trouble"):
        read(f"{WRITTEN}  Socket errors: connect 0, read 3, write 0, timeout 0\n")


def test_as_many_bodies_are_made_as_the_suite_makes():
    """With another number, the same seed makes others."""
    program = "from loadtest.users.app import PAYLOADS; print(PAYLOADS)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert int(done.stdout) == PAYLOADS


@pytest.mark.skipif(shutil.which("wrk") is None, reason="no wrk: apt-get install wrk")
@pytest.mark.parametrize("form", ["json", "safetensors"])
def test_wrk_sends_the_very_bodies_in_turn(form, tmp_path):
    """Byte for byte, binary ones too."""
    payloads = generate(form, tuple(MODELS.values()), seed=3, count=5, tokens=(4, 8))
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers["Content-Type"], self.headers["Accept-Encoding"], body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert run_wrk(url, write_requests(payloads, tmp_path), 1, 1)[0] > 0
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

    sent = [(p.path, p.headers["Content-Type"], "identity", p.body) for p in payloads]
    assert len(seen) > len(sent)
    first = sent.index(seen[0])
    assert seen[: len(sent)] == sent[first:] + sent[:first]


def test_without_wrk_it_says_how_to_get_it(monkeypatch, capsys):
    """Not a stack trace."""
    monkeypatch.setenv("PATH", "/nowhere")

    assert main([]) == 2
    assert "apt-get install wrk" in capsys.readouterr().err
