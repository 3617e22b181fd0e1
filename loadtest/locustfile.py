"""Locust users that ask `POST /v1/attention` as real callers do, and look at what comes back.

    locust -f loadtest/locustfile.py --headless -u 8 -r 8 -t 10s --host http://127.0.0.1:8000

Users: `JsonUser` (numbers in JSON), `Base64User` (tensor objects in JSON), `BinaryUser` (safetensors both ways), as many
of each; name some on the command line to run only those. Each sends requests made before the start, of mixed lengths
and models, one after the other over a connection of its own; a quarter of them is causal. Requests are counted by
format and model, for example `safetensors single-head-64`.

Settings, each an argument and an environment variable:

| argument | variable | default | meaning |
| --- | --- | --- | --- |
| `--models` | `LOADTEST_MODELS` | all that come with the service | names with commas between; a model of your own is `name:embed_dim` |
| `--seed` | `LOADTEST_SEED` | 0 | the same seed sends the same bytes |
| `--tokens` | `LOADTEST_TOKENS` | `mixed` | sequence lengths: `mixed` (log-normal, 8 to 256), or fixed sizes such as `16` or `16,64` |
| `--check-every` | `LOADTEST_CHECK_EVERY` | 10 | each user checks the first of so many answers; 1 checks all, 0 none |
| `--wait-s` | `LOADTEST_WAIT_S` | 0 | pause of a user after an answer, seconds |

A wrong answer is a failure, however fast it came. A refusal is a failure under its own text, for example
`503 queue full, retry after 1 s`. The exit code is 1 when anything failed and 2 when nothing was asked.

Two limits of what is measured. The load is closed: a user waits for its answer before it asks again, so a stalled
service is asked less and its percentiles look better than what an open crowd would have met. And an answer is checked
in the generator's only thread: not in that answer's own time, but other users wait meanwhile. For the last percent use
`--check-every 0`, after a run that checked.
"""  # noqa: E501 -- a table row is a line

import argparse
import itertools
import logging
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import orjson
from locust import FastHttpUser, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import WorkerRunner

from loadtest.checks import WrongAnswer, check_answer
from loadtest.payloads import MODELS, Format, Payload, generate, parse_models, parse_tokens

PAYLOADS = 120
"""Requests made for each format; users go round them, each from a place of its own."""

STRIDE = 7
"""How far apart two users start. It shares no factor with PAYLOADS, so the first 120 users start in 120 places."""

MAX_WRONG_ANSWER_TEXTS = 20
"""A message names rows and numbers, so a broken service gives thousands; the report lists so many a user class."""


class AttentionUser(FastHttpUser):
    """A caller who asks again as soon as there is an answer. Subclasses say in which format."""

    abstract = True
    format: ClassVar[Format]
    payloads: ClassVar[list[Payload]]
    check_every: ClassVar[int]
    wait_s: ClassVar[float]
    starts: ClassVar[Iterator[int]]
    wrong_answers: ClassVar[set[str]]

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._next = next(self.starts) * STRIDE
        self._asked = 0

    def wait_time(self) -> float:
        """Seconds between an answer and the next request."""
        return self.wait_s

    @task
    def attend(self) -> None:
        """Send one request and judge the answer: its status always, its numbers every `check_every` requests."""
        payload = self.payloads[self._next % len(self.payloads)]
        check = self.check_every > 0 and self._asked % self.check_every == 0
        self._next += 1
        self._asked += 1
        name = f"{payload.format} {payload.model}"
        with self.client.post(
            payload.path,
            data=payload.body,  # type: ignore[arg-type] # Locust takes bytes, its hint does not say so
            headers=dict(payload.headers),
            name=name,
            catch_response=True,
        ) as response:
            # Status 0: no answer at all. Locust records the connection's error by itself.
            if response.status_code not in (0, 200):
                response.failure(describe_refusal(response.status_code, response.headers, response.content))
            elif response.status_code == 200 and check:
                try:
                    check_answer(payload, response.headers.get("Content-Type", ""), response.content)
                except WrongAnswer as error:
                    response.failure(self._wrong_answer(error))

    def _wrong_answer(self, error: WrongAnswer) -> str:
        text = f"wrong answer: {error}"
        if len(self.wrong_answers) < MAX_WRONG_ANSWER_TEXTS:
            self.wrong_answers.add(text)
        return text if text in self.wrong_answers else "wrong answer: for other reasons than those listed"


