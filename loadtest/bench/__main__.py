"""Run the benchmarks: `make bench`, or `python -m loadtest.bench [SECTION …]`."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from loadtest.bench import floor, report, sections, work
from loadtest.bench.choices import choices
from loadtest.bench.http import Failed
from loadtest.bench.machine import facts
from loadtest.bench.options import add_common, positive, several
from loadtest.bench.processes import end_in_order, started_service
from loadtest.bench.results import Results, Row
from loadtest.bench.sections import Plan

SECTIONS: Final = ("floor", "concurrency", "sizes", "stages", "memory", "choices")
CONCURRENCIES: Final = (1, 2, 4, 8, 16, 32, 64)
QUICK: Final[dict[str, Any]] = {
    "cases": ("S", "M", "mixed"),
    "formats": ("json", "safetensors"),
    "connections": (1, 8, 32),
    "lengths": (16, 128, 1024),
    "widths": (64, 384, 1024),
    "seconds": 0.6,
    "rounds": 1,
}
"""What `--quick` asks for unless told otherwise."""

FULL: Final[dict[str, Any]] = {
    "cases": tuple(work.cases()),
    "formats": ("json", "safetensors", "npy"),
    "connections": CONCURRENCIES,
    "lengths": sections.LENGTHS,
    "widths": sections.WIDTHS,
    "seconds": 2.0,
    "rounds": 3,
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m loadtest.bench",
        description="Measure the service: beside its floor, over connections and sizes, by stage, and its memory; and "
        "measure again how its thresholds were chosen. Writes report.md with pictures, and results.json.",
        epilog="Nothing else should run on the machine meanwhile. Compare two runs of one machine with "
        "`python -m loadtest.bench.compare`.",
    )
    made.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)} (default: all)")
    made.add_argument("--quick", action="store_true", help="a first impression, in a minute or two")
    add_common(made, cases=list(work.cases()))
    made.add_argument("--formats", type=several("json", "safetensors", "npy"), help="of json, safetensors, npy")
    made.add_argument("--backends", type=several("onnx", "eager"), default=("onnx", "eager"), help="of onnx, eager")
    made.add_argument(
        "--lengths", type=several(of=positive), help="tokens that the sections sizes and choices go through"
    )
    made.add_argument("--widths", type=several(of=positive), help="widths that the section sizes goes through")
    made.add_argument("--device", default="auto", help="ATTENTION_DEVICE of the service (default: %(default)s)")
    made.add_argument(
        "--workers",
        type=several(of=positive),
        default=(0,),
        help="values of ATTENTION_WORKERS to compare, such as 1,2 (default: not set)",
    )
    made.add_argument("--out", type=Path, default=Path("bench-report"), help="folder written to (default: %(default)s)")
    return made


def plan_of(options: argparse.Namespace) -> Plan:
    """What the command line asks for; what it leaves open is filled in."""
    defaults = QUICK if options.quick else FULL
    asked = {
        name: default if getattr(options, name) is None else getattr(options, name)
        for name, default in defaults.items()
    }
    asked["cases"] = tuple(work.cases()[name] for name in asked["cases"])
    return Plan(**asked, backends=options.backends, device=options.device, workers=options.workers)


def measured(plan: Plan, wanted: Sequence[str], folder: Path) -> Iterator[Row]:
    """Every row of the sections wanted; the services run as long as some of them need it."""
    work.write_repository(folder / "repository", plan.layers())
    needs_service = {"floor", "concurrency", "sizes", "stages"} & set(wanted)
    with ExitStack() as stack:
        services = {
            workers: stack.enter_context(started_service(folder, plan.device, workers))
            for workers in (plan.workers if needs_service else ())
        }
        if "floor" in wanted:
            with floor.opened(plan.device) as raw:
                yield from sections.floor(plan, services, raw)
        if "concurrency" in wanted:
            yield from sections.concurrency(plan, services)
        if "sizes" in wanted:
            yield from sections.sizes(plan, services[plan.workers[0]])
        if "stages" in wanted:
            yield from sections.stages(plan, services[plan.workers[0]])
    if "memory" in wanted and Path("/proc/self/status").exists():
        yield from sections.memory(plan, folder)
    if "choices" in wanted:
        yield from choices(plan.rounds, plan.seconds, tuple(n for n in plan.lengths if n >= 64))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Returns:
        0; 1 if something could not be measured, with the reason on stderr.
    """
    command = parser()
    options = command.parse_args(arguments)
    if unknown := set(options.sections) - set(SECTIONS):
        command.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    plan, wanted = plan_of(options), options.sections or SECTIONS
    rows: list[Row] = []
    machine = facts()
    begun = time.monotonic()
    end_in_order()
    try:
        with tempfile.TemporaryDirectory(prefix="attention-bench-") as folder:
            for row in measured(plan, wanted, Path(folder)):
                rows.append(row)
                report.progress(row)
    except (OSError, Failed, work.WrongAnswer) as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    asked = {
        "sections": " ".join(wanted),
        "seconds": plan.seconds,
        "rounds": plan.rounds,
        "device": plan.device,
        "took": f"{(time.monotonic() - begun) / 60:.1f} min",
    }
    results = Results(machine, asked, rows)
    sys.stdout.write(f"{report.markdown(results)}\nWritten: {report.write(results, options.out)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
