"""Paper: an exercise as a page to be printed and written on, and the sheet of its answers for whoever corrects it."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from models.types import F64
from service.tutor.exercise import Exercise
from service.tutor.exercises.levels import LEVELS
from service.tutor.hints import RULES
from service.tutor.mathml import STYLE as MATH_STYLE
from service.tutor.mathml import mathml
from service.tutor.plan import Card, cards_of, shape_on
from service.tutor.presenting import instructions, labels_of, named
from service.tutor.steps import STEPS, shape_of, shown

STYLE = (
    """
:root { color-scheme: light; }
body { font: 11pt/1.4 Georgia, 'Times New Roman', serif; color: #000; background: #fff; max-width: 46em;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0.2em; }
h2 { font-size: 1.15em; margin: 1.4em 0 0.3em; break-after: avoid; }
.who { display: flex; gap: 2em; margin: 1em 0; }
.who span { flex: 1; border-bottom: 1px solid #000; }
.tables { display: flex; flex-wrap: wrap; gap: 1em 2em; align-items: flex-start; }
table { border-collapse: collapse; break-inside: avoid; }
caption { text-align: left; font-style: italic; padding-bottom: 0.2em; }
th, td { border: 1px solid #555; padding: 0.15em 0.5em; min-width: 2.2em; text-align: right; height: 1.6em; }
th { font-weight: normal; background: #eee; }
td.blank { min-width: 4em; }
section { break-inside: avoid; }
math[display=block] { width: max-content; margin: 0.3em 0; }
.token { font: 7pt/1.3 monospace; overflow-wrap: anywhere; color: #333; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@page { margin: 15mm; }
@media print { body { margin: 0; max-width: none; padding: 0; } th { background: none; } }
"""
    + MATH_STYLE
)
"""Of the page itself; it fits A4 and Letter alike, as the printer has it."""

POLICY = (
    "default-src 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of these pages: their own style, and nothing else."""


def worksheet(exercise: Exercise, token: str) -> str:
    """The page for learners: what is given, and a table to be filled in for each step asked."""
    parts = [_given(exercise)]
    if exercise.planning:
        parts.append(_plan(exercise))
    parts += [_section(exercise, step, None) for step in _tables(exercise)]
    return _page(exercise, LEVELS[exercise.terms.level].title, token, parts, names=True)


def answer_sheet(exercise: Exercise, token: str) -> str:
    """The page for tutors: the same with the answers, and with the steps between those that are asked."""
    parts = [_given(exercise)]
    if exercise.planning:
        steps = (card for step in exercise.ask for card in cards_of(exercise) if card.step == step)
        rows = "".join(_card(exercise, card, answered=True) for card in steps)
        parts.append(f"<section><h2>Plan</h2><ol>{rows}</ol></section>")
    parts += [_section(exercise, step, array) for step, array in exercise.right.items()]
    return _page(exercise, f"Answers: {LEVELS[exercise.terms.level].title}", token, parts, names=False)


def _tables(exercise: Exercise) -> Sequence[str]:
    return () if exercise.planning else exercise.ask


def _page(exercise: Exercise, title: str, token: str, parts: Sequence[str], *, names: bool) -> str:
    who = "<div class='who'><span>Name</span><span>Date</span></div>" if names else ""
    task = f"<p>{escape(instructions(exercise))}</p>"
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>{who}{task}{''.join(parts)}</main>"
        f"<footer><p class='token'>Exercise {escape(exercise.terms.generator)}, seed {exercise.terms.seed}: "
        f"{escape(token)}</p></footer></body></html>"
    )


def _given(exercise: Exercise) -> str:
    problem, decimals = exercise.problem, exercise.terms.decimals
    tables: list[str] = []
    if exercise.shows_inputs:
        embedded = [f"x{number + 1}" for number in range(problem.embed_dim)]
        tables.append(_table(f"Embeddings {mathml('X')}", problem.tokens, embedded, problem.inputs, decimals))
        for step, name in (("query", "W_Q"), ("key", "W_K"), ("value", "W_V")):
            columns = labels_of(exercise, step)[1]
            tables.append(_table(mathml(name), embedded, columns, getattr(problem, step), decimals))
    for step, array in exercise.given.items():
        tables += _tables_of(exercise, step, array)
    return f"<section><h2>Given</h2><div class='tables'>{''.join(tables)}</div></section>"


def _section(exercise: Exercise, step: str, array: F64 | None) -> str:
    """A step with its table: for tutors, who get its array, with its rule too; where that is asked for, with none."""
    title, formula = named(exercise, step)
    words = ""
    if array is not None:
        title, formula = STEPS[step].title, STEPS[step].formula
        words = f"<p>{escape(RULES[step])}</p>"
    if array is not None or exercise.terms.mode == "guided":
        words += mathml(formula, block=True)
    tables = "".join(_tables_of(exercise, step, array))
    return f"<section><h2>{escape(title)}</h2>{words}<div class='tables'>{tables}</div></section>"


def _tables_of(exercise: Exercise, step: str, array: F64 | None) -> Iterator[str]:
    """A table, or one for each head or token where there are more axes than two; blanks where there is no array."""
    rows, columns = labels_of(exercise, step)
    shape = shape_of(exercise.problem, step)
    filled = np.full(shape, np.nan) if array is None else shown(exercise.problem, step, array)
    for place in np.ndindex(shape[:-2]):
        names = [f"head {place[0] + 1}"] if exercise.problem.num_heads > 1 and place else []
        names += [f"row {rows[place[-1]]}"] if step == "weighted_values" else []
        caption = ", ".join([mathml(STEPS[step].symbol), *map(escape, names)])
        yield _table(caption, rows, columns, filled[place], exercise.terms.decimals)


def _table(caption: str, rows: Sequence[str], columns: Sequence[str], array: F64, decimals: int) -> str:
    """A table, its caption in HTML."""
    head = "".join(f"<th scope='col'>{escape(column) or 'all'}</th>" for column in columns)
    body = "".join(
        f"<tr><th scope='row'>{escape(row)}</th>{''.join(_cell(float(value), decimals) for value in values)}</tr>"
        for row, values in zip(rows, array, strict=True)
    )
    corner = "<td><span class='hidden'>row</span></td>"
    top = f"<caption>{caption}</caption><thead><tr>{corner}{head}</tr></thead>"
    return f"<table>{top}<tbody>{body}</tbody></table>"


def _cell(value: float, decimals: int) -> str:
    if np.isnan(value):
        return "<td class='blank'><span class='hidden'>blank</span></td>"
    return f"<td>{number(value, decimals)}</td>"


def number(value: float, decimals: int) -> str:
    """A number of a table: whole ones without decimals, with a true minus."""
    if value == -np.inf:
        return "−∞"
    text = f"{value:.0f}" if value.is_integer() else f"{value:.{decimals}f}"
    return text.replace("-", "−") if float(text) else text.replace("-", "")


def _plan(exercise: Exercise) -> str:
    cards = "".join(_card(exercise, card, answered=False) for card in cards_of(exercise))
    return f"<section><h2>Plan</h2><p>Number the cards that belong into the plan.</p><ul>{cards}</ul></section>"


def _card(exercise: Exercise, card: Card, *, answered: bool) -> str:
    sides: tuple[Any, ...] = shape_on(exercise, card) if answered else ("____", "____")
    place = "" if answered else "____ "
    return f"<li>{place}({escape(card.id)}) {escape(card.text)} Rows: {sides[0]}, columns: {sides[1]}</li>"
