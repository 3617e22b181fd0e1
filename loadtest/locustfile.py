"""What Locust is given: the users, their settings, and what happens when a test begins and ends.

    locust -f loadtest/locustfile.py --headless -u 8 -r 8 -t 10s --host http://127.0.0.1:8000
    locust -f loadtest/locustfile.py --headless -u 64 -t 10s --rate 200 --host http://127.0.0.1:8000 BinaryUser

`docs/loadtest.md` describes all of it. The exit code is 1 when anything failed and 2 when nothing was asked.
"""

from locust import events

from loadtest.options import add_arguments
from loadtest.suite import Suite
from loadtest.users.app import Base64User, BinaryUser, JsonUser, V2BinaryUser
from loadtest.users.text import TextUser
from loadtest.users.tutor import TutorUser

__all__ = ["Base64User", "BinaryUser", "JsonUser", "TextUser", "TutorUser", "V2BinaryUser"]

events.init_command_line_parser.add_listener(add_arguments)  # type: ignore[no-untyped-call]
Suite().listen(events)
