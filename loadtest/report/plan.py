"""What a run is asked for: whom to measure, with what, how long, and which latency is good enough."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

BACKENDS: Final = ("eager", "onnx", "reference")
USERS: Final[dict[str, tuple[str, ...]]] = {
    "app": ("JsonUser", "Base64User", "BinaryUser"),
    "json": ("JsonUser",),
    "base64": ("Base64User",),
    "binary": ("BinaryUser",),
    "v2": ("V2BinaryUser",),
    "tutor": ("TutorUser",),
    "text": ("TextUser",),
}
"""What `--users` may name, and the classes of the Locust suite that it stands for."""

ARRIVALS: Final = ("constant", "poisson")
LADDER: Final = (1, 2, 4, 8, 16, 32)
QUICK_LADDER: Final = (1, 4, 16)
OPEN_SHARE: Final = 0.7
"""Share of the highest rate at which the distribution of latency is taken: about what a replica should be given."""

_SLO: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)\s*=\s*(\d+(?:\.\d+)?)\s*(ms|s)")


@dataclass(frozen=True, slots=True)
class Slo:
    """A latency that so many of all requests are to keep.

    Attributes:
        percent: of the requests, 50 or more and below 100.
        ms: the longest latency they may have, from the time they were due.
    """

    percent: float
    ms: float

    def __str__(self) -> str:
        return f"p{self.percent:g} ≤ {self.ms:g} ms"


def parse_slo(text: str) -> Slo:
    """Read a target such as `p99=20ms` or `p99.9=0.1s`.

    Raises:
        ValueError: if it is not one.
    """
    found = _SLO.fullmatch(text.strip())
    if found is None or float(found[1]) < 50 or not float(found[2]):
        raise ValueError(f"--slo {text!r}: give a percentile from p50 on and a latency, such as p99=20ms")
    return Slo(float(found[1]), float(found[2]) * (1000 if found[3] == "s" else 1))


def parse_ladder(text: str) -> tuple[int, ...]:
    """Read numbers of connections such as `1,4,16`; they are gone through from the fewest on.

    Raises:
        ValueError: if one is not a positive whole number.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"--connections {text!r}: give positive whole numbers with commas between")
    return tuple(sorted(set(map(int, parts))))


@dataclass(frozen=True, slots=True)
class Subject:
    """One of the services that are measured.

    Attributes:
        name: in the report, and in a file of thresholds.
        backend: `ATTENTION_BACKEND`; empty for a service that runs already.
        device: `ATTENTION_DEVICE`; empty likewise.
        url: of a service that runs already.
    """

    name: str
    backend: str = ""
    device: str = ""
    url: str = ""


def subjects_of(compare: Sequence[str], devices: Sequence[str], url: str | None) -> tuple[Subject, ...]:
    """Whom the command line asks to measure: a service that runs, or each backend on each device.

    Raises:
        ValueError: if a backend is not known, or a name comes twice.
    """
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"--url {url!r}: give an address such as http://127.0.0.1:8000")
        return (Subject("service", url=url.rstrip("/")),)
    for option, values in (("--compare", compare), ("--devices", devices)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{option} {','.join(values)!r}: give at least one name, and each once")
    if unknown := [name for name in compare if name not in BACKENDS]:
        raise ValueError(f"--compare {unknown[0]!r}: there are {', '.join(BACKENDS)}")
    several = len(devices) > 1
    return tuple(
        Subject(f"{backend}-{device.replace(':', '')}" if several else backend, backend, device)
        for backend in compare
        for device in devices
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A run.

    Attributes:
        subjects: whom to measure.
        users: a key of `USERS`.
        models: `--models` of the suite, or its `--encoder` for `text`; empty for its own choice.
        tokens: `--tokens` of the suite.
        arrivals: of `ARRIVALS`: whether requests of an open loop are due evenly or by chance.
        slo: which latency is good enough.
        ladder: connections of the closed loop.
        seconds: of each measurement; a confirmation takes twice as many, and so does the open loop.
        rounds: how often all is measured; medians are reported.
        precision: how close the search for the highest rate comes.
        seed: of what is sent.
        pin: whether services and generator are kept on cores of their own.
    """

    subjects: tuple[Subject, ...]
    users: str
    models: str
    tokens: str
    arrivals: str
    slo: Slo
    ladder: tuple[int, ...]
    seconds: int
    rounds: int
    precision: float
    seed: int
    pin: bool

    def seconds_for(self, rate: float, *, longer: bool = False) -> int:
        """How long a rate is tried, s.

        As asked; but long enough for a queue to outgrow the target, and, up to five times as long as asked, for three
        requests that may be above it.
        """
        growing = math.ceil(4 * self.slo.ms / 1000)
        enough = math.ceil(3 / (1 - self.slo.percent / 100) / rate)
        return max(self.seconds * (2 if longer else 1), growing, min(5 * self.seconds, enough))