class JsonUser(AttentionUser):
    """Numbers in JSON, both ways."""

    format = "json"


class Base64User(AttentionUser):
    """Tensor objects in JSON, both ways."""

    format = "base64"


class BinaryUser(AttentionUser):
    """safetensors, both ways."""

    format = "safetensors"


def describe_refusal(status: int, headers: Any, body: bytes) -> str:
    """Say in a few words why the service refused; the same reason gives the same text, so that Locust can count it.

    Args:
        status: the HTTP status.
        headers: anything with `get`; `Retry-After` is read.
        body: the problem document, if it is one.

    Returns:
        For example `503 queue full, retry after 1 s`.
    """
    try:
        kind = str(orjson.loads(body)["type"])
    except (orjson.JSONDecodeError, TypeError, KeyError):
        kind = "no problem document"
    reason = kind.rstrip("/").rpartition("/")[2].replace("-", " ")
    retry_after = headers.get("Retry-After")
    return f"{status} {reason}" + (f", retry after {retry_after} s" if retry_after else "")


def _checked(parse: Any) -> Any:
    # Locust sends the options to its workers as text and numbers, so what is parsed is only checked here.
    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return check


def _not_negative(kind: type[int] | type[float]) -> Any:
    def check(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
        if not (0 <= number < math.inf):
            raise argparse.ArgumentTypeError(f"{text} is negative or not finite")
        return number

    return check


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator] # Locust has no hints here
def add_arguments(parser: LocustArgumentParser) -> None:
    """Add this file's settings to Locust's own; see the top of the file."""
    group = parser.add_argument_group("Self-attention load", "what is sent and what is checked")
    group.add_argument(
        "--models",
        env_var="LOADTEST_MODELS",
        type=_checked(parse_models),
        default=",".join(MODELS),
        help="models to ask, with commas between; one of your own is name:embed_dim",
    )
    group.add_argument(
        "--seed", env_var="LOADTEST_SEED", type=_not_negative(int), default=0, help="same seed, same bytes"
    )
    group.add_argument(
        "--tokens",
        env_var="LOADTEST_TOKENS",
        type=_checked(parse_tokens),
        default="mixed",
        help="sequence lengths: mixed, or fixed sizes such as 16,64",
    )
    group.add_argument(
        "--check-every",
        env_var="LOADTEST_CHECK_EVERY",
        type=_not_negative(int),
        default=10,
        help="each user checks the first of so many answers; 1 checks all, 0 none",
    )
    group.add_argument(
        "--wait-s",
        env_var="LOADTEST_WAIT_S",
        type=_not_negative(float),
        default=0.0,
        help="pause of a user after an answer, seconds",
    )


@events.test_start.add_listener  # type: ignore[untyped-decorator] # Locust has no hints here
def make_payloads(environment: Environment, **_: Any) -> None:
    """Make all requests before the first is sent, so that making them takes nothing from the service's time."""
    options = environment.parsed_options
    assert options is not None, "Locust parses the options before it starts a test"
    for user_class in environment.user_classes:
        if issubclass(user_class, AttentionUser):
            user_class.payloads = generate(
                user_class.format,
                parse_models(options.models),
                seed=options.seed,
                count=PAYLOADS,
                tokens=parse_tokens(options.tokens),
            )
            user_class.check_every = options.check_every
            user_class.wait_s = options.wait_s
            user_class.starts = itertools.count()
            user_class.wrong_answers = set()


@events.quitting.add_listener  # type: ignore[untyped-decorator] # Locust has no hints here
def refuse_an_empty_run(environment: Environment, **_: Any) -> None:
    """A run that asked nothing has not passed: exit code 2."""
    if isinstance(environment.runner, WorkerRunner):
        return  # its counts are cleared whenever it reports them; the master has the sum
    if environment.stats.total.num_requests == 0 and environment.process_exit_code is None:
        logging.getLogger(__name__).error("no request was answered or refused")
        environment.process_exit_code = 2
