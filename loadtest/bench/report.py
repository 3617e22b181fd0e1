"""The report: results as Markdown tables, with the pictures of `plots` between them."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from loadtest.bench import plots
from loadtest.bench.measure import STAGES
from loadtest.bench.results import Results, Row
from loadtest.bench.sections import BUSY, FIXED_LENGTH, FIXED_WIDTH
from loadtest.bench.tables import number, table
from loadtest.bench.tiles import TILE_FROM, WIDE_HEAD
from loadtest.bench.work import cases

PARTS: Final = (*STAGES, "outside")
_STAGE_HEAD: Final = ("p50 ms", "p99 ms", *(f"{part} ms" for part in PARTS))


def write(results: Results, folder: Path) -> Path:
    """Write `report.md`, its pictures and `results.json`; the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder / "results.json")
    plots.draw(results, folder)
    path = folder / "report.md"
    path.write_text(markdown(results))
    return path


def markdown(results: Results) -> str:
    """The report's text."""
    parts = [_head(results)]
    for section, made in SECTIONS.items():
        if rows := results.section(section):
            parts.append(made(rows, results))
    return "\n\n".join(parts) + "\n"


def progress(row: Row) -> None:
    """A line on stderr for what has just been measured."""
    what = " ".join(str(value) for value in row.key.values())
    shown = " ".join(f"{name} {number(value)}" for name, value in list(row.figures.items())[:3])
    sys.stderr.write(f"{row.section}: {what}: {shown}\n")


def picture(name: str, title: str) -> str:
    """A picture of the report's folder."""
    return f"![{title}]({name}.svg)"


def _head(results: Results) -> str:
    facts = table(("", ""), results.facts.items())
    asked = ", ".join(f"{name} {value}" for name, value in results.options.items() if value)
    shapes = table(("case", "a request"), [(case.name, case.title) for case in cases().values()])
    return (
        "# Benchmark\n\nMade by `make bench`. Timings of one machine say little about another's, nor do those of two "
        "runs: compare ratios within one.\n\n## Machine\n\n"
        f"{facts}\n\nAsked for: {asked}. Every figure is the median of the rounds, which take turns. Every answer's "
        "status and length were checked, and some answers' numbers against NumPy in float64. The load generator shares "
        f"the cores with what it measures.\n\n{shapes}"
    )


def _floor(rows: list[Row], results: Results) -> str:
    text = [
        "## The service beside its floor\n\nSequences a second. The floor is the computation alone, called in a loop: "
        "by one process, by one for each core, and in batches of 16 there. `ratio` is the service over the best floor; "
        f"{BUSY} connections."
    ]
    served = results.section("service")
    for backend in dict.fromkeys(row.key["backend"] for row in rows):
        lines = []
        for case in dict.fromkeys(row.key["case"] for row in rows):
            raw = {
                (row.key["processes"] != 1, row.key["batch"] != 1): row.figures["rate"]
                for row in rows
                if (row.key["case"], row.key["backend"]) == (case, backend)
            }
            kinds = ((False, False), (True, False), (True, True))
            floors = [number(raw.get(kind, float("nan"))) for kind in kinds]
            for row in served:
                if (row.key["case"], row.key["backend"]) == (case, backend):
                    rate = row.figures["rate"]
                    ratio = f"{rate / max(raw.values()):.2f}"
                    lines.append((case, *floors, _of(row), number(rate), ratio, _errors(row)))
        head = ("case", "one core", "all cores", "in batches", "service", "rate", "ratio", "errors")
        text.append(
            f"### {backend}\n\n{table(head, lines)}\n\n{picture(f'floor-{backend}', f'{backend}: share of the floor')}"
        )
    return "\n\n".join(text)


def _concurrency(rows: list[Row], results: Results) -> str:
    text = ["## Over concurrency\n\nBackend onnx, a closed loop."]
    for case in dict.fromkeys(row.key["case"] for row in rows):
        lines = [
            (
                _of(row),
                row.key["connections"],
                *(number(row.figures[name]) for name in ("rate", "p50_ms", "p99_ms")),
                _errors(row),
                number(row.figures["client_us"]),
            )
            for row in rows
            if row.key["case"] == case
        ]
        head = ("format", "connections", "requests/s", "p50 ms", "p99 ms", "errors", "client µs")
        shown = picture(f"concurrency-{case}", f"{case} over connections")
        text.append(f"### {case}\n\n{shown}\n\n{table(head, lines)}")
    text.append("`client µs` is what the load generator itself used for an answer.")
    return "\n\n".join(text)


