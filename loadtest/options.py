"""The settings of the load test: arguments of Locust's command, and environment variables."""

import argparse
import math
from pathlib import Path
from typing import Any

from locust.argument_parser import LocustArgumentParser

from loadtest.pacing import ARRIVALS
from loadtest.payloads import MODELS, parse_models, parse_tokens
from loadtest.shapes import DEFAULT_S, SHAPES


def add_arguments(parser: LocustArgumentParser) -> None:
    """Add our settings to Locust's own."""
    _add_contents(parser.add_argument_group("Self-attention load", "what is sent and what is checked"))
    _add_shape(parser.add_argument_group("Self-attention shape", "how the load changes while the test runs"))
    _add_pace(parser.add_argument_group("Self-attention pace", "when it is sent, and what is written down"))


def _add_contents(group: Any) -> None:
    group.add_argument(
        "--models",
        env_var="LOADTEST_MODELS",
        type=_checked(parse_models),
        default=",".join(MODELS),
        help="models to ask, with commas between; one of your own is name:embed_dim",
    )
    group.add_argument("--seed", env_var="LOADTEST_SEED", type=_number(int), default=0, help="same seed, same bytes")
    group.add_argument(
        "--tokens",
        env_var="LOADTEST_TOKENS",
        type=_checked(parse_tokens),
        default="mixed",
        help="sequence lengths: mixed, or fixed sizes such as 16,64",
    )
    group.add_argument(
        "--encoder", env_var="LOADTEST_ENCODER", default="minilm-l6", help="the encoder that TextUser asks"
    )
    group.add_argument(
        "--check-every",
        env_var="LOADTEST_CHECK_EVERY",
        type=_number(int),
        default=10,
        help="each user checks the first of so many answers, learners all; 1 checks all, 0 none",
    )
    group.add_argument(
        "--wait-s",
        env_var="LOADTEST_WAIT_S",
        type=_number(float),
        default=0.0,
        help="pause of a user after an answer, seconds; not in an open loop",
    )


def _add_pace(group: Any) -> None:
    group.add_argument(
        "--rate",
        env_var="LOADTEST_RATE",
        type=_number(float),
        default=0.0,
        help="requests a second that are due whatever the service does, over at most --users connections; 0: each user"
        " asks again when it has its answer",
    )
    group.add_argument(
        "--arrivals",
        env_var="LOADTEST_ARRIVALS",
        choices=ARRIVALS,
        default="constant",
        help="with --rate: evenly, or by chance as a crowd's come",
    )
    group.add_argument(
        "--samples",
        env_var="LOADTEST_SAMPLES",
        type=_checked(_samples_file),
        default="",
        help="write one entry for each request to this .npz file; workers add .workerN to its name",
    )


def _add_shape(group: Any) -> None:
    group.add_argument(
        "--shape",
        env_var="LOADTEST_SHAPE",
        choices=["", *SHAPES],
        default="",
        help="the course of the test, up to --users, or with --rate up to that rate; it takes --run-time"
        f" (default: {DEFAULT_S:g} s)",
    )
    group.add_argument(
        "--levels", env_var="LOADTEST_LEVELS", type=_number(int, 1), default=5, help="steps, ramp: how many"
    )
    group.add_argument(
        "--max-p99-ms",
        env_var="LOADTEST_MAX_P99_MS",
        type=_number(float),
        default=100.0,
        help="ramp: the 99th percentile that ends it",
    )
    group.add_argument(
        "--max-failed",
        env_var="LOADTEST_MAX_FAILED",
        type=_number(float, 0, 1),
        default=0.01,
        help="ramp: the share of failures that ends it",
    )
    group.add_argument(
        "--base-share",
        env_var="LOADTEST_BASE_SHARE",
        type=_number(float, 0.01, 1),
        default=0.2,
        help="spike: the share of the load before and after it",
    )


def _samples_file(text: str) -> None:
    if text and not Path(text).absolute().parent.is_dir():
        raise ValueError(f"{text!r}: there is no folder {Path(text).absolute().parent}")


def _checked(parse: Any) -> Any:
    # Locust sends the options to its workers as text and numbers, so what is parsed is only checked here.
    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return check


def _number(kind: type[int] | type[float], least: float = 0, most: float = math.inf) -> Any:
    def check(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' if kind is int else ''}number") from error
        if not (least <= number <= most) or number == math.inf:
            limits = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"{text} is not {limits}")
        return number

    return check
