"""Programs that are run, and a service that is asked, for the tests of containers."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MINUTE = 60.0
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def run(*command, check=True, timeout=5 * MINUTE, **more):
    """Run a program in the root of the repository: what it said, or a failure with that."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout, **more)
    if check and done.returncode:
        said = done.stdout[-2000:] + done.stderr[-4000:]
        pytest.fail(f"{' '.join(map(str, command))}: status {done.returncode}\n{said}")
    return done


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answer(url, body=None, headers=None):
    """Status and body of an answer; 0 where there was none. A body is JSON unless the headers say otherwise."""
    headers = {"Content-Type": "application/json"} | (headers or {})
    try:
        with OPENER.open(urllib.request.Request(url, body, headers), timeout=30) as got:
            return got.status, got.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, repr(error).encode()


def ask(url, document=None):
    """The same, in JSON both ways."""
    status, body = answer(url, None if document is None else json.dumps(document).encode())
    return status, json.loads(body or b"null") if status else body


def until(holds, timeout=2 * MINUTE):
    """Wait until something holds."""
    end = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"after {timeout:.0f} s it still does not hold")
        time.sleep(0.1)
