"""`text/markdown`: for notebooks, wikis and chats; tables and formulas as GitHub writes them."""

import re

from service.tutor.explain import Explanation
from service.tutor.render.base import Look, Table, tables


class MarkdownRenderer:
    """One heading per step."""

    media_type = "text/markdown"
    charset = "utf-8"

    def render(self, explanation: Explanation, look: Look) -> bytes:
        """See `Renderer.render`."""
        blocks = ["# Self-attention, step by step", f"**{escaped(explanation.summary)}.**"]
        if explanation.place:
            blocks.append(escaped(explanation.place))
        for number, step in enumerate(explanation.steps, 1):
            blocks += [f"## {number}. {step.title}", f"$$\n{step.formula}\n$$", escaped(step.text)]
            for table in tables(explanation, step):
                if table.caption:
                    caption = escaped(table.caption)
                    blocks.append(f"*{caption[0].upper()}{caption[1:]}*")
                blocks.append(_table(table))
        blocks += [escaped(note) for note in explanation.notes]
        return ("\n\n".join(blocks) + "\n").encode()


def _table(table: Table) -> str:
    head = ["", *map(escaped, table.columns)]
    lines = [_row(head), _row(["---", *["---:"] * len(table.columns)])]
    for r, (label, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        exact = table.exact[r] if table.exact else [None] * len(cells)
        told = [f"{cell} ({form.simple})" if form else cell for cell, form in zip(cells, exact, strict=True)]
        lines.append(_row([f"**{escaped(label)}**", *told]))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text that means nothing to Markdown, in one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", " ".join(text.split()))
