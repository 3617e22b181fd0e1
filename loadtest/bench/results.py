"""What was measured, as rows: a section, what was asked (the key), and numbers (the figures)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

Key = dict[str, str | int]
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, or the medians of several.

    Attributes:
        section: of the report.
        key: what was asked; rows of the same section and key are rounds of one thing.
        figures: what was found, with units in their names.
    """

    section: str
    key: Key
    figures: Figures


@dataclass(frozen=True, slots=True)
class Results:
    """A run.

    Attributes:
        facts: of the machine and of the versions.
        options: what the run was asked for.
        rows: one for each round of each thing.
    """

    facts: dict[str, str]
    options: dict[str, Any]
    rows: Sequence[Row]

    def section(self, name: str) -> list[Row]:
        """The medians of one section's rounds, in the order they were first measured in."""
        return medians(row for row in self.rows if row.section == name)

    def save(self, path: Path) -> None:
        """Write all of it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(self, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def load(path: Path) -> Results:
    """Read what `Results.save` wrote."""
    document = orjson.loads(path.read_bytes())
    return Results(document["facts"], document["options"], [Row(**row) for row in document["rows"]])


def medians(rows: Iterable[Row]) -> list[Row]:
    """One row for each section and key, with the median of each figure over its rounds; `errors` are added up."""
    groups: dict[tuple[str, tuple[tuple[str, str | int], ...]], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.section, tuple(row.key.items())), []).append(row)
    found = []
    for group in groups.values():
        figures = {
            name: float((np.sum if name == "errors" else np.median)([row.figures[name] for row in group]))
            for name in group[0].figures
        }
        found.append(Row(group[0].section, group[0].key, figures))
    return found
