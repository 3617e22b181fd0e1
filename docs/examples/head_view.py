"""Draw what the heads of a layer look at. The page that is written needs nothing else: no notebook, no network.

python docs/examples/head_view.py "The cat sat on the mat." --layer 0 --heads 2
"""

import argparse
import json
import re
import unicodedata
from html import escape
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

ROW, CHARACTER, GAP = 28, 8.5, 140  # of the drawing: pixels per token, per character, and between the two columns
FAINTEST = 0.01  # smaller weights would be lines that nobody sees
SPECIAL = re.compile(r"\[[A-Z]+\]|</?[a-z]+>")  # [CLS], [UNK], <s>, </s>: tokens that are no part of a text

SVG_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1c22; --quiet: #5a5a66; --rule: #d9d9e0; --lightness: 0.5 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16161a; --ink: #ececf1; --quiet: #a9a9b6; --rule: #3a3a44; --lightness: 0.78 }
}
svg { background: var(--paper) }
text { font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink) }
text.special { font-style: italic; fill: var(--quiet) }
rect { fill: none; stroke: var(--quiet); stroke-dasharray: 3 2 }
path { fill: none; stroke: oklch(var(--lightness) 0.16 var(--hue)); stroke-width: 2.5 }
"""
PAGE_STYLE = """
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 }
h2 { font-size: 1.1rem; margin: 0; width: 100% }
h2::before { content: ""; display: inline-block; width: 0.7em; height: 0.7em; margin-right: 0.5em; border-radius: 50%;
  background: oklch(var(--lightness) 0.16 var(--hue)) }
p { margin: 0.5rem 0; max-width: 44rem }
main > p, summary, th[scope=col] { color: var(--quiet) }
.heads { display: grid; gap: 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)) }
section { display: flex; flex-wrap: wrap; gap: 0.75rem 2.5rem; align-items: start; align-content: start;
  border-top: 1px solid var(--rule); padding-top: 1rem; margin-top: 0.5rem }
svg { max-width: 100%; height: auto }
summary { cursor: pointer }
table { border-collapse: collapse; font-size: 0.9rem }
caption { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden }
th, td { padding: 0.15rem 1rem 0.15rem 0; text-align: left; font-weight: normal; border-bottom: 1px solid var(--rule) }
th:last-child, td:last-child { padding-right: 0; text-align: right; font-variant-numeric: tabular-nums }
"""


def ask(url: str, model: str, text: str, layer: int) -> dict[str, Any]:
    """The service's answer to a text, in the format bertviz."""
    body = json.dumps({"model": model, "text": text, "layers": [layer], "format": "bertviz"}).encode()
    request = Request(f"{url}/v1/text/attention", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request) as answer:
            found: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        raise SystemExit(f"{error.code}: {json.load(error)['detail']}") from error
    except URLError as error:
        raise SystemExit(f"{url}: {error.reason}") from error
    return found


