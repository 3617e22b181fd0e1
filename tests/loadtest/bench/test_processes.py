import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.http import Failed
from loadtest.bench.processes import Server, family, free_port, started

FOLDER = Path(__file__).parent
SERVER = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_waited_for_weighed_and_stopped_with_all_its_processes():
    """What a run leaves behind would disturb the next one."""
    port = free_port()

    with started([sys.executable, "-c", SERVER, str(port)], port, "/", {}, FOLDER) as server:
        processes = family(server.pid)
        assert len(processes) == 2
        assert server.port == port
        assert 0 < server.rss_mib() <= server.peak_mib() + 1

    assert family(server.pid) == []


def test_a_server_that_ends_says_why():
    """Its last words are in the message."""
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]

    with pytest.raises(Failed, match=r"(?s)exit code 1.*no such model"), started(command, free_port(), "/", {}, FOLDER):
        pass


def test_memory_is_that_of_the_processes():
    """Of this one, as an example: /proc counts in KiB."""
    alone = Server(0, os.getsid(0))

    assert alone.rss_mib() >= 0


def test_a_run_that_is_stopped_leaves_no_server():
    """SIGTERM is how most things are stopped."""
    program = """
import sys, time
from pathlib import Path
from loadtest.bench.processes import end_in_order, free_port, started
end_in_order()
port = free_port()
with started([sys.executable, "-c", sys.argv[1], str(port)], port, "/", {}, Path(".")) as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", program, SERVER]
    with subprocess.Popen(command, cwd=FOLDER.parents[2], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        leader = int(run.stdout.readline())
        assert family(leader) != []

        run.terminate()

        assert run.wait(60) == 143
    assert family(leader) == []
