"""The report as one page: pictures first, numbers beside them, nothing loaded from anywhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from loadtest.report import charts
from loadtest.report.figures import PERCENTS
from loadtest.report.plan import Slo
from loadtest.report.results import COLUMNS, LATENCIES, Document
from loadtest.report.words import percent, shown

HEADS: Final = {
    "subject": "service", "asked": "asked/s", "rate": "requests/s", "rate_lowest": "lowest", "rate_highest": "highest",
    "p50_ms": "p50 ms", "p90_ms": "p90 ms", "p99_ms": "p99 ms", "p999_ms": "p99.9 ms", "mean_ms": "mean ms",
    "max_ms": "max ms", "slo_ms": "target's ms", "generator": "generator busy", "counted": "service's count",
    "mean_batch": "mean batch",
}  # fmt: skip
"""Heads of columns that are not called as in the document."""


@dataclass(frozen=True, slots=True)
class Part:
    """A table of the page, with what is to be said about it.

    Attributes:
        title: above it.
        text: between the two.
        heads: of the columns.
        rows: as many values each.
        folded: whether it is shown only on request.
    """

    title: str
    text: str
    heads: list[str]
    rows: list[list[Any]]
    folded: bool = False


def html(found: Document) -> str:
    """Write the page of a document that has its `headline`, `warnings` and `thresholds`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    return environment.get_template("report.html.j2").render(
        found=found,
        pictures=[Markup(svg) for svg in _pictures(found) if svg],
        parts=[part for part in _parts(found) if part.rows],
    )


def _pictures(found: Document) -> list[str]:
    subjects, most = found["subjects"], max(found["options"]["connections"])
    return [
        charts.curve(subjects, found["slo"]["percent"], found["slo"]["ms"]),
        charts.over_connections(subjects, "rate", "Requests a second"),
        charts.over_connections(subjects, "p99_ms", "p99 latency, ms"),
        charts.stages(subjects),
        charts.batches(subjects, "closed", f"{most} connections"),
        charts.batches(subjects, "open", "open loop"),
    ]


def _parts(found: Document) -> Iterator[Part]:
    yield from _rates(found)
    yield from _work(found)
    yield from _trust(found)


def _rates(found: Document) -> Iterator[Part]:
    subjects, slo = found["subjects"], Slo(**found["slo"])
    yield Part(
        f"The highest rate with {slo}",
        "Requests are due at fixed times, whatever the service does, and latency counts from when a request was due. A "
        f"rate is held if every answer is right, {slo}, and 98 % of the answers are there soon enough. Looked for to "
        f"{percent(found['options']['precision'])}, and confirmed by a longer run.",
        ["service", "requests/s", "lowest", "highest", "each round", f"p{slo.percent:g} ms"],
        [
            [s["name"], s["knee"]["rate"], s["knee"]["lowest"], s["knee"]["highest"],
             ", ".join(map(shown, s["knee"]["rounds"])), s["knee"]["slo_ms"]]
            for s in subjects
        ],
    )  # fmt: skip
    opened = [s for s in subjects if s["open"]]
    names = ["asked", "requests", "errors", "error_share", "rate", *LATENCIES]
    yield Part(
        "Latency below it",
        f"An open loop at {percent(opened[0]['open']['share_of_knee'])} of that rate: about what a replica should get."
        if opened
        else "",
        ["service", *map(_head, names)],
        [[s["name"], *(s["open"][name] for name in names)] for s in opened],
    )
    curved = [s for s in opened if s["open"]["curve"]]
    yield Part(
        "Latency over percentiles, ms",
        "The points of the first picture; of percentiles beyond which there was not one request, none.",
        ["percentile", *(s["name"] for s in curved)],
        [
            [f"p{point:g}", *(s["open"]["curve"].get(f"{point:g}") for s in curved)]
            for point in PERCENTS
            if any(f"{point:g}" in s["open"]["curve"] for s in curved)
        ],
    )
    names = ["connections", "rate", "rate_lowest", "rate_highest", *LATENCIES, "errors"]
    yield Part(
        "Over connections",
        "A closed loop: each connection sends its next request as soon as it has an answer, so a service that stalls "
        "is asked less.",
        ["service", *map(_head, names)],
        [[s["name"], *(step[name] for name in names)] for s in subjects for step in s["closed"]],
    )


def _work(found: Document) -> Iterator[Part]:
    subjects = found["subjects"]
    kinds = {
        "median": "medians", "mean": "means", "slowest": "means of the slowest 1 %", "metrics": "means by /metrics",
    }  # fmt: skip
    yield Part(
        "Where the time goes, ms",
        "From the Server-Timing of each answer; medians do not add up to a median. Waiting is "
        "from when a request was due until it was sent, outside what no stage counts after that: sockets, HTTP, the "
        "generator.",
        ["service", "of", *charts.PARTS],
        [
            [s["name"], label, *(s["stages"][kind].get(f"{part}_ms") for part in charts.PARTS)]
            for s in subjects
            for kind, label in kinds.items()
            if kind in s["stages"]
        ],
    )
    phases = {"closed": "most connections", "open": "open loop"}
    batched = [(s["name"], phase, s["batches"][phase]) for s in subjects for phase in phases if phase in s["batches"]]
    labels = max((list(batches["counts"]) for *_, batches in batched), key=len, default=[])
    yield Part(
        "Batches",
        "How many sequences the batches held that the service computed meanwhile, by its own count.",
        ["service", "in", "mean", "padding", *labels],
        [
            [name, phases[phase], some["mean"], some["padding_share"], *(some["counts"].get(n, 0) for n in labels)]
            for name, phase, some in batched
        ],
    )
    names = ["requests", "errors", "p50_ms", "p99_ms"]
    yield Part(
        "By kind of request",
        "",
        ["service", "kind", *map(_head, names)],
        [[s["name"], kind, *(some[name] for name in names)] for s in subjects for kind, some in s["kinds"].items()],
    )


def _trust(found: Document) -> Iterator[Part]:
    subjects = found["subjects"]
    yield Part(
        "Errors",
        "Rates above what a service holds are tried on purpose in the search; errors elsewhere are not expected.",
        ["service", "in", "what", "times"],
        [
            [s["name"], phase, text, count]
            for s in subjects
            for phase, kinds in s["errors"].items()
            for text, count in kinds.items()
        ],
    )
    yield Part(
        "Requests counted twice",
        "By the generator, and by the service's own counters.",
        ["service", "generator", "service's", "measurements that differ"],
        [
            [s["name"], *(s["counted"][name] for name in ("generator", "service", "differ"))]
            for s in subjects
            if s["counted"]
        ],
    )
    yield Part(
        "Every measurement",
        "",
        [_head(name) for name in COLUMNS],
        [[step[name] for name in COLUMNS] for step in found["steps"]],
        folded=True,
    )
    about = [(f"{s['name']}: {name}", value) for s in subjects for name, value in s["about"].items()]
    yield Part(
        "Machine and versions",
        "The generator's machine, and what each service says of itself.",
        ["what", "is"],
        [[name, str(value)] for name, value in (*found["machine"].items(), ("cores used", found["cores"]), *about)],
    )


def _head(name: str) -> str:
    return HEADS.get(name, name.replace("_", " "))
