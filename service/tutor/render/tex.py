"""`application/x-tex`: a document that LaTeX makes a handout of."""

from service.tutor.exact import Surd
from service.tutor.explain import ExplainedStep, Explanation
from service.tutor.render.base import MASKED, Look, Table, tables

PREAMBLE = r"""\documentclass[11pt]{article}
\usepackage{iftex}
\ifPDFTeX
  \usepackage[utf8]{inputenc}
  \usepackage[T1]{fontenc}
  \usepackage{textcomp}
  \DeclareUnicodeCharacter{2212}{\ensuremath{-}}
  \DeclareUnicodeCharacter{221E}{\ensuremath{\infty}}
  \DeclareUnicodeCharacter{221A}{\ensuremath{\surd}}
  \DeclareUnicodeCharacter{2248}{\ensuremath{\approx}}
  \DeclareUnicodeCharacter{2070}{\ensuremath{^0}}
\else
  \usepackage{fontspec}
\fi
\usepackage{amsmath}
\usepackage{graphicx}
\usepackage[margin=2cm]{geometry}
\setlength{\parindent}{0pt}
\setlength{\parskip}{6pt}
\renewcommand{\arraystretch}{1.2}
"""
"""Words may hold any character: XeLaTeX and LuaLaTeX take all, pdfLaTeX those of its own tables."""

WIDE = 8
"""Columns from which a table is shrunk where it is wider than the page."""

RESERVED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "'": r"\textquotesingle{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "[": "{[}", "]": "{]}",
}  # fmt: skip


class TexRenderer:
    """One section per step."""

    media_type = "application/x-tex"
    charset = "utf-8"

    def render(self, explanation: Explanation, look: Look) -> bytes:
        """See `Renderer.render`."""
        parts = [PREAMBLE, r"\begin{document}", r"\section*{Self-attention, step by step}"]
        parts += [rf"\textbf{{{escaped(explanation.summary)}.}}", escaped(explanation.place), ""]
        for number, step in enumerate(explanation.steps, 1):
            parts += [
                rf"\subsection*{{{number}. {escaped(step.title)}}}",
                rf"\[ {step.formula} \]",
                escaped(step.text),
                "",
            ]
            parts += [_table(step, table) for table in tables(explanation, step)]
        parts += [escaped(note) for note in explanation.notes]
        parts.append(r"\end{document}")
        return ("\n".join(parts) + "\n").encode()


def _table(step: ExplainedStep, table: Table) -> str:
    columns = len(table.columns)
    lines = [r"\begin{center}"]
    if table.caption:
        caption = escaped(table.caption)
        lines.append(rf"\emph{{{caption[0].upper()}{caption[1:]}}}\\[4pt]")
    if columns >= WIDE:
        lines.append(r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%")
    lines += [rf"\begin{{tabular}}{{l|{'r' * columns}}}", _row(["", *map(escaped, table.columns)]), r"\hline"]
    for r, (label, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        exact = table.exact[r] if table.exact else [None] * columns
        told = [_cell(cell, form) for cell, form in zip(cells, exact, strict=True)]
        lines.append(_row([rf"\textbf{{{escaped(label)}}}", *told]))
    end = r"\end{tabular}}" if columns >= WIDE else r"\end{tabular}"
    return "\n".join([*lines, end, r"\end{center}", ""])


def _cell(cell: str, form: Surd | None) -> str:
    if cell == MASKED:
        return r"\emph{masked}"
    decimal = cell.replace("−", "-")
    return f"${decimal}$" if form is None else f"${decimal}$ (${form.latex}$)"


def _row(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def escaped(text: str) -> str:
    """Text that means nothing to LaTeX, in one line."""
    return "".join(RESERVED.get(character, character) for character in " ".join(text.split()))
