"""A run: closed loops over a ladder of connections, the highest rate that holds the target, and the latency below it.

Services take turns within each round, the other way round in every second, so that what slows the machine down for a
while slows down all of them.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from loadtest.bench.http import Failed
from loadtest.bench.processes import started_service
from loadtest.report import figures
from loadtest.report.cores import Cores, on
from loadtest.report.counters import Counters, grown, read
from loadtest.report.figures import Figures
from loadtest.report.plan import OPEN_SHARE, Plan, Subject
from loadtest.report.search import highest
from loadtest.report.suite import OPEN_CONNECTIONS, Suite
from loadtest.samples import Samples

Phase = Literal["warm-up", "closed", "search", "confirm", "open"]

WARM_UP_CONNECTIONS: Final = 8
WARM_UP_S: Final = 2
FIRST_SHARE: Final = 0.7
"""Share of the best closed loop's rate with which the search begins."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement.

    Attributes:
        subject: name of the service.
        phase: what it was for.
        round: from 1 on; 0 of the warm-up.
        connections: as many users.
        asked: requests a second that were due; None in a closed loop.
        holds: whether the target was held; None where that was not the question.
        figures: rate, latencies, errors, and how busy the generator was.
        samples: the requests.
        grown: how much the service's counters grew meanwhile; None if it does not show them.
    """

    subject: str
    phase: Phase
    round: int
    connections: int
    asked: float | None
    holds: bool | None
    figures: Figures
    samples: Samples
    grown: Counters | None


@contextmanager
def opened(subjects: tuple[Subject, ...], cores: Cores) -> Iterator[dict[str, str]]:
    """Addresses of the services by name; those that do not run yet run until the block ends.

    Raises:
        Failed: if one does not start; the message has the end of what it wrote.
    """
    with ExitStack() as stack:
        found = {}
        for subject in subjects:
            if subject.url:
                found[subject.name] = subject.url
                continue
            with on(cores.service):
                environment = {"ATTENTION_BACKEND": subject.backend}
                server = stack.enter_context(started_service(None, subject.device, environment=environment))
            found[subject.name] = f"http://127.0.0.1:{server.port}"
        yield found


class Run:
    """Measures, and remembers. What has been measured is there even if the run is broken off."""

    def __init__(
        self, plan: Plan, suite: Suite, urls: Mapping[str, str], done: Callable[[Step], None], measures: bool = True
    ) -> None:
        """`done` is told of every measurement, `measures` whether the services show their counters."""
        self.plan, self.suite, self.urls, self.done, self.measures = plan, suite, urls, done, measures
        self.steps: list[Step] = []
        self.knees: dict[str, list[float]] = {name: [] for name in urls}  # a rate for each round; 0: none holds
        self.about: dict[str, dict[str, str]] = {name: {} for name in urls}

    def go(self) -> None:
        """Measure all that the plan asks for.

        Raises:
            Failed: if something cannot be measured.
        """
        for name in self.urls:
            if self.measures:
                self.about[name] = read(self.urls[name]).about()
            warm = self._measure(name, "warm-up", 0, min(WARM_UP_S, self.plan.seconds), WARM_UP_CONNECTIONS)
            if not warm.samples.ok.any():
                raise Failed(f"{name} answered nothing rightly; {next(iter(figures.errors([warm.samples])), '')}")
        for round_ in self._rounds():
            for connections in self.plan.ladder:
                for name in self._turns(round_):
                    self._measure(name, "closed", round_, self.plan.seconds, connections)
        for round_ in self._rounds():
            for name in self._turns(round_):
                self.knees[name].append(self._knee(name, round_))
        for round_ in self._rounds():
            for name in self._turns(round_):
                if rate := self.rate(name):
                    self._open(name, "open", round_, rate * OPEN_SHARE)

    def rate(self, name: str) -> float:
        """The highest rate that holds the target: the median of the rounds so far, 0 if there is none."""
        return statistics.median(self.knees[name]) if self.knees[name] else 0.0

    def _rounds(self) -> range:
        return range(1, self.plan.rounds + 1)

    def _turns(self, round_: int) -> list[str]:
        names = list(self.urls)
        return names if round_ % 2 else names[::-1]

    def _knee(self, name: str, round_: int) -> float:
        mine = [s for s in self.steps if (s.subject, s.phase, s.round) == (name, "closed", round_)]
        best = max(step.figures["rate"] for step in mine)
        if not best:
            return 0.0
        return highest(
            partial(self._holds, name, "search", round_),
            partial(self._holds, name, "confirm", round_),
            best * FIRST_SHARE,
            precision=self.plan.precision,
            least=best / 50,
        )

    def _holds(self, name: str, phase: Phase, round_: int, rate: float) -> bool:
        return bool(self._open(name, phase, round_, rate).holds)

    def _open(self, name: str, phase: Phase, round_: int, rate: float) -> Step:
        seconds = self.plan.seconds_for(rate, longer=phase != "search")
        return self._measure(name, phase, round_, seconds, OPEN_CONNECTIONS, rate)

    def _measure(
        self,
        name: str,
        phase: Phase,
        round_: int,
        seconds: int,
        connections: int,
        rate: float | None = None,
    ) -> Step:
        url = self.urls[name]
        before = read(url) if self.measures else None
        samples = self.suite.run(url, seconds, connections=connections, rate=rate)
        step = Step(
            name,
            phase,
            round_,
            connections,
            rate,
            None if rate is None else figures.holds(samples, rate, self.plan.slo),
            self._figures(samples, rate),
            samples,
            None if before is None else grown(url, before, figures.answered(samples)),
        )
        self.steps.append(step)
        self.done(step)
        return step

    def _figures(self, samples: Samples, rate: float | None) -> Figures:
        slo = self.plan.slo
        reached = figures.closed_rate(samples) if rate is None else figures.open_rate(samples, rate, slo)
        return {
            "seconds": samples.elapsed_s,
            "requests": len(samples),
            "errors": int((~samples.ok).sum()),
            "rate": reached,
            **figures.latencies(samples),
            "slo_ms": figures.percentile_ms(samples, slo.percent),
            "generator": figures.generator_share(samples),
        }
