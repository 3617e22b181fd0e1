"""Locust as a person runs it, and small services for it to ask."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).parents[2]


def locust(url, *arguments, seconds=2):
    """Run the locustfile for a moment, as a person would.

    As a process of its own: importing Locust replaces the sockets and threads of the process that does.
    """
    run = ["-u", "4", "-r", "4", "-t", f"{seconds}s", "--host", url, *arguments]
    return subprocess.run(command(*run), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def command(*arguments):
    """The command line of a headless run."""
    run = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest/locustfile.py"), "--headless", "--only-summary"]
    return [*run, *arguments]


def started(command, folder):
    """A process that runs in a folder, with what it writes in one pipe."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status = 200
    answer_headers: ClassVar[dict[str, str]] = {"Content-Type": "application/json"}

    def answer(self, request):
        raise NotImplementedError

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(self.answer(request)).encode()
        self.send_response(self.status)
        for name, value in (self.answer_headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def serving(handler):
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # Locust hangs up in the middle of an answer when its time is over
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
