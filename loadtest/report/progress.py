"""What is shown on standard error while a run is going on: a bar in a terminal, and a line for each measurement."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.report.plan import Plan
from loadtest.report.run import Step
from loadtest.report.words import shown

SEARCH_PROBES = 8
"""How many measurements a search takes, as a guess for the bar; it is put right at the end of each search."""


class Shown:
    """The bar and the lines of a run."""

    def __init__(self, plan: Plan, bar: Progress) -> None:
        """Guess how many measurements there will be."""
        self.bar = bar
        each = len(plan.ladder) + SEARCH_PROBES + 2  # of a round: a confirmation, and the open loop
        self.task = bar.add_task("starting", total=len(plan.subjects) * (1 + plan.rounds * each))

    def say(self, text: str) -> None:
        """What is going on now."""
        self.bar.update(self.task, description=text)
        if not self.bar.console.is_terminal:
            self.bar.console.print(text, markup=False)

    def done(self, step: Step) -> None:
        """A measurement is there: a line for it."""
        self.bar.console.print(line(step), markup=False, highlight=False)
        self.bar.update(self.task, description=f"{step.subject}, {step.phase}")
        self.bar.advance(self.task, SEARCH_PROBES / 2 if step.phase == "confirm" and step.holds else 1 / 2)


def line(step: Step) -> str:
    """A measurement in a line."""
    found = step.figures
    if step.asked is None:
        asked = f"{step.connections} connection{'s' * (step.connections > 1)}"
    else:
        asked = f"{shown(step.asked)}/s"
    verdict = {None: "", True: ", holds", False: ", does not hold"}[step.holds if step.phase != "open" else None]
    failed = f", {found['errors']:,.0f} errors" if found["errors"] else ""
    return (
        f"{step.subject:<12} {step.phase:<8} {asked:<16} {shown(float(found['rate'])):>8} requests/s, p50 "
        f"{shown(found['p50_ms'])} ms, p99 {shown(found['p99_ms'])} ms{failed}{verdict}"
    )


@contextmanager
def showing(plan: Plan) -> Iterator[Shown]:
    """Show the progress of a run until the block ends; plain lines where standard error is not a terminal."""
    console = Console(stderr=True, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Drawn seldom: we share the generator's cores.
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=2, disable=not console.is_terminal
    ) as bar:
        yield Shown(plan, bar)
