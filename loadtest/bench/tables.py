"""Tables in Markdown, and the numbers in them."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; numbers right-aligned in their columns by `number`."""
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


def number(value: float) -> str:
    """Three digits that matter, and thousands apart."""
    if value != value:
        return ""
    for limit, digits in ((10, 3), (100, 2), (1000, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}" if limit < 1000 else f"{value:.0f}"
    return f"{value:,.0f}"
