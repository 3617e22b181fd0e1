"""The report's pictures: SVG to be put into a page, in the page's colours, light or dark.

Nothing is told by colour alone: lines have markers and dashes of their own, and the parts of bars have hatches.
"""

import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from loadtest.bench.plots import MARKERS, figure, log_ticks, plain_log
from loadtest.report.results import Document

INK, GRID, PAPER = "#010101", "#020202", "#030303"
SERIES: Final = tuple(f"#0a0a0{i}" for i in range(7))
PAINT: Final = {INK: "--ink", GRID: "--grid", PAPER: "--paper"} | {c: f"--series-{i}" for i, c in enumerate(SERIES)}
"""Colours that stand for variables of the page."""
DASHES: Final = ("-", "--", "-.", ":")
HATCHES: Final = ("", "///", "...", "\\\\\\", "xxx", "+++", "ooo")
PARTS: Final = ("waiting", "decode", "queue", "compute", "encode", "outside")
STEEP: Final = 8.0
"""How many times the lowest value the highest is, where an axis becomes logarithmic."""
WIDTH, HEIGHT = 3.7, 2.9
"""Inches: small, so that letters stay readable where the picture is as wide as a telephone."""
STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",  # letters stay letters
    "font.size": 9,
    "hatch.linewidth": 0.6,
    "grid.color": GRID,
    "axes.titlesize": 10.5,
    "legend.fontsize": 8.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK
    ),
}


class Picture:
    """A picture while it is drawn; `svg` once the block has ended."""

    def __init__(self, title: str, height: float = HEIGHT) -> None:
        """`title` is what is read to somebody who does not see it."""
        self.title, self.svg, self._text = title, "", io.StringIO()
        self._figure = figure(self._text, height=height, width=WIDTH, **STYLE)

    def __enter__(self) -> Any:
        """The axes to draw on."""
        return self._figure.__enter__()[0]

    def __exit__(self, *error: Any) -> None:
        self._figure.__exit__(*error)
        self.svg = inline(self._text.getvalue(), self.title)


def inline(svg: str, title: str) -> str:
    """An SVG file as an element of a page: named, in the page's colours and letters, without ids but those it uses."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    svg = re.sub(r"#0[0-9a-f]{5}", lambda found: f"var({PAINT[found[0]]})" if found[0] in PAINT else found[0], svg)
    size = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    if size is not None:
        svg = svg.replace(size[0], 'width="100%"', 1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1).strip()


def curve(subjects: Sequence[Document], percent: float, target_ms: float) -> str:
    """Latency over percentiles, which lie the farther apart the rarer what is beyond them."""
    lines = [(s["name"], s["open"]) for s in subjects if s["open"] and s["open"]["curve"]]
    if not lines:
        return ""
    said = "; ".join(f"{name}: p50 {o['p50_ms']:.3g} ms, p99 {o['p99_ms']:.3g} ms" for name, o in lines)
    picture = Picture(f"Latency over percentiles. {said}.")
    with picture as axis:
        for at, (name, found) in enumerate(lines):
            points = [(100 / (100 - float(p)), ms) for p, ms in found["curve"].items()]
            _line(axis, points, at, f"{name}, {found['asked']:,.0f} requests/s")
        axis.axhline(target_ms, color=INK, linewidth=1, linestyle=(0, (1, 2)))
        axis.annotate(f"target of p{percent:g}", (1.0, target_ms), (0, 3), textcoords="offset points",
                      xycoords=("axes fraction", "data"), ha="right", fontsize=8.5)  # fmt: skip
        axis.set_xscale("log")
        ticks = {"50": 2, "75": 4, "90": 10, "95": 20, "99": 100, "99.5": 200, "99.9": 1000}
        axis.set_xticks(list(ticks.values()), list(ticks), fontsize=8.5)
        axis.minorticks_off()
        axis.set_xlim(2, max(110.0, *(100 / (100 - float(p)) * 1.1 for _, o in lines for p in o["curve"])))
        _upwards(axis, (found["curve"].values() for _, found in lines))
        axis.set_xlabel("percentile of requests")
        axis.set_title("Latency, ms", loc="left")
        _legend(axis)
    return picture.svg


def over_connections(subjects: Sequence[Document], name: str, title: str) -> str:
    """A figure of the closed loops over how many connections there were."""
    lines = [(s["name"], s["closed"]) for s in subjects if s["closed"]]
    if not lines:
        return ""
    said = "; ".join(
        f"{who}: " + ", ".join(f"{s['connections']}: {s[name]:.3g}" for s in steps) for who, steps in lines
    )
    picture = Picture(f"{title}, by connections. {said}.")
    with picture as axis:
        for at, (who, steps) in enumerate(lines):
            _line(axis, [(step["connections"], step[name]) for step in steps], at, who)
            if name == "rate":
                xs, low, high = zip(
                    *((s["connections"], s["rate_lowest"], s["rate_highest"]) for s in steps), strict=True
                )
                axis.fill_between(xs, low, high, color=SERIES[at % len(SERIES)], alpha=0.15, linewidth=0)
        log_ticks(axis, sorted({step["connections"] for _, steps in lines for step in steps}))
        if name == "rate":
            axis.set_ylim(bottom=0)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        else:
            _upwards(axis, ((step[name] for step in steps) for _, steps in lines))
        axis.set_xlabel("connections, each with a request on its way")
        axis.set_title(title, loc="left")
        _legend(axis)
    return picture.svg


def stages(subjects: Sequence[Document]) -> str:
    """Where the time goes: bars of each service's medians, means, and slowest hundredth."""
    bars = [
        (f"{s['name']}, {label}", s["stages"][kind])
        for s in subjects
        if s["stages"]
        for kind, label in (("median", "medians"), ("mean", "means"), ("slowest", "slowest 1 %"))
    ][::-1]
    if not bars:
        return ""
    said = "; ".join(f"{who}: " + ", ".join(f"{p} {ms[f'{p}_ms']:.3g} ms" for p in PARTS) for who, ms in bars[::-1])
    picture = Picture(f"Where the time goes. {said}.", 1.25 + 0.27 * len(bars))
    with picture as axis:
        left = [0.0] * len(bars)
        for at, part in enumerate(PARTS):
            values = [ms[f"{part}_ms"] for _, ms in bars]
            axis.barh([who for who, _ in bars], values, 0.72, left=left, color=SERIES[at], edgecolor=PAPER,
                      linewidth=0.6, hatch=HATCHES[at], label=part)  # fmt: skip
            left = [before + value for before, value in zip(left, values, strict=True)]
        axis.set_xlabel("ms")
        axis.grid(visible=False, axis="y")
        axis.figure.legend(
            *axis.get_legend_handles_labels(), ncols=3, loc="outside upper left", handlelength=1.2,
            title="Where the time goes", title_fontsize=STYLE["axes.titlesize"], alignment="left",
        )  # fmt: skip
    return picture.svg


