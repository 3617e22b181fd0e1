"""What happens when Locust starts, when a test begins, and when it ends; in one process, or as a master and workers."""

import gc
import logging
import sys
import time
from pathlib import Path
from typing import Any, Final

from locust import User
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest.pacing import Pace, gaps
from loadtest.recording import Recorder
from loadtest.session import DRAIN_S, Session
from loadtest.shapes import shape_of
from loadtest.shapes.course import Course
from loadtest.users.base import Caller
from loadtest.wire import Service

CONNECTIONS: Final = 64
"""Users of an open loop where it is not said how many."""

LISTENING_S: Final = 5.0
"""How much longer than its workers need at the most the master waits to hear from them."""

END: Final = "attention-end"
"""What the master tells its workers."""
ENDED: Final = "attention-ended"
"""What they answer."""
SHARE: Final = "attention-share"
"""What the master tells them when a shape changes the rate."""

_LOG: Final = logging.getLogger(__name__)


class Suite:
    """Our part of a process of Locust."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._share = 1.0
        self._to_end: set[str] = set()

    def listen(self, events: Any) -> None:
        """Be told what happens."""
        events.init.add_listener(self.prepare)
        events.test_start.add_listener(self.begin)
        events.spawning_complete.add_listener(self.all_connected)
        events.test_stopping.add_listener(self.end)
        events.test_stop.add_listener(self.close)
        events.quitting.add_listener(self.refuse_an_empty_run)

    def prepare(self, environment: Environment, **_: Any) -> None:
        """Before the first test of this process: what master and workers have to say to each other."""
        options, runner = _options_and_runner(environment)
        if isinstance(runner, WorkerRunner):
            runner.register_message(END, self._end_worker, concurrent=True)
            runner.register_message(SHARE, lambda msg, **_: self._take(msg.data["share"]))
            return  # all else is told by the master
        if isinstance(runner, MasterRunner):
            runner.register_message(ENDED, self._ended)
        # Locust counts --run-time from when its loop last looked at the clock, which was before it imported anything.
        time.sleep(0)
        if options.headless:
            try:
                Service(environment.host or "")
            except ValueError as error:
                sys.exit(f"--host: {error}")
        if not options.user_classes:
            environment.user_classes = [each for each in environment.user_classes if not _on_request(each)]
        if options.rate:
            options.num_users = options.num_users or CONNECTIONS
            options.spawn_rate = options.num_users  # nothing is due before all are there
        if options.shape:
            environment.shape_class = self._course(options, runner)

    def begin(self, environment: Environment, **_: Any) -> None:
        """Make all requests before the first is sent."""
        options, runner = _options_and_runner(environment)
        if isinstance(runner, MasterRunner):
            options.parts = max(1, runner.worker_count)  # goes to the workers, with all other options
            return
        parts = options.parts if isinstance(runner, WorkerRunner) else 1
        part = runner.worker_index % parts
        pace = None
        if options.rate:
            # Evenly, several generators take turns. By chance, each is one of several crowds.
            first = part / parts if options.arrivals == "constant" else 0.0
            pace = Pace(options.rate / parts, self._share, gaps(options.arrivals, seed=options.seed + part), first)
        recorder = Recorder() if options.samples else None
        self._session = Session(environment, options.check_every, options.wait_s, pace, recorder, part, parts)
        service = Service(environment.host or "")
        for user_class in environment.user_classes:
            if issubclass(user_class, Caller):
                user_class.prepare(self._session, service, options)
        gc.collect()
        gc.freeze()  # a collection among all that Locust has imported would look like a slow service
        if pace is None:
            self._session.begin()

    def all_connected(self, **_: Any) -> None:
        """An open loop begins when all of its users are there."""
        if self._session is not None:
            self._session.begin()

    def end(self, environment: Environment, **_: Any) -> None:
        """Wait for what was due, before Locust stops its users; the master, until all workers have."""
        if self._session is not None:
            self._session.end()
        elif isinstance(runner := environment.runner, MasterRunner):
            self._to_end = set(runner.clients)
            runner.send_message(END)
            deadline = time.monotonic() + (environment.stop_timeout or DRAIN_S) + LISTENING_S
            while self._to_end & set(runner.clients) and time.monotonic() < deadline:
                time.sleep(0.05)

    def close(self, environment: Environment, **_: Any) -> None:
        """Check and write down what is left, when the users are gone."""
        options, runner = _options_and_runner(environment)
        if self._session is None:
            return
        path = Path(options.samples) if options.samples else None
        if path is not None and isinstance(runner, WorkerRunner):
            path = path.with_name(f"{path.stem}.worker{runner.worker_index}{path.suffix}")
        self._session.close(path)
        self._session = None

    def refuse_an_empty_run(self, environment: Environment, **_: Any) -> None:
        """A run that asked nothing has not passed: exit code 2."""
        if isinstance(environment.runner, WorkerRunner):
            return  # its counts are cleared whenever it reports them; the master has the sum
        if environment.stats.total.num_requests == 0 and environment.process_exit_code is None:
            _LOG.error("no request was answered or refused")
            environment.process_exit_code = 2

    def _course(self, options: Any, runner: Any) -> Course:
        users = options.num_users = options.num_users or 1

        def load(share: float) -> str:
            return f"{share * options.rate:g} requests/s" if options.rate else f"{max(1, round(share * users))} users"

        def set_share(share: float) -> None:
            if share != self._share:
                self._take(share)
                if isinstance(runner, MasterRunner):
                    runner.send_message(SHARE, {"share": share})

        course = Course(
            shape_of(options, load), users, options.spawn_rate or users, set_share if options.rate else None
        )
        course.runner = runner
        return course

    def _take(self, share: float) -> None:
        """Send so much of the full rate from now on."""
        self._share = share
        if self._session is not None and self._session.pace is not None:
            self._session.pace.share = share

    def _end_worker(self, environment: Environment, **_: Any) -> None:
        if self._session is not None:
            self._session.end()
        _options_and_runner(environment)[1].send_message(ENDED)

    def _ended(self, msg: Any, **_: Any) -> None:
        self._to_end.discard(msg.node_id)


def _on_request(user_class: type[User]) -> bool:
    return issubclass(user_class, Caller) and user_class.on_request


def _options_and_runner(environment: Environment) -> tuple[Any, Any]:
    """Locust has both by the time it tells us anything; its types do not know."""
    return environment.parsed_options, environment.runner
