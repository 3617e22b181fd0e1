"""A test as the users of one process share it: its pace, its checks, and what became of every request."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson
from locust.env import Environment
from locust.exception import CatchResponseError

from loadtest.checks import WrongAnswer
from loadtest.pacing import Pace
from loadtest.recording import Recorder
from loadtest.wire import Answer, Request

MAX_WRONG_ANSWER_TEXTS: Final = 20
"""A message names rows and numbers, so a broken service gives thousands; the report lists so many."""

MAX_KEPT_BYTES: Final = 256 << 20
"""Answers of an open loop are kept to be checked after it, up to so many bytes; then they are checked at once."""

DRAIN_S: Final = 10.0
"""How long an open loop waits, after its end, for what was due before it, unless `--stop-timeout` says."""

NOT_SENT: Final = Request("", "not sent", b"", 0, lambda answer: None)
"""Stands for requests that were due and that no user was free to send; whose they would have been is not known."""

_LOG: Final = logging.getLogger(__name__)


@dataclass
class Session:
    """What the users of a process share during one test.

    Attributes:
        environment: Locust's.
        check_every: users have the first of so many answers checked; 0 for none.
        wait_s: pause of a user after an answer, in a closed loop.
        pace: when requests are due; None in a closed loop.
        recorder: takes requests down, if they are wanted.
        part: which of the generators of this test this process is, from 0.
        parts: how many there are.
        busy: users that wait for an answer.
    """

    environment: Environment
    check_every: int
    wait_s: float = 0.0
    pace: Pace | None = None
    recorder: Recorder | None = None
    part: int = 0
    parts: int = 1
    busy: int = 0
    _ended: bool = False
    _counted: int = 0
    _began: tuple[float, float] | None = None
    _kept: list[tuple[int, Request, Answer]] = field(default_factory=list)
    _kept_bytes: int = 0
    _wrong_answers: set[str] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        """Whether the test is over, and nothing is to be sent."""
        return self._ended

    @property
    def drain_s(self) -> float:
        """How long an open loop waits after its end."""
        return self.environment.stop_timeout or DRAIN_S

    def begin(self) -> None:
        """The test begins now; it begins once, however often this is called."""
        if self._began is not None:
            return
        now = time.perf_counter()
        self._began = now, time.process_time()
        if self.pace is not None:
            self.pace.begin(now)
        if self.recorder is not None:
            self.recorder.begin(now)

    def end(self) -> None:
        """The test ends now, once. An open loop waits for what was due, for some time, and counts what is left."""
        if self._ended:
            return
        self._ended, now = True, time.perf_counter()
        if self.pace is not None:
            self.pace.end(now)
            while (self.busy or self.pace.late()) and time.perf_counter() < now + self.drain_s:
                time.sleep(0.01)
            over = time.perf_counter()
            for due in self.pace.rest():
                text = "not sent: due, but no connection was free until the end"
                self.report(NOT_SENT, due=due, sent=over, done=over, answer=None, failure=text)
        now = time.perf_counter()
        if self.recorder is not None:
            self.recorder.end(now)
        self._tell_cost(now)

    def close(self, path: Path | None) -> None:
        """No user is left: check what was kept, and write the samples, if they are wanted."""
        for index, request, answer in self._kept:
            if (failure := self.judge(request, answer, check=True)) is not None:
                self.environment.stats.log_error(request.method, request.name, CatchResponseError(failure))
                if self.recorder is not None:
                    self.recorder.fail(index, failure)
        self._kept.clear()
        if self.recorder is not None and path is not None:
            self.recorder.samples().save(path)

    @property
    def checks_later(self) -> bool:
        """Whether what answers contain is checked when the test is over.

        To read a large one takes tens of milliseconds, in the only thread there is. In a closed loop a user does so
        before it asks again, and others with it; in an open loop others are due meanwhile.
        """
        return self.pace is not None and self._kept_bytes <= MAX_KEPT_BYTES

    def judge(self, request: Request, answer: Answer, *, check: bool) -> str | None:
        """Why an answer is a failure, if it is: its status always, its contents where `check` says so."""
        if answer.status != 200:
            return describe_refusal(answer)
        if check:
            try:
                request.check(answer)
            except WrongAnswer as error:
                return self.wrong(error)
        return None

    def report(
        self, request: Request, *, due: float, sent: float, done: float, answer: Answer | None, failure: str | None
    ) -> None:
        """Count a request, by Locust and by the recorder."""
        self._counted += 1
        if self.recorder is not None:
            self.recorder.add(
                request.name, due=due, sent=sent, done=done, size=request.size, answer=answer, failure=failure
            )
        self.environment.events.request.fire(  # type: ignore[no-untyped-call]
            request_type=request.method,
            name=request.name,
            response_time=(done - due) * 1e3,
            response_length=len(answer.body) if answer else 0,
            exception=None if failure is None else CatchResponseError(failure),
            context={},
        )

    def keep(self, request: Request, answer: Answer) -> None:
        """Have an answer checked when the test is over; its request is the one that was reported last."""
        self._kept.append((0 if self.recorder is None else len(self.recorder) - 1, request, answer))
        self._kept_bytes += len(answer.body)
        if not self.checks_later:
            _LOG.warning(
                "%d MiB of answers wait for their check; others are checked at once now, which may delay requests",
                MAX_KEPT_BYTES >> 20,
            )

    def _tell_cost(self, now: float) -> None:
        """Say what the generator itself took: where that is most of a core, it is the generator that was measured."""
        if self._counted and self._began is not None:
            seconds, cpu_s = now - self._began[0], time.process_time() - self._began[1]
            cost_us = cpu_s / self._counted * 1e6
            told = "%d requests in %.1f s; the generator took %.0f µs of processor time for each, %.0f %% of a core"
            _LOG.info(told, self._counted, seconds, cost_us, cpu_s / seconds * 100)

    def wrong(self, error: WrongAnswer) -> str:
        """A text for a wrong answer; after some, one for all others."""
        text = f"wrong answer: {error}"
        if len(self._wrong_answers) < MAX_WRONG_ANSWER_TEXTS:
            self._wrong_answers.add(text)
        return text if text in self._wrong_answers else "wrong answer: for other reasons than those listed"


def describe_refusal(answer: Answer) -> str:
    """Say in a few words why the service refused; the same reason gives the same text, so that it can be counted.

    Returns:
        For example `503 queue full, retry after 1 s`.
    """
    try:
        kind = str(orjson.loads(answer.body)["type"])
    except (orjson.JSONDecodeError, TypeError, KeyError):
        kind = "no problem document"
    reason = kind.rstrip("/").rpartition("/")[2].replace("-", " ")
    retry_after = answer.header("Retry-After")
    return f"{answer.status} {reason}" + (f", retry after {retry_after} s" if retry_after else "")
