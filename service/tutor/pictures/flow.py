"""One token's way through attention: its query, held against every key, the weights, the values, the blend."""

from dataclasses import dataclass

import numpy as np

from models.types import F64
from service.tutor.explain import Explanation
from service.tutor.pictures.canvas import Canvas, coordinate, measure, shortened, wrapped
from service.tutor.pictures.palette import Theme
from service.tutor.prose import number, places, shares
from service.tutor.steps import last_scores, split

EDGE, GAP = 28.0, 14.0
TITLE, HEADING, LABEL, NUMBER, SMALL = 19.0, 13.5, 13.5, 12.5, 11.5
MOST_NUMBERS = 4
"""Numbers of a vector that are printed before it is cut."""

MOST_LABEL = 110.0
BAR = 110.0
RIBBON = 70.0
"""Widths of the bar of a weight, and of the space that a ribbon crosses."""

THICKEST = 22.0
"""Width of a ribbon that carries all of the attention."""


@dataclass(frozen=True, slots=True)
class _Chips:
    """A vector as it is printed."""

    numbers: tuple[str, ...]
    width: float

    @property
    def wide(self) -> float:
        """Side by side."""
        return len(self.numbers) * self.width


def flow(explanation: Explanation, theme: Theme, *, raster: bool = False) -> str:
    """The picture as an SVG document."""
    return _Flow(explanation).draw(theme, raster)