def batches(subjects: Sequence[Document], phase: str, title: str) -> str:
    """How many sequences the computed batches held, as shares of the batches of each service."""
    found = [(s["name"], s["batches"][phase]["counts"]) for s in subjects if phase in s["batches"]]
    if not found:
        return ""
    labels = max((list(counts) for _, counts in found), key=len)
    said = "; ".join(f"{who}: " + ", ".join(f"{n}: {c:,}" for n, c in counts.items()) for who, counts in found)
    picture = Picture(f"Batches by sequences in each, {title}. {said}.")
    with picture as axis:
        width = 0.8 / len(found)
        for at, (who, counts) in enumerate(found):
            places = [i + (at - (len(found) - 1) / 2) * width for i in range(len(labels))]
            shares = [counts.get(label, 0) / sum(counts.values()) * 100 for label in labels]
            axis.bar(places, shares, width * 0.92, color=SERIES[at % len(SERIES)], edgecolor=PAPER, linewidth=0.6,
                     hatch=HATCHES[at % len(HATCHES)], label=who)  # fmt: skip
        axis.set_xticks(range(len(labels)), labels, fontsize=8.5)
        axis.set_yticks(range(0, 101, 25))
        axis.set_ylim(0, 100 + 12 * len(found))  # room for the names above the bars
        axis.set_xlabel("sequences in a batch")
        axis.set_title(f"Batches, %: {title}", loc="left")
        axis.grid(visible=False, axis="x")
        _legend(axis)
    return picture.svg


def _line(axis: Any, points: Sequence[tuple[float, float]], at: int, label: str) -> None:
    xs, ys = zip(*points, strict=True)
    axis.plot(xs, ys, color=SERIES[at % len(SERIES)], marker=MARKERS[at % len(MARKERS)], markersize=4,
              linestyle=DASHES[at % len(DASHES)], label=label)  # fmt: skip


def _upwards(axis: Any, lines: Iterable[Iterable[float]]) -> None:
    """An axis from 0 on; a logarithmic one for lines that would lie on the ground of it."""
    values = [value for line in lines for value in line]
    if max(values) < STEEP * min(values):
        axis.set_ylim(bottom=0)
        return
    plain_log(axis)
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_ylim(low, high)


def _legend(axis: Any) -> None:
    if len(axis.get_legend_handles_labels()[1]) > 1:
        axis.legend()