def columns(token: str) -> int:
    """Characters that a token is wide; those of Chinese or emoji count twice."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in token)


def draw(weights: list[list[float]], tokens: list[str], title: str, colour: int, style: str = "") -> str:
    """One head as SVG: tokens on the left look at tokens on the right, and a line is as opaque as its weight."""
    left = 16 + CHARACTER * max(map(columns, tokens))  # where the lines begin
    right, height = left + GAP, ROW * len(tokens)
    middle = [ROW * (row + 0.5) for row in range(len(tokens))]
    name = re.sub(r"\W+", "-", title)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + left:g}" height="{height}" role="img"',
        f' viewBox="0 0 {right + left:g} {height}" style="--hue:{colour}" aria-labelledby="{name} {name}-says">{style}',
        f'<title id="{name}">{escape(title)}</title>',
        f'<desc id="{name}-says">Tokens on the left look at tokens on the right; the stronger a line, the larger its '
        "weight.</desc>",
    ]
    for row, column, weight in sorted(
        ((i, j, w) for i, line in enumerate(weights) for j, w in enumerate(line) if w >= FAINTEST),
        key=lambda found: found[2],  # strong lines over faint ones
    ):
        bend, y0, y1 = GAP * 0.4, middle[row], middle[column]
        curve = f"M{left:g} {y0:g}C{left + bend:g} {y0:g} {right - bend:g} {y1:g} {right:g} {y1:g}"
        says = escape(f"{tokens[row]} looks at {tokens[column]}: {weight:.3f}")
        parts.append(f'<path d="{curve}" stroke-opacity="{weight:.3f}"><title>{says}</title></path>')
    for token, y in zip(tokens, middle, strict=True):
        width = CHARACTER * columns(token)
        for x, anchor in ((left - 8, "end"), (right + 8, "start")):
            mark = ' class="special"' if SPECIAL.fullmatch(token) else ""
            if mark:
                start = x - width if anchor == "end" else x
                parts.append(f'<rect x="{start - 4:g}" y="{y - 11:g}" width="{width + 8:g}" height="22" rx="4"/>')
            parts.append(f'<text{mark} x="{x:g}" y="{y + 5:g}" text-anchor="{anchor}">{escape(token)}</text>')
    return "\n".join([*parts, "</svg>"])


def table(weights: list[list[float]], tokens: list[str], title: str) -> str:
    """The largest weight of each row."""
    rows = []
    for token, row in zip(tokens, weights, strict=True):
        best = max(range(len(row)), key=row.__getitem__)
        rows.append(f"<tr><th scope=row>{escape(token)}<td>{escape(tokens[best])}<td>{row[best]:.3f}")
    head = "<tr><th scope=col>token<th scope=col>looks most at<th scope=col>weight"
    return f"<table><caption>{escape(title)}: largest weight of each row</caption>{head}{''.join(rows)}</table>"


def page(heads: dict[int, list[list[float]]], tokens: list[str], text: str, layer: str) -> str:
    """All of it as HTML: a drawing and a table for each head."""
    sections = [
        f'<section style="--hue:{hue(head)}"><h2>Head {head}</h2>{draw(weights, tokens, f"Head {head}", hue(head))}'
        f"<details{' open' * (len(heads) < 3)}><summary>Largest weight of each row</summary>"
        f"{table(weights, tokens, f'Head {head}')}</details></section>"
        for head, weights in heads.items()
    ]
    heading = escape(f"{layer}: which token looks at which")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{heading}</title><style>{SVG_STYLE}{PAGE_STYLE}</style><main><h1>{heading}</h1>"
        f"<p>“{escape(text)}”<p>Each token on the left spreads a weight of 1 over the tokens on the right: the "
        "stronger a line, the larger its part. Dashed boxes are special tokens."
        f'<div class="heads">{"".join(sections)}</div></main></html>'
    )


def hue(head: int) -> int:
    """A colour for each head, those of neighbours far apart."""
    return head * 137 % 360


def main() -> None:
    """Ask the service, draw, write."""
    parser = argparse.ArgumentParser(description="Draw what the heads of a layer look at, as one HTML page.")
    parser.add_argument("text")
    parser.add_argument("--layer", type=int, default=0, help="from 0; default: 0")
    parser.add_argument("--heads", default="all", help="numbers from 0, such as 2,5; default: all")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="minilm-l6")
    parser.add_argument("--output", type=Path, default=Path("head_view.html"), help=".html, or .svg for one head alone")
    chosen = parser.parse_args()

    answer = ask(chosen.url, chosen.model, chosen.text, chosen.layer)
    tokens = answer["tokens"]
    known = {str(head): weights for head, weights in enumerate(answer["attention"][0][0])}  # of [layers][1][heads]
    wanted = list(known) if chosen.heads == "all" else chosen.heads.split(",")
    if not known.keys() >= set(wanted):
        parser.error(f"--heads: layer {chosen.layer} has the heads 0 to {len(known) - 1}")
    heads = {int(head): known[head] for head in wanted}
    layer = f"Layer {chosen.layer} of {answer['model']['name']}"

    if chosen.output.suffix == ".svg":
        if len(heads) > 1:
            parser.error("--output: an .svg holds one head; choose it with --heads")
        ((head, weights),) = heads.items()
        drawn = draw(weights, tokens, f"{layer}, head {head}", hue(head), f"<style>{SVG_STYLE}</style>") + "\n"
    else:
        drawn = page(heads, tokens, chosen.text, layer) + "\n"
    chosen.output.write_text(drawn, encoding="utf-8")
    print(f"wrote {chosen.output}")


if __name__ == "__main__":
    main()
