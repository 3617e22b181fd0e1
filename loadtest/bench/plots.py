"""Pictures of the results, as SVG: colours that colour-blind people can tell apart, and a marker for each beside."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from loadtest.bench.results import Results, Row

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito 2008, https://jfly.uni-koeln.de/color/."""
MARKERS: Final = "os^Dv<>"
PARTS: Final = ("decode", "queue", "compute", "encode", "outside")
STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "bench",  # the same results make the same file
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


def draw(results: Results, folder: Path) -> None:
    """Draw whatever there are results of."""
    made: dict[str, Callable[[list[Row], Results, Path], None]] = {
        "floor": _floor,
        "concurrency": _concurrency,
        "sizes": _sizes,
        "stages": _stages,
        "memory": _memory,
        "tile": _tile,
    }
    for section, drawn in made.items():
        if rows := results.section(section):
            drawn(rows, results, folder)


@contextmanager
def figure(
    path: Path | IO[str], columns: int = 1, height: float = 3.6, width: float = 6.4, **style: Any
) -> Iterator[list[Any]]:
    """Axes side by side, saved when the block ends; `width` is of a single one, `style` on top of STYLE."""
    with mpl.rc_context(STYLE | style):
        drawn = Figure(figsize=(4.6 * columns if columns > 1 else width, height), layout="constrained")
        yield list(drawn.subplots(1, columns, squeeze=False)[0])
        drawn.savefig(path, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))


def log_ticks(axis: Any, values: Sequence[int]) -> None:
    """Powers of two, or whatever was measured, written as plain numbers."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(values, [f"{value:,}" for value in values], fontsize=8)
    axis.minorticks_off()


def plain_log(axis: Any) -> None:
    """A logarithmic axis upwards, with plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _line(axis: Any, points: Sequence[tuple[Any, float]], at: int, label: str, **more: Any) -> None:
    xs, ys = zip(*points, strict=True)
    axis.plot(xs, ys, color=COLOURS[at % len(COLOURS)], marker=MARKERS[at % len(MARKERS)], label=label, **more)


def _floor(rows: list[Row], results: Results, folder: Path) -> None:
    served = results.section("service")
    for backend in dict.fromkeys(row.key["backend"] for row in rows):
        names = list(dict.fromkeys(str(row.key["case"]) for row in rows))
        best = {
            name: max(r.figures["rate"] for r in rows if (r.key["case"], r.key["backend"]) == (name, backend))
            for name in names
        }
        series: dict[str, dict[str, float]] = {}
        for row in served:
            if row.key["backend"] == backend:
                name = str(row.key["case"])
                series.setdefault(_label(row), {})[name] = row.figures["rate"] / best[name] * 100
        with figure(folder / f"floor-{backend}.svg") as (axis,):
            width = 0.8 / max(1, len(series))
            for at, (label, shares) in enumerate(series.items()):
                places = [i + (at - (len(series) - 1) / 2) * width for i in range(len(names))]
                bars = axis.bar(places, [shares[n] for n in names], width * 0.92, color=COLOURS[at], label=label)
                axis.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
            axis.set_xticks(range(len(names)), names)
            axis.set_ylabel("throughput, % of the computation alone")
            axis.set_title(f"{backend}: how much of the raw speed is left", loc="left")
            axis.grid(visible=False, axis="x")
            axis.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, -0.25))


def _concurrency(rows: list[Row], results: Results, folder: Path) -> None:
    for case in dict.fromkeys(row.key["case"] for row in rows):
        with figure(folder / f"concurrency-{case}.svg", 2) as (rate, latency):
            some = [row for row in rows if row.key["case"] == case]
            for at, label in enumerate(dict.fromkeys(map(_label, some))):
                mine = [row for row in some if _label(row) == label]
                _line(rate, [(row.key["connections"], row.figures["rate"]) for row in mine], at, label)
                for name, style in (("p50", "-"), ("p99", ":")):
                    points = [(row.key["connections"], row.figures[f"{name}_ms"]) for row in mine]
                    _line(latency, points, at, f"{label}, {name}", linestyle=style)
            for axis in (rate, latency):
                log_ticks(axis, sorted({int(row.key["connections"]) for row in some}))
                axis.set_xlabel("connections")
                axis.legend(fontsize=8)
            rate.set_ylim(bottom=0)
            rate.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            rate.set_title(f"{case}: requests a second", loc="left")
            plain_log(latency)
            latency.set_title(f"{case}: latency, ms", loc="left")


