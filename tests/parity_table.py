"""How far our numbers are from other libraries', as tests measure it, and the tables that a run leaves behind.

A test hands each figure to the fixture `measured`. Figures travel with the test's report, also from the processes of
pytest-xdist, and the process that reports to the user writes the file.
"""

import os
import platform
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

PLACE = Path(__file__).parent.parent / "test-artifacts" / "parity.md"
PROPERTY = "parity"
BACKENDS = ("reference", "eager", "onnx")

LAYERS, MINILM = "Layers of tiny random checkpoints", "MiniLM"
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    LAYERS: (
        ("checkpoint", "library"),
        tuple(f"{tensor}: {backend}" for tensor in ("weights", "outputs", "projected") for backend in BACKENDS),
    ),
    MINILM: (("6 layers × 12 heads, ten sentences",), BACKENDS),
}
"""Of each table what tells its rows apart, and the columns of its figures."""

Figure = tuple[str, tuple[str, ...], str, float]
"""Table, row, column, and a largest absolute difference."""

Measure = Callable[[str, tuple[str, ...], str, float], None]
"""What the fixture `measured` is."""


def figure(table: str, row: tuple[str, ...], column: str, value: float) -> Figure:
    """A figure whose table has such rows and such a column."""
    names, columns = TABLES[table]
    assert len(row) == len(names), row
    assert column in columns, column
    return table, row, column, float(value)


def render(figures: Iterable[Figure]) -> str:
    """Every table that has figures, rows by name; where one cell was measured often, the largest figure stands."""
    found: dict[str, dict[tuple[str, ...], dict[str, float]]] = {}
    for table, row, column, value in figures:
        cells = found.setdefault(table, {}).setdefault(tuple(row), {})
        cells[column] = float(np.maximum(cells.get(column, value), value))  # `max` may lose a NaN
    parts = [
        "Largest absolute differences: `reference` and the library both in float64; `eager` and `onnx` as they serve, "
        f"and the library, in float32, on {platform.machine()}. {_versions()}."
    ]
    for table, (names, columns) in TABLES.items():
        if rows := found.get(table):
            lines = [[*names, *columns], ["---"] * (len(names) + len(columns))]
            lines += [[*row, *(_shown(rows[row].get(column)) for column in columns)] for row in sorted(rows)]
            parts.append(f"## {table}")
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def write(figures: Iterable[Figure]) -> None:
    """Write the file in one step: whoever reads it meanwhile sees the old one or the new one."""
    PLACE.parent.mkdir(exist_ok=True)
    temporary = PLACE.with_suffix(f".{os.getpid()}")
    temporary.write_text(render(figures))
    temporary.replace(PLACE)


def _shown(value: float | None) -> str:
    """Two digits, 0 for the same bits, and a dash for what was not measured."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}" if power else digits  # nan, inf


def _versions() -> str:
    found = []
    for name in ("numpy", "torch", "onnxruntime", "onnxruntime-gpu", "transformers"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
