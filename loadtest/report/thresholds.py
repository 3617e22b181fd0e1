"""Files of thresholds: what a run has to reach, so that a pipeline can fail where it does not.

```toml
[onnx]                      # a service of the run by its name, or `every`
rate = 400                  # at least: requests a second held within the target
p99_ms = 40                 # at most: latency of the open loop
error_share = 0             # at most, of the open loop

[[ratio]]
of = "onnx.rate"
over = "eager.rate"
at_least = 1.0              # or at_most
```
"""

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.bench.tables import number
from loadtest.report.figures import SHOWN
from loadtest.report.results import Document

AT_LEAST, AT_MOST = "at least", "at most"
EVERY: Final = "every"
RATIO: Final = "ratio"


def _of_open(name: str) -> Callable[[Document], float]:
    return lambda subject: float(subject["open"][name]) if subject["open"] else math.nan


FIGURES: Final[dict[str, tuple[str, Callable[[Document], float]]]] = {
    "rate": (AT_LEAST, lambda subject: float(subject["knee"]["rate"])),
    "throughput": (AT_LEAST, lambda subject: max((step["rate"] for step in subject["closed"]), default=math.nan)),
    **{name: (AT_MOST, _of_open(name)) for name in (*SHOWN, "mean_ms", "max_ms", "error_share")},
}
"""What may be asked of a service: which way, and where it is found."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """One thing that is wanted.

    Attributes:
        what: `service.figure`, or two of them for a ratio.
        way: `at least` or `at most`.
        wanted: the limit.
    """

    what: tuple[str, ...]
    way: str
    wanted: float

    def miss(self, found: Document) -> str | None:
        """What was missed, in a line of words; None if nothing was."""
        values = [_value(found, what) for what in self.what]
        got = values[0] if len(values) == 1 else values[0] / values[1] if values[1] else math.nan
        met = got >= self.wanted if self.way == AT_LEAST else got <= self.wanted
        if met:
            return None
        shown = "nothing was measured" if math.isnan(got) else f"got {_plain(got)}"
        return f"{' over '.join(self.what)}: wanted {self.way} {_plain(self.wanted)}, {shown}"


def parse(text: str, names: Sequence[str]) -> tuple[Threshold, ...]:
    """Read a file of thresholds.

    Args:
        text: TOML, as at the top of this file.
        names: of the services that are measured.

    Raises:
        ValueError: if it is not TOML, or names what there is not; the message says what there is.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from error
    found: list[Threshold] = []
    for section, table in tables.items():
        if section == RATIO:
            found += [_ratio(entry, names) for entry in (table if isinstance(table, list) else [table])]
            continue
        if section not in (*names, EVERY):
            raise ValueError(f"[{section}]: there are {', '.join((*names, EVERY))} and [[{RATIO}]]")
        if not isinstance(table, dict):
            raise ValueError(f"{section}: write a section, [{section}], and what is wanted below it")
        for figure, wanted in table.items():
            way = _known(figure, f"[{section}] {figure}")
            for name in names if section == EVERY else (section,):
                found.append(Threshold((f"{name}.{figure}",), way, _number(wanted, f"[{section}] {figure}")))
    if not found:
        raise ValueError("nothing is wanted")
    return tuple(found)


def load(path: Path, names: Sequence[str]) -> tuple[Threshold, ...]:
    """Read a file of thresholds; as `parse`, with the path in the message.

    Raises:
        ValueError: as `parse`, and if there is no such file.
    """
    try:
        return parse(path.read_text(), names)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path}: {said}") from error


def misses(wanted: Sequence[Threshold], found: Document) -> list[str]:
    """What was missed, a line each."""
    return [line for threshold in wanted if (line := threshold.miss(found)) is not None]


def _ratio(entry: Any, names: Sequence[str]) -> Threshold:
    if not isinstance(entry, dict):
        raise ValueError(f"{RATIO}: write [[{RATIO}]], and below it of, over, and at_least or at_most")
    ways = [way for way in (AT_LEAST, AT_MOST) if way.replace(" ", "_") in entry]
    if len(ways) != 1 or set(entry) != {"of", "over", ways[0].replace(" ", "_")}:
        raise ValueError(f"[[{RATIO}]] has {', '.join(entry)}: it takes of, over, and at_least or at_most")
    for side in ("of", "over"):
        name, _, figure = str(entry[side]).rpartition(".")
        if name not in names:
            raise ValueError(
                f"[[{RATIO}]] {side} = {entry[side]!r}: give NAME.FIGURE, with a name of {', '.join(names)}"
            )
        _known(figure, f"[[{RATIO}]] {side} = {entry[side]!r}")
    wanted = _number(entry[ways[0].replace(" ", "_")], f"[[{RATIO}]]")
    return Threshold((entry["of"], entry["over"]), ways[0], wanted)


def _known(figure: str, where: str) -> str:
    if figure not in FIGURES:
        raise ValueError(f"{where}: known are {', '.join(FIGURES)}")
    return FIGURES[figure][0]


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{where} = {value!r}: give a number")
    return float(value)


def _value(found: Document, what: str) -> float:
    name, _, figure = what.rpartition(".")
    subject = next(subject for subject in found["subjects"] if subject["name"] == name)
    return FIGURES[figure][1](subject)


def _plain(value: float) -> str:
    """A limit as it was written; what was measured to three digits."""
    return f"{value:g}" if value == round(value, 2) else number(value)
