"""The weights as a table of shades, every one with its number: who attends to whom."""

import math

from service.tutor.explain import Explanation
from service.tutor.pictures.canvas import Canvas, measure, shortened, wrapped
from service.tutor.pictures.palette import Theme
from service.tutor.prose import number

EDGE, GAP = 28.0, 3.0
LABEL, NUMBER, TITLE, SMALL = 14.0, 15.0, 19.0, 12.5
MOST_LABEL = 150.0
"""Longest label, pixels."""

TURN = 38.0
"""Degrees by which labels of columns are turned where they are wider than their column."""

TITLE_OF = "Attention weights"


def heatmap(explanation: Explanation, theme: Theme, *, raster: bool = False) -> str:
    """The picture as an SVG document."""
    return _Heatmap(explanation).draw(theme, raster)


class _Heatmap:
    """The sizes of one picture, and its parts from top to bottom."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation, self.tale = explanation, explanation.tale
        problem = explanation.problem
        self.n, self.tokens = problem.n, problem.tokens
        self.weights = explanation.values["weights"][self.tale.head]
        self.canvas = Canvas("heatmap")
        widest = measure(number(0.5, self.tale.decimals), NUMBER)
        self.cell = max(widest + 16, 74.0 if self.n <= 6 else 60.0 if self.n <= 10 else 54.0)
        self.row = max(36.0, 0.66 * self.cell) if self.n <= 10 else 36.0
        self.label = min(MOST_LABEL, max(measure(token, LABEL) for token in self.tokens)) + 26
        longest = max(measure(token, LABEL) for token in self.tokens)
        self.turned = longest > self.cell - 8
        self.head = math.sin(math.radians(TURN)) * min(longest, MOST_LABEL) + 20 if self.turned else 26.0
        overhang = math.cos(math.radians(TURN)) * min(longest, MOST_LABEL) - self.cell / 2 if self.turned else 0.0
        self.width = max(440.0, 2 * EDGE + self.label + self.n * self.cell + max(0.0, overhang))
        self.left = EDGE + self.label

    def draw(self, theme: Theme, raster: bool) -> str:
        """Title, table, legend."""
        y = self._words(EDGE)
        y = self._labels(y)
        self._cells(y)
        y += self.n * self.row
        height = self._legend(y + 26)
        return self.canvas.svg(self.width, height, TITLE_OF, self.explanation.alt, theme, raster)

    def _words(self, y: float) -> float:
        canvas = self.canvas
        for line in wrapped(self.explanation.summary, TITLE * 1.04, self.width - 2 * EDGE):
            y += TITLE
            canvas.text(EDGE, y, line, "ink", TITLE, bold=True)
            y += 6
        text = "Each row is a token that asks, each column one that is read."
        if where := self.explanation.where:
            text = f"{where}. {text}"
        y += 4
        for line in wrapped(text, SMALL, self.width - 2 * EDGE):
            y += SMALL + 5
            canvas.text(EDGE, y, line, "soft", SMALL)
        return y + 18

    def _labels(self, y: float) -> float:
        y += self.head
        for column, token in enumerate(self.tokens):
            x = self.left + column * self.cell + self.cell / 2
            bold = column == self.tale.best and bool(self.tale.seen)
            shown = shortened(token, LABEL, MOST_LABEL)
            if self.turned:
                self.canvas.text(x - 2, y - 8, shown, "ink", LABEL, bold=bold, whole=token, turn=-TURN)
            else:
                self.canvas.text(x, y - 9, shown, "ink", LABEL, "middle", bold, token)
        return y

    def _cells(self, top: float) -> None:
        canvas, tale, keep = self.canvas, self.tale, self.explanation.problem.keep
        if keep is not None:
            canvas.hatch()
        for row, token in enumerate(self.tokens):
            y = top + row * self.row
            middle = y + self.row / 2 + LABEL * 0.36
            shown = shortened(token, LABEL, MOST_LABEL)
            canvas.text(self.left - 12, middle, shown, "ink", LABEL, "end", row == tale.row, token)
            for column in range(self.n):
                box = (self.left + column * self.cell, y, self.cell - GAP, self.row - GAP)
                if keep is not None and not keep[row, column]:
                    canvas.rect(*box, "masked", 4)
                    self._masked(*box)
                    continue
                weight = float(self.weights[row, column])
                kind = canvas.shade(*box, weight, 4)
                strong = weight == self.weights[row].max() and weight > 0
                centre = (box[0] + box[2] / 2, y + box[3] / 2 + NUMBER * 0.36)
                canvas.text(*centre, number(weight, tale.decimals), kind, NUMBER, "middle", strong)
        y = top + tale.row * self.row
        across, down = self.n * self.cell - GAP + 6, self.row - GAP + 6
        canvas.frame(self.left - 3, y - 3, across, down, "accent-edge", 2.5, 5)

    def _masked(self, x: float, y: float, width: float, height: float) -> None:
        size = 11.0
        wide = measure("masked", size) + 6
        self.canvas.rect(x + (width - wide) / 2, y + height / 2 - 8, wide, 16, "card", 3)
        self.canvas.text(x + width / 2, y + height / 2 + 4, "masked", "soft", size, "middle")

    def _legend(self, y: float) -> float:
        canvas, long = self.canvas, 150.0
        canvas.ramp()
        x = EDGE
        canvas.rect(x, y, long, 12, "ramp", 3)
        for share in (0.0, 0.5, 1.0):
            anchor = "start" if share == 0 else "end" if share == 1 else "middle"
            canvas.text(x + share * long, y + 28, f"{share:g}", "soft", SMALL, anchor)
        x += long + 18
        line = y + 10.5
        nobody = " or sees nothing" if self.explanation.fully_masked_rows else ""
        for text in wrapped(f"share of the row: every row adds up to 1{nobody}", SMALL, self.width - x - EDGE):
            canvas.text(x, line, text, "soft", SMALL)
            line += SMALL + 5
        line = max(line - 4, y + 44)
        canvas.frame(EDGE, line, 20, 12, "accent-edge", 2, 2)
        told = f"the row of {shortened(self.tale.asker, SMALL, MOST_LABEL)}"
        canvas.text(EDGE + 30, line + 10.5, told, "soft", SMALL)
        if self.explanation.problem.keep is not None:
            x = EDGE + 56 + measure(told, SMALL)
            canvas.rect(x, line, 20, 12, "masked", 2)
            canvas.text(x + 28, line + 10.5, "masked: may not be read", "soft", SMALL)
        return line + 12 + EDGE
