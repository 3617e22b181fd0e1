"""The end of a closed loop."""

import subprocess
import sys

from tests.loadtest.running import ROOT

PROGRAM = """
from types import SimpleNamespace
from locust.env import Environment
from locust.exception import StopUser
from loadtest.session import Session
from loadtest.users.base import Caller
from loadtest.wire import Answer, Request, Service

sent = []

class Asking(Caller):
    def script(self):
        while True:
            yield Request("POST", "asked", b"", 0, lambda answer: None)

session = Session(Environment(user_classes=[Asking]), check_every=0)
Asking.prepare(session, Service("http://127.0.0.1:1"), None)
user = Asking(session.environment)
user._client = SimpleNamespace(ask=lambda wire: sent.append(wire) or Answer(200, b"", b""))
session.begin()
user.ask()
session.end()
try:
    user.ask()
except StopUser:
    print(len(sent))
"""


def test_nobody_asks_after_the_end():
    """Locust stops a user between two requests by an exception that comes a moment later: in the middle of the next.

    The service would count a request that we do not. As a process of its own: see `locust`.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout == "1\n", done.stdout + done.stderr
