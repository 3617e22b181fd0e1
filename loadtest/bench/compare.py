"""Two runs beside each other: `python -m loadtest.bench.compare BEFORE AFTER`, each a results.json of one machine."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.bench.results import Results, load, medians


def compare(before: Results, after: Results) -> str:
    """A Markdown table of what both runs measured: the second's rate and median latency over the first's."""
    earlier = {(row.section, tuple(row.key.items())): row for row in medians(before.rows)}
    lines = ["| section | what | rate | p50 |", "| --- | --- | --- | --- |"]
    for row in medians(after.rows):
        other = earlier.get((row.section, tuple(row.key.items())))
        ratios = [
            f"{row.figures[name] / other.figures[name]:.2f}"
            if other is not None and row.figures.get(name) and other.figures.get(name)
            else ""
            for name in ("rate", "p50_ms")
        ]
        if any(ratios):
            what = ", ".join(f"{name} {value}" for name, value in row.key.items())
            lines.append(f"| {row.section} | {what} | {ratios[0]} | {ratios[1]} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.compare", description=(__doc__ or "").strip())
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args(arguments)
    sys.stdout.write(compare(load(options.before), load(options.after)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
