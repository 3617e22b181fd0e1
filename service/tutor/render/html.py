"""`text/html`: a page that needs nothing else: no script, no font, no picture from anywhere.

Every matrix is a real table, every formula is MathML, the picture is described, and what colour says is printed too.
"""

from html import escape

import numpy as np

from service.tutor import mathml as formulas
from service.tutor.explain import ExplainedStep, Explanation
from service.tutor.mathml import mathml
from service.tutor.pictures import PICTURES, PictureName
from service.tutor.pictures.palette import Surround, Theme, level, shade, text_on
from service.tutor.problem import MOST_WIDTH
from service.tutor.prose import number, places
from service.tutor.render.base import MASKED, Look, Table, tables

SHADED = ("weights",)
"""Steps whose cells are shaded as in the picture."""

TITLES: dict[PictureName, str] = {"heatmap": "Picture of the weights", "flow": "Picture of one token's way"}

OPEN = 4
"""Matrices of a step that are shown at once; the others are a click away."""

SCHEMES: dict[Surround, str] = {
    "light": ":root{color-scheme:light;--paper:#f8f7f3;--card:#fff;--ink:#1b2330;--soft:#56606f;--line:#dedcd4;"
    "--accent:#17559b;--mark:#b3490a;--hatch:#c9c6bc;--picture:#fff}",
    "dark": ":root{color-scheme:dark;--paper:#11151b;--card:#181d25;--ink:#e5e9ef;--soft:#a3adba;--line:#2c343f;"
    "--accent:#8fbdf3;--mark:#ffb067;--hatch:#3a4552;--picture:#11151b}",
}

STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;padding:clamp(1rem,4vw,3rem);max-width:62rem;background:var(--paper);color:var(--ink);
overflow-wrap:anywhere;font:1rem/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif}
h1,h2{font-family:ui-serif,"Iowan Old Style",Palatino,Georgia,"Liberation Serif",serif;font-weight:500;line-height:1.2;
text-wrap:balance}
h1{font-size:clamp(1.7rem,1.3rem + 2vw,2.5rem);margin:0 0 .5rem}
h2{font-size:1.4rem;margin:0}
.finding{font-size:1.2rem;margin:0 0 1.5rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;
padding:clamp(1rem,3vw,1.75rem);margin:1.25rem 0}
.scroll{overflow-x:auto;max-width:100%}
.scroll:focus-visible,summary:focus-visible,a:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
figure.card{padding:0;background:var(--picture)}
figure svg{display:block;max-width:none;height:auto;border-radius:8px}
ol.way{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;padding:0;margin:1rem 0;list-style-position:inside}
a{color:var(--accent)}
math{font-size:1.2em;margin:.8rem 0}
table{border-collapse:separate;border-spacing:3px;font-variant-numeric:tabular-nums;margin:.6rem 0}
caption{text-align:left;color:var(--soft);padding-bottom:.3rem;overflow-wrap:break-word}
.side{display:flex;flex-wrap:wrap;gap:.3rem 1.8rem;align-items:end}
.side>*{min-width:0;max-width:100%}
th{font-weight:600;padding:.25rem .6rem;text-align:right;overflow-wrap:break-word;max-width:11rem}
thead th{vertical-align:bottom}
td{padding:.3rem .6rem;text-align:right;background:var(--paper);border-radius:5px;white-space:nowrap}
td small{display:block;font-size:.85em;color:var(--soft)}
tr.told th{color:var(--mark)}
tr.told td{box-shadow:inset 0 0 0 1.5px var(--mark)}
td.masked{background:repeating-linear-gradient(45deg,var(--card) 0 5px,var(--hatch) 5px 6.5px)}
td.masked span{background:var(--card);color:var(--soft);font-size:.8em;padding:0 .3em;border-radius:3px}
summary{cursor:pointer;color:var(--accent)}
.sums{color:var(--soft);margin:.3rem 0;padding-left:1.3rem;overflow-wrap:anywhere}
.note{color:var(--soft)}
@media print{.card{break-inside:avoid;border:0;padding:0}body{background:#fff}}
"""


class HtmlRenderer:
    """One section per step."""

    media_type = "text/html"
    charset = "utf-8"

    def render(self, explanation: Explanation, look: Look) -> bytes:
        """See `Renderer.render`."""
        steps = list(enumerate(explanation.steps, 1))
        way = "".join(f'<li><a href="#{step.id}">{escape(step.title)}</a></li>' for _, step in steps)
        names = [look.picture, *(name for name in PICTURES if name != look.picture)]
        pictures = "".join(
            f'<figure class="card">{_box(TITLES[name], PICTURES[name](explanation, look.theme))}</figure>'
            for name in names
        )
        notes = "".join(f'<p class="note">{escape(note)}</p>' for note in explanation.notes)
        summary = escape(explanation.summary)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{summary}: self-attention, step by '
            'step</title><meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<style>{STYLE}{formulas.STYLE}{_colours(explanation, look.theme)}</style></head><body><main>'
            f'<h1>Self-attention, step by step</h1><p class="finding">{summary}.</p>{_place(explanation)}'
            f"{pictures}"
            f'<nav aria-label="Steps"><ol class="way">{way}</ol></nav>'
            f'{_given(explanation)}{"".join(_section(explanation, number, step) for number, step in steps)}{notes}'
            "</main></body></html>\n"
        ).encode()  # fmt: skip


def _place(explanation: Explanation) -> str:
    return f'<p class="note">{escape(explanation.place)}</p>' if explanation.place else ""


def _colours(explanation: Explanation, theme: Theme) -> str:
    """Rules of the theme: of the page, and of the cells that are shaded."""
    used = sorted({level(float(weight)) for step in SHADED for weight in explanation.values[step].flat})

    def rules(surround: Surround) -> str:
        shades = [(step, shade(step, surround)) for step in used]
        cells = "".join(f"td.w{step}{{background:{colour};color:{text_on(colour)}}}" for step, colour in shades)
        return SCHEMES[surround] + cells

    if theme != "auto":
        return rules(theme)
    return f"{rules('light')}@media (prefers-color-scheme:dark){{{rules('dark')}}}"


def _given(explanation: Explanation) -> str:
    """What the steps start from."""
    problem = explanation.problem
    if problem.embed_dim > MOST_WIDTH:  # hidden states of a real model are no table that anybody reads
        return ""
    numbers = np.unique(problem.inputs)
    decimals = places(numbers, explanation.tale.decimals)
    cells = [[number(float(x), decimals) for x in row] for row in problem.inputs]
    columns = tuple(f"x{i + 1}" for i in range(problem.embed_dim))
    table = Table("", problem.tokens, columns, cells, [], problem.inputs)
    return (
        '<section class="card" aria-labelledby="given-title"><h2 id="given-title">Given: the embeddings</h2>'
        f"<p>Every token comes as a row of {problem.embed_dim} numbers. Three matrices make a query, a key and a value "
        f"of each.</p>{_table('Embeddings X', table, told=None, shaded=False)}</section>"
    )


def _section(explanation: Explanation, place: int, step: ExplainedStep) -> str:
    told = explanation.tale.row
    shown = []
    for table in tables(explanation, step):
        name = f"{table.caption[0].upper()}{table.caption[1:]}" if table.caption else step.title
        row = None if step.id == "weighted_values" else told
        shown.append(_table(name, table, told=row, shaded=step.id in SHADED))
    if len(shown) > OPEN:
        first = told if step.id == "weighted_values" else explanation.tale.head
        rest = "".join(table for i, table in enumerate(shown) if i != first)
        shown = [shown[first], f"<details><summary>The other {len(shown) - 1}</summary>{_side(rest)}</details>"]
    body = "".join(shown) if len(shown) == 1 else _side("".join(shown))
    return (
        f'<section class="card" id="{step.id}" aria-labelledby="{step.id}-title">'
        f'<h2 id="{step.id}-title">{place}. {escape(step.title)}</h2>'
        f"{_box('Formula', mathml(step.formula, block=True))}"
        f"<p>{escape(step.text)}</p>{body}{_sums(explanation, step)}</section>"
    )


def _side(content: str) -> str:
    return f'<div class="side">{content}</div>'


def _table(name: str, table: Table, *, told: int | None, shaded: bool) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = []
    for r, (label, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        told_cells = []
        for c, cell in enumerate(cells):
            form = table.exact[r][c] if table.exact else None
            if cell == MASKED:
                told_cells.append(f'<td class="masked"><span>{MASKED}</span></td>')
                continue
            kind = f' class="w{level(float(table.values[r, c]))}"' if shaded else ""
            told_cells.append(f"<td{kind}>{cell}{f'<small>{form.text}</small>' if form else ''}</td>")
        mark = ' class="told"' if r == told else ""
        rows.append(f'<tr{mark}><th scope="row">{escape(label)}</th>{"".join(told_cells)}</tr>')
    table_element = (
        f'<table><caption>{escape(name)}</caption><thead><tr><th scope="col">token</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return _box(name, table_element)


def _box(name: str, content: str) -> str:
    """What may be wider than a narrow screen: it scrolls by itself, with the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(name)}">{content}</div>'


def _sums(explanation: Explanation, step: ExplainedStep) -> str:
    """The sums of the row that is told of, product by product."""
    if step.terms is None:
        return ""
    tale = explanation.tale
    terms, values = step.terms, step.values
    if terms.ndim > 4:
        terms, values = terms[tale.head], values[tale.head]
    factors = terms[..., :2]
    decimals = places(factors, tale.decimals)
    lines = []
    for column, products, total in zip(step.column_labels, terms[tale.row], values[tale.row], strict=True):
        plain = step.id == "softmax_sum"  # a sum without products
        told = " + ".join(
            number(float(a), decimals) if plain else f"{_factor(a, decimals)}·{_factor(b, decimals)}"
            for a, b, _ in products
        )
        shown = number(float(total), places(values, tale.decimals))
        sign = "=" if decimals == 0 else "≈"
        lines.append(f"<li>{escape(column)}: {told} {sign} {shown}</li>")
    return (
        f"<details><summary>The sums in the row of {escape(tale.asker)}, product by product</summary>"
        f'<ul class="sums">{"".join(lines)}</ul></details>'
    )


def _factor(value: float, decimals: int) -> str:
    text = number(float(value), decimals)
    return f"({text})" if text.startswith("−") else text