def _sizes(rows: list[Row], results: Results, folder: Path) -> None:
    for over, what in (("n", "tokens in the sequence"), ("d", "width of an embedding")):
        some = [row for row in rows if row.key["over"] == over]
        if not some:
            continue
        with figure(folder / f"sizes-{over}.svg", height=4.2) as (axis,):
            _line(axis, [(row.key[over], row.figures["p50_ms"]) for row in some], 6, "all", linewidth=2.4)
            for at, part in enumerate(PARTS):
                _line(axis, [(row.key[over], max(1e-3, row.figures[f"{part}_ms"])) for row in some], at, part)
            log_ticks(axis, [int(row.key[over]) for row in some])
            plain_log(axis)
            axis.set_xlabel(what)
            axis.set_ylabel("median, ms")
            axis.set_title("Where a lone request's time goes", loc="left")
            axis.legend(ncols=2, fontsize=8)


def _stages(rows: list[Row], results: Results, folder: Path) -> None:
    some = [row for row in rows if "format" in row.key][::-1]
    if not some:
        return
    labels = [f"{row.key['case']}, {row.key['format']}" for row in some]
    with figure(folder / "stages.svg", height=1.2 + 0.3 * len(some)) as (axis,):
        left = [0.0] * len(some)
        for at, part in enumerate(PARTS):
            sums = [sum(row.figures[f"{name}_ms"] for name in PARTS) for row in some]
            shares = [row.figures[f"{part}_ms"] / total * 100 for row, total in zip(some, sums, strict=True)]
            axis.barh(labels, shares, 0.72, left=left, color=COLOURS[at], edgecolor="white", linewidth=0.6, label=part)
            left = [before + share for before, share in zip(left, shares, strict=True)]
        for i, row in enumerate(some):
            axis.text(101, i, f"{row.figures['p50_ms']:.2f} ms", va="center", fontsize=8)
        axis.set_xlim(0, 100)
        axis.set_xlabel("share of the time, %; median at the right")
        axis.grid(visible=False, axis="y")
        axis.set_title("Where a lone request's time goes", loc="left", pad=24)
        axis.legend(ncols=5, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)


def _memory(rows: list[Row], results: Results, folder: Path) -> None:
    some = [row for row in rows if "n" in row.key]
    if not some:
        return
    lengths = [int(row.key["n"]) for row in some]
    with figure(folder / "memory.svg") as (axis,):
        _line(axis, [(row.key["n"], max(0.5, row.figures["grown_mib"])) for row in some], 0, "the service, at its peak")
        scores = [(n, 4 * n * n / (1 << 20)) for n in lengths]
        _line(axis, scores, 1, "one matrix of float32 scores, for comparison", linestyle="--")
        log_ticks(axis, lengths)
        plain_log(axis)
        axis.set_xlabel("tokens in the sequence")
        axis.set_ylabel("MiB")
        axis.set_title("Memory for outputs alone, width 64", loc="left")
        axis.legend(fontsize=8)


def by_layer(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows over the length of a sequence, by width, heads, and what is wanted."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row.key["d"], row.key["heads"], row.key["wanted"]), []).append(row)
    return found


def _tile(rows: list[Row], results: Results, folder: Path) -> None:
    """One graph's time over that of tiles, over the length of a sequence."""
    with figure(folder / "tile.svg", 2, 4.2) as axes:
        for axis, way, threads in zip(axes, ("tiles", "shared"), ("one thread", "two threads"), strict=True):
            for at, ((d, heads, wanted), some) in enumerate(by_layer(rows).items()):
                points = [(row.key["n"], row.figures["whole_ms"] / row.figures[f"{way}_ms"]) for row in some]
                _line(axis, points, at, f"width {d}, {heads} head{'s' * (heads != 1)}, {wanted}")
            axis.axhline(1, color="black", linewidth=1)
            log_ticks(axis, sorted({int(row.key["n"]) for row in rows}))
            axis.set_ylim(bottom=0)
            axis.set_xlabel("tokens in the sequence")
            axis.set_title(f"Tiles on {threads}: faster above the line", loc="left")
        axes[0].set_ylabel("time of one graph / time of tiles")
        axes[0].legend(fontsize=7)


def _label(row: Row) -> str:
    workers = row.key.get("workers")
    return f"{row.key['format']}, {workers} workers" if workers else str(row.key["format"])
