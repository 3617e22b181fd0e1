"""What `attention loadtest` does: measure, judge, and write `report.html`, `report.json` and `report.csv`."""

import datetime
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.http import Failed
from loadtest.bench.machine import facts
from loadtest.bench.processes import end_in_order
from loadtest.report import page, results, words
from loadtest.report.cores import halves, on
from loadtest.report.counters import read
from loadtest.report.plan import Plan
from loadtest.report.progress import Shown, showing
from loadtest.report.run import Run, opened
from loadtest.report.suite import Suite
from loadtest.report.thresholds import Threshold, misses

MISSED: Final = 1
CANNOT: Final = 2
"""Exit codes: something wanted was missed; nothing could be measured, or what was asked for makes no sense."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a run has to reach.

    Attributes:
        file: where that is written.
        wanted: what is.
    """

    file: str
    wanted: tuple[Threshold, ...]


def measure(plan: Plan, folder: Path, judged: Judged | None) -> int:
    """Measure, and write the report; a run that is broken off leaves what it has, and no process.

    Returns:
        The exit code: 0, MISSED, CANNOT, or 128 and the number of the signal that broke it off.
    """
    begun, started_at = time.monotonic(), datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    machine, cores, code = facts(), halves(plan.pin and not plan.subjects[0].url), 0
    end_in_order()
    run = None
    with tempfile.TemporaryDirectory(prefix="attention-loadtest-") as scratch, on(cores.generator):
        suite = Suite(plan.users, plan.models, plan.tokens, plan.arrivals, plan.seed, Path(scratch))
        try:
            with showing(plan) as shown:
                shown.say("Starting what is to be measured …" if not plan.subjects[0].url else "Asking the service …")
                with opened(plan.subjects, cores) as urls:
                    run = Run(plan, suite, urls, shown.done, _shows_counters(urls, plan, shown))
                    run.go()
        except (KeyboardInterrupt, SystemExit) as stop:
            code = stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130
        except (OSError, Failed) as error:
            sys.stderr.write(f"attention loadtest: {error}\n")
            code = CANNOT
    if run is None or not any(step.samples.ok.any() for step in run.steps):
        sys.stderr.write("Nothing was measured, so nothing was written.\n")
        return code
    found = results.document(
        run, command=repeated(plan, folder, judged), started_at=started_at, machine=machine, cores=str(cores)
    )
    found["took_s"] = round(time.monotonic() - begun, 1)
    missed = [] if judged is None else misses(judged.wanted, found)
    found["thresholds"] = judged and {"file": judged.file, "wanted": len(judged.wanted), "misses": missed}
    found["headline"] = words.headline(found)
    found["warnings"] = words.warnings(found, stopped=code != 0)
    write(found, folder)
    _tell(found, folder)
    wrong = any(words.is_wrong(text) for s in found["subjects"] for kinds in s["errors"].values() for text in kinds)
    return code or (MISSED if missed or wrong else 0)


def write(found: results.Document, folder: Path) -> None:
    """Write the three files of a document."""
    folder.mkdir(parents=True, exist_ok=True)
    results.write_json(found, folder / "report.json")
    results.write_csv(found, folder / "report.csv")
    (folder / "report.html").write_text(page.html(found))


def repeated(plan: Plan, folder: Path, judged: Judged | None) -> str:
    """The command that measures the same again, with every option that has a say in it."""
    first = plan.subjects[0]
    backends = dict.fromkeys(subject.backend for subject in plan.subjects)
    devices = dict.fromkeys(subject.device for subject in plan.subjects)
    asked = ["--url", first.url] if first.url else ["--compare", ",".join(backends), "--devices", ",".join(devices)]
    slo = f"p{plan.slo.percent:g}={plan.slo.ms:g}ms"
    command = ["attention", "loadtest", *asked, "--slo", slo, "--users", plan.users, "--tokens", plan.tokens]
    command += ["--arrivals", plan.arrivals]
    if plan.models:
        command += ["--models", plan.models]
    command += ["--connections", ",".join(map(str, plan.ladder)), "--seconds", str(plan.seconds)]
    command += ["--rounds", str(plan.rounds), "--precision", f"{plan.precision:g}", "--seed", str(plan.seed)]
    command += ["--pin" if plan.pin else "--no-pin", "--out", str(folder)]
    if judged is not None:
        command += ["--thresholds", judged.file]
    settings = [f"{name}={value}" for name, value in sorted(os.environ.items()) if _is_setting(name)]
    return " ".join((*map(shlex.quote, settings), shlex.join(command)))


def _is_setting(name: str) -> bool:
    """Whether a variable changes the services that are started; what may be secret is not written down."""
    return name.startswith("ATTENTION_") and not name.endswith(("_KEYS", "_KEY"))


def _shows_counters(urls: dict[str, str], plan: Plan, shown: Shown) -> bool:
    """Whether `/metrics` can be read; of a service that we started it has to be."""
    if not plan.subjects[0].url:
        return True
    try:
        read(next(iter(urls.values())))
    except Failed as error:
        shown.say(f"Counting on our own: {error}")
        return False
    return True


def _tell(found: results.Document, folder: Path) -> None:
    lines = [found["headline"], ""]
    for subject in found["subjects"]:
        if subject["counted"]:
            ours, theirs = subject["counted"]["generator"], subject["counted"]["service"]
            lines.append(f"{subject['name']}: {ours:,} answers, and {theirs:,} requests by the service's own count")
    lines += [f"Warning: {warning}" for warning in found["warnings"]]
    lines += [f"Missed: {miss}" for miss in (found["thresholds"] or {"misses": []})["misses"]]
    lines += [f"Written: {folder / name}" for name in ("report.html", "report.json", "report.csv")]
    sys.stdout.write("\n".join(lines) + "\n")