class _Flow:
    """The sizes of one picture, and its parts from left to right."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation, self.tale = explanation, explanation.tale
        problem, tale, values = explanation.problem, explanation.tale, explanation.values
        query, key, value, output = (
            split(values[step], problem.num_heads)[tale.head] for step in ("query", "key", "value", "outputs")
        )
        self.tokens = problem.tokens
        self.scores = last_scores(problem, values)[tale.head, tale.row]
        self.query, *_ = self._chips(query[[tale.row]], query)
        self.output, *_ = self._chips(output[[tale.row]], output)
        self.keys, self.values = self._chips(key, key), self._chips(value, value)
        self.canvas = Canvas("flow")
        self.row = 46.0 if problem.n <= 8 else 36.0
        label = max(measure(shortened(token, LABEL, MOST_LABEL), LABEL) for token in self.tokens) + 16
        asker = measure(shortened(tale.asker, LABEL, MOST_LABEL), LABEL) + 24
        self.card = max(self.query.width + 24, self.output.width + 24, asker, 92.0)
        self.x_key = EDGE + self.card + RIBBON
        self.x_bar = self.x_key + label + self.keys[0].wide + GAP + 6
        self.x_value = self.x_bar + BAR + GAP + 42
        self.x_output = self.x_value + self.values[0].wide + RIBBON
        self.label = label
        self.width = self.x_output + self.card + EDGE

    def _chips(self, rows: F64, of: F64) -> list[_Chips]:
        """Rows as they are printed, all numbers in one width; without decimals where all of `of` is whole."""
        decimals = places(of, self.tale.decimals)
        printed = [tuple(number(float(x), decimals) for x in row) for row in rows]
        cut = [row if len(row) <= MOST_NUMBERS + 1 else (*row[:MOST_NUMBERS], "…") for row in printed]
        width = max(measure(text, NUMBER) for row in cut for text in row) + 14
        return [_Chips(row, width) for row in cut]

    def draw(self, theme: Theme, raster: bool) -> str:
        """Title, columns, and the ribbons below them."""
        top = self._words(EDGE)
        top = self._headings(top)
        high = len(self.tokens) * self.row
        card = max(len(self.query.numbers), len(self.output.numbers)) * 24 + 40.0
        height = max(high, card)
        first = top + (height - high) / 2
        middle = top + height / 2
        self._ribbons(first, middle)
        for token in range(len(self.tokens)):
            self._token(token, first + token * self.row)
        self._card(EDGE, middle, self.tale.asker, self.query)
        self._card(self.x_output, middle, self.tale.asker, self.output)
        bottom = top + height + 12
        for line in wrapped(self._sentence(), SMALL + 1, self.width - 2 * EDGE):
            bottom += SMALL + 7
            self.canvas.text(EDGE, bottom, line, "soft", SMALL + 1)
        title = f"How {self.tale.asker} reads the others"
        return self.canvas.svg(self.width, bottom + EDGE - 6, title, self._description(), theme, raster)

    def _description(self) -> str:
        output = ", ".join(self.output.numbers)
        return f"{self.explanation.alt} The output of {self.tale.asker} is {output}."

    def _sentence(self) -> str:
        if not self.tale.seen:
            return f"{self.tale.asker} may see nothing: no weights, and an output of zeros."
        return f"{self.tale.asker} takes home {shares(self.tale)}. Thicker ribbons carry more; the weights add up to 1."

    def _words(self, y: float) -> float:
        for line in wrapped(self.explanation.summary, TITLE * 1.04, self.width - 2 * EDGE):
            y += TITLE
            self.canvas.text(EDGE, y, line, "ink", TITLE, bold=True)
            y += 6
        if where := self.explanation.where:
            y += SMALL + 4
            self.canvas.text(EDGE, y, where, "soft", SMALL + 1)
        return y + 16

    def _headings(self, y: float) -> float:
        asker = shortened(self.tale.asker, SMALL, self.card + RIBBON - measure("what  looks for", SMALL))
        for x, name, meaning in (
            (EDGE, "Query", f"what {asker} looks for"),
            (self.x_key, "Keys", "the label of each"),
            (self.x_bar, "Weights", "how well it fits"),
            (self.x_value, "Values", "what is inside"),
            (self.x_output, "Output", "the blend"),
        ):
            self.canvas.text(x, y + HEADING, name, "ink", HEADING, bold=True)
            self.canvas.text(x, y + HEADING + SMALL + 5, meaning, "soft", SMALL)
        return y + HEADING + SMALL + 22

    def _ribbons(self, first: float, middle: float) -> None:
        """From the query to every key, and from every value to the output, as thick as the weight."""
        seen = np.array(sorted(self.tale.seen), int)
        weights = self.tale.weights
        thick = np.maximum(weights * THICKEST, 1.0)
        offset = middle - thick[seen].sum() / 2 if len(seen) else middle
        for token in seen.tolist():
            weight = float(weights[token])
            at = offset + thick[token] / 2
            offset += thick[token]
            y = first + token * self.row + self.row / 2 - 2
            opacity = 0.35 + 0.5 * weight
            start, end = EDGE + self.card, self.x_key - 8
            self.canvas.path(_curve(start, at, end, y), "flow-edge", float(thick[token]), opacity)
            start, end = self.x_value + self.values[token].wide + 6, self.x_output
            self.canvas.path(_curve(start, y, end, at), "flow-edge", float(thick[token]), opacity)

    def _token(self, token: int, y: float) -> None:
        canvas, tale = self.canvas, self.tale
        high = self.row - 8
        middle = y + high / 2
        base = middle + LABEL * 0.36
        shown = shortened(self.tokens[token], LABEL, MOST_LABEL)
        bold = token == tale.best and bool(tale.seen)
        canvas.rect(self.x_key - 8, y, self.label + self.keys[token].wide + 12, high, "card", 6)
        canvas.text(self.x_key, base, shown, "ink", LABEL, bold=bold, whole=self.tokens[token])
        self._numbers(self.x_key + self.label, base, self.keys[token])
        canvas.rect(self.x_value - 6, y, self.values[token].wide + 12, high, "card", 6)
        self._numbers(self.x_value, base, self.values[token])
        if token not in tale.seen:
            canvas.hatch()
            canvas.rect(self.x_bar, middle - 8, BAR, 16, "masked", 4)
            wide = measure("masked", SMALL) + 8
            canvas.rect(self.x_bar + (BAR - wide) / 2, middle - 8, wide, 16, "card", 3)
            canvas.text(self.x_bar + BAR / 2, middle + 4, "masked", "soft", SMALL, "middle")
            return
        weight = float(tale.weights[token])
        canvas.rect(self.x_bar, middle - 13, BAR, 14, "card", 3)
        canvas.rect(self.x_bar, middle - 13, max(2.0, BAR * weight), 14, "flow", 3)
        canvas.text(self.x_bar + BAR + 6, middle - 1, tale.fixed(weight), "ink", NUMBER + 1, bold=bold)
        score = f"score {tale.fixed(self.scores[token])}"
        canvas.text(self.x_bar, middle + SMALL + 2.5, score, "soft", SMALL)

    def _numbers(self, x: float, base: float, chips: _Chips) -> None:
        for i, text in enumerate(chips.numbers):
            self.canvas.text(x + (i + 1) * chips.width - 6, base, text, "ink", NUMBER, "end")

    def _card(self, x: float, middle: float, name: str, chips: _Chips) -> None:
        high = 24.0 * len(chips.numbers) + 40
        y = middle - high / 2
        self.canvas.rect(x, y, self.card, high, "card flow-edge", 8)
        shown = shortened(name, LABEL, self.card - 16)
        self.canvas.text(x + self.card / 2, y + 24, shown, "ink", LABEL, "middle", True, name)
        for i, text in enumerate(chips.numbers):
            self.canvas.text(x + self.card / 2, y + 48 + 24 * i, text, "ink", NUMBER + 1, "middle")


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    bend = (to_x - x) / 2
    points = [(x, y), (x + bend, y), (to_x - bend, to_y), (to_x, to_y)]
    first, *rest = (f"{coordinate(a)} {coordinate(b)}" for a, b in points)
    return f"M{first}C{' '.join(rest)}"
