"""What all users share: they send what their script says, when it is due, and report what comes back."""

import itertools
import time
from argparse import Namespace
from collections.abc import Generator, Iterator
from typing import ClassVar

from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest.checks import WrongAnswer
from loadtest.client import Client, NoAnswer
from loadtest.session import Session
from loadtest.wire import Answer, Request, Service

Script = Generator[Request, Answer, None]
"""Yields a request and is sent its answer; one that ends, or whose request fails, begins again."""


class Caller(User):
    """A caller with a connection of its own and a script. Subclasses say what is in it.

    Attributes:
        on_request: whether there are such users only where they are named on the command line.
        all_checked: whether all answers are checked if any are: a sample of a script's steps might leave some out.
        session: of the test that runs.
        service: that is asked.
        number: of this user, from 0, among all of its class in all processes of the test.
        asked: requests that it has sent.
    """

    abstract = True
    on_request: ClassVar[bool] = False
    all_checked: ClassVar[bool] = False
    session: ClassVar[Session]
    service: ClassVar[Service]
    _numbers: ClassVar[Iterator[int]]

    @classmethod
    def prepare(cls, session: Session, service: Service, options: Namespace) -> None:
        """Make what can be made before the test begins, so that it takes nothing from the service's time."""
        cls.session, cls.service = session, service
        cls._numbers = itertools.count(session.part, session.parts)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.number = next(self._numbers)
        self._client = Client(self.service)
        self.asked = 0
        self._restart()

    def script(self) -> Script:
        """What this user asks."""
        raise NotImplementedError

    def on_stop(self) -> None:
        """Hang up."""
        self._client.close()

    def wait_time(self) -> float:
        """Seconds between an answer and the next request of this user; in an open loop the pace says when it is due."""
        return self.session.wait_s if self.session.pace is None else 0.0

    @task
    def ask(self) -> None:
        """Send one request: in a closed loop now, in an open loop once there is one for which nobody else is free."""
        pace = self.session.pace
        if pace is None:
            if self.session.ended:  # Locust stops us, but may do so a moment later, in the middle of a request
                raise StopUser
            self._send(due=None)
            return
        with pace.turn:
            due = pace.next()
        if due is None:
            raise StopUser
        self._send(due)

    def _send(self, due: float | None) -> None:
        session, request = self.session, self._request
        check = session.check_every > 0 and (self.all_checked or self.asked % session.check_every == 0)
        self.asked += 1
        session.busy += 1
        sent = time.perf_counter()
        begins = sent if due is None else due
        try:
            answer = self._client.ask(request.wire)
        except NoAnswer as error:
            done = time.perf_counter()
            session.report(request, due=begins, sent=sent, done=done, answer=None, failure=f"no answer: {error}")
            self._restart()
            return
        except BaseException:  # Locust ends this user while it waits
            if due is not None:
                done, text = time.perf_counter(), "no answer: nothing had come when the test was over"
                session.report(request, due=begins, sent=sent, done=done, answer=None, failure=text)
            raise
        finally:
            session.busy -= 1
        done = time.perf_counter()
        later = check and session.checks_later
        failure = session.judge(request, answer, check=check and not later)
        if failure is None:
            failure = self._go_on(answer)
        else:
            self._restart()
        session.report(request, due=begins, sent=sent, done=done, answer=answer, failure=failure)
        if later and failure is None:
            session.keep(request, answer)

    def _restart(self) -> None:
        self._script = self.script()
        self._request = next(self._script)

    def _go_on(self, answer: Answer) -> str | None:
        """Find out what is asked next; why that cannot be, if the answer is nothing to go on from."""
        try:
            self._request = self._script.send(answer)
        except StopIteration:
            self._restart()
        except WrongAnswer as error:
            self._restart()
            return self.session.wrong(error)
        return None
