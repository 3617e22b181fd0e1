"""Arguments that the commands here share."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any


def positive(text: str) -> int:
    """A positive whole number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def duration(text: str) -> float:
    """Seconds, more than none."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, more than 0 and less than 3600")
    return seconds


def several(*known: str, of: Callable[[str], Any] = str) -> Callable[[str], tuple[Any, ...]]:
    """A list with commas between, of known names if there are some, each once."""

    def parsed(text: str) -> tuple[Any, ...]:
        values = tuple(dict.fromkeys(of(part.strip()) for part in text.split(",") if part.strip()))
        if unknown := [value for value in values if known and value not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        if not values:
            raise argparse.ArgumentTypeError("give at least one")
        return values

    return parsed


def add_common(parser: argparse.ArgumentParser, cases: Sequence[str]) -> None:
    """What every benchmark can be told; None stands for the command's own default."""
    parser.add_argument("--cases", type=several(*cases), help=f"of {', '.join(cases)}")
    parser.add_argument("--connections", type=several(of=positive), help="numbers of connections, such as 1,8,32")
    parser.add_argument("--seconds", type=duration, help="how long each measurement takes")
    parser.add_argument("--rounds", type=positive, help="how often each is made; the medians are reported")