def _sizes(rows: list[Row], results: Results) -> str:
    text = [
        "## Over length and width\n\nOne request at a time, in safetensors, one head; medians by stage. `outside` is "
        "what no stage counts: sockets, HTTP, routing, and the client."
    ]
    for over, what in (("n", f"n tokens, width {FIXED_WIDTH}"), ("d", f"width d, {FIXED_LENGTH} tokens")):
        lines = [(row.key[over], *_staged(row)) for row in rows if row.key["over"] == over]
        shown = picture(f"sizes-{over}", f"Latency by stage over {what}")
        text.append(f"### {what}\n\n{shown}\n\n{table((over, *_STAGE_HEAD), lines)}")
    return "\n\n".join(text)


def _stages(rows: list[Row], results: Results) -> str:
    lines = []
    for row in rows:
        overhead = (number(row.figures.get(f"overhead_{p}_ms", float("nan"))) for p in ("p50", "p99"))
        lines.append((row.key["case"], row.key.get("format", ""), *_staged(row), *overhead))
    head = ("case", "format", *_STAGE_HEAD, "overhead p50 ms", "overhead p99 ms")
    return (
        "## Where a lone request's time goes\n\n`overhead` is latency less `compute`, request by request. The first "
        f"row is the floor under all others.\n\n{table(head, lines)}\n\n{picture('stages', 'Share of each stage')}"
    )


def _memory(rows: list[Row], results: Results) -> str:
    cells = []
    for row in rows:
        n = row.key.get("n")
        what = f"{row.key['after']} of {n:,} tokens" if n else row.key["after"]
        cells.append((what, *(number(row.figures.get(f, float("nan"))) for f in ("rss_mib", "peak_mib", "grown_mib"))))
    shown = picture("memory", "Memory for outputs alone")
    return (
        "## Memory\n\nResident memory of all processes of the service, MiB: after each step, and the most during it. "
        "Outputs alone are of width 64; `grown` is the peak over what there was before, the answer and the request "
        f"included.\n\n{table(('after', 'RSS', 'peak', 'grown'), cells)}\n\n{shown}"
    )


def _tile(rows: list[Row], results: Results) -> str:
    text = [
        "## `TILE_FROM`: a lone sequence in tiles\n\n`whole` is one graph, `tiles` are computed by one thread, and "
        f"`shared` by two. The service takes tiles from {TILE_FROM:,} tokens of several heads or of a "
        f"head of {WIDE_HEAD} or more, and from {2 * TILE_FROM:,} of a narrower one."
    ]
    for (d, heads, wanted), some in plots.by_layer(rows).items():
        lines = []
        for row in some:
            whole, tiles, shared = times = [row.figures[f"{way}_ms"] for way in ("whole", "tiles", "shared")]
            lines.append((row.key["n"], *map(number, times), f"{whole / tiles:.2f}", f"{whole / shared:.2f}"))
        head = ("tokens", "whole ms", "tiles ms", "shared ms", "whole / tiles", "whole / shared")
        what = f"Width {d}, {heads} head{'s' * (heads != 1)}, {wanted}"
        found = f"on one thread {_from(some, 'tiles')}, on two {_from(some, 'shared')}"
        text.append(f"{what}: tiles keep up {found}.\n\n{table(head, lines)}")
    text.append(picture("tile", "A lone sequence in tiles"))
    return "\n\n".join(text)


def _from(rows: Sequence[Row], way: str) -> str:
    pays = crossover(rows, "whole", way)
    return f"from {pays:,} tokens" if pays else "at no length"


def crossover(rows: Sequence[Row], first: str, second: str) -> int | None:
    """The fewest tokens from which on the second way is never slower; None if it is at the longest."""
    found = None
    for row in sorted(rows, key=lambda row: row.key["n"], reverse=True):
        if row.figures[f"{second}_ms"] > row.figures[f"{first}_ms"]:
            break
        found = int(row.key["n"])
    return found


def _hand_over(rows: list[Row], results: Results) -> str:
    lines = [
        (row.key["work"], row.key["to"], *(number(row.figures[f"p{percent}_us"]) for percent in (50, 90, 99)))
        for row in rows
    ]
    return (
        "## `HERE_S`: handing work over\n\nFrom handing work over until its waiter runs again, µs, while nothing else "
        f"is asked for.\n\n{table(('work', 'to', 'p50', 'p90', 'p99'), lines)}"
    )


SECTIONS: Final[dict[str, Callable[[list[Row], Results], str]]] = {
    "floor": _floor,
    "concurrency": _concurrency,
    "sizes": _sizes,
    "stages": _stages,
    "memory": _memory,
    "tile": _tile,
    "hand over": _hand_over,
}
"""What is written of each section of the results."""


def _of(row: Row) -> str:
    workers = row.key.get("workers")
    return f"{row.key['format']}, {workers} workers" if workers else str(row.key["format"])


def _staged(row: Row) -> list[str]:
    names = ("p50_ms", "p99_ms", *(f"{part}_ms" for part in PARTS))
    return [number(row.figures.get(name, float("nan"))) for name in names]


def _errors(row: Row) -> int:
    return int(row.figures["errors"])
