"""The report of a comparison: `peers.md`, a picture, and the figures as JSON."""

from pathlib import Path
from typing import Final

from loadtest.bench.plots import COLOURS, figure, plain_log
from loadtest.bench.report import picture
from loadtest.bench.results import Results, Row
from loadtest.bench.tables import number, table
from loadtest.bench.work import cases
from loadtest.peers import PEERS

OURS: Final = "ours"
"""Name of this service in the results."""


def write(results: Results, folder: Path) -> Path:
    """Write `peers.md`, `peers.svg` and `peers.json`; the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder / "peers.json")
    _draw(results, folder / "peers.svg")
    path = folder / "peers.md"
    path.write_text(markdown(results))
    return path


def markdown(results: Results) -> str:
    """The report's text."""
    rows = results.section("peers")
    asked = ", ".join(f"{name} {value}" for name, value in results.options.items() if value)
    described = [(name, PEERS[name].title) for name in results.options["peers"].split()]
    shapes = [(name, cases()[name].title) for name in dict.fromkeys(str(row.key["case"]) for row in rows)]
    parts = [
        "# Beside other servers",
        "Made by `make bench-peers`. Server and load generator share the cores; medians of the rounds, in which the "
        "servers take turns. Every answer's status and length were checked, and some answers' numbers against NumPy in "
        "float64. ×: this service's throughput over the peer's.",
        table(("", ""), results.facts.items()),
        f"Asked for: {asked}.",
        table(("server", "what"), [(OURS, "this service; JSON, and safetensors as binary"), *described]),
        table(("case", "a request"), shapes),
        "## Closed loop\n\nRequests a second (p50 / p99 ms).",
        _closed(rows),
        picture("peers", "Throughput by server"),
    ]
    if opened := results.section("open loop"):
        parts += [
            "## Open loop\n\nAt half of each one's own closed-loop rate, latency from the time a request was due: "
            "requests a second (p50 / p99 ms).",
            _opened(opened),
        ]
    if failed := results.section("failed"):
        parts += ["## Failed", table(("server", "why"), [(row.key["server"], row.key["why"]) for row in failed])]
    weights = [
        (row.key["server"], number(row.figures["start_s"]), number(row.figures["rss_mib"]))
        for row in results.section("servers")
    ]
    parts += ["## Start and memory", table(("server", "s until ready", "MiB after the run"), weights)]
    return "\n\n".join(parts) + "\n"


def _servers(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(str(row.key["server"]) for row in rows))


def _closed(rows: list[Row]) -> str:
    servers = _servers(rows)
    found = {_place(row): row for row in rows}
    kinds = dict.fromkeys((row.key["case"], row.key["kind"], row.key["connections"]) for row in rows)
    lines = []
    for case, kind, connections in kinds:
        ours = found.get((OURS, case, kind, connections))
        cells = [_cell(found.get((server, case, kind, connections)), ours) for server in servers]
        lines.append((case, kind, connections, *cells))
    return table(("case", "kind", "connections", *servers), lines)


def _opened(rows: list[Row]) -> str:
    servers = _servers(rows)
    found = {(row.key["server"], row.key["case"], row.key["kind"]): row for row in rows}
    lines = [
        (case, kind, *(_cell(found.get((server, case, kind)), None) for server in servers))
        for case, kind in dict.fromkeys((row.key["case"], row.key["kind"]) for row in rows)
    ]
    return table(("case", "kind", *servers), lines)


def _place(row: Row) -> tuple[str | int, ...]:
    return tuple(row.key[name] for name in ("server", "case", "kind", "connections"))


def _cell(row: Row | None, ours: Row | None) -> str:
    """Throughput, latencies, errors if there were some, and how many times as much ours is."""
    if row is None:
        return ""
    rate, p50, p99 = (number(row.figures[name]) for name in ("rate", "p50_ms", "p99_ms"))
    text = f"{rate} ({p50} / {p99})"
    if errors := int(row.figures["errors"]):
        text += f", {errors} errors"
    if ours is not None and row is not ours and row.figures["rate"]:
        text += f" ×{ours.figures['rate'] / row.figures['rate']:.2f}"
    return text


def _draw(results: Results, path: Path) -> None:
    rows = results.section("peers")
    kinds = list(dict.fromkeys(str(row.key["kind"]) for row in rows))
    servers = _servers(rows)
    with figure(path, len(kinds), height=4.2) as axes:
        for axis, kind in zip(axes, kinds, strict=True):
            some = [row for row in rows if row.key["kind"] == kind]
            places = list(dict.fromkeys(f"{row.key['case']}, {row.key['connections']}" for row in some))
            shown = [name for name in servers if any(row.key["server"] == name for row in some)]
            width = 0.84 / len(shown)
            for at, server in enumerate(shown):
                mine = [row for row in some if row.key["server"] == server]
                at_places = [
                    places.index(f"{row.key['case']}, {row.key['connections']}") + (at - (len(shown) - 1) / 2) * width
                    for row in mine
                ]
                rates = [row.figures["rate"] for row in mine]
                axis.bar(at_places, rates, width * 0.9, color=COLOURS[servers.index(server)], label=server)
            axis.set_xticks(range(len(places)), places, rotation=45, ha="right", fontsize=8)
            axis.set_xlabel("case, connections")
            plain_log(axis)
            axis.set_title(f"{kind}: requests a second", loc="left")
            axis.grid(visible=False, axis="x")
            axis.legend(fontsize=8)
