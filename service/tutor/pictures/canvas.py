"""Drawing: shapes and text of an SVG document, in the order they are drawn.

Nothing here depends on the fonts of a machine: widths are those of DejaVu Sans, which are generous, so that text fits
with narrower ones too.
"""

import math
import unicodedata
from dataclasses import dataclass, field
from html import escape

from service.tutor.pictures.palette import LEVELS, Theme, level, style

FONTS = "system-ui,'DejaVu Sans',Verdana,sans-serif"

ADVANCES = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636, 636,
    636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863,
    748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635,
    615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636,
    337, 636, 838,
)  # fmt: skip
"""Widths of the characters from the space to the tilde, thousandths of the size; DejaVu Sans 2.37."""


def measure(text: str, size: float) -> float:
    """The width of a text in pixels."""
    return sum(_advance(character) for character in text) * size / 1000


def _advance(character: str) -> int:
    place = ord(character) - 32
    if 0 <= place < len(ADVANCES):
        return ADVANCES[place]
    if unicodedata.combining(character):
        return 0
    return 1050 if unicodedata.east_asian_width(character) in "WF" else 838 if character in "−∞√→" else 690


def shortened(text: str, size: float, width: float) -> str:
    """A text that fits a width, with an ellipsis where something had to go."""
    if measure(text, size) <= width:
        return text
    while text and measure(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


def wrapped(text: str, size: float, width: float) -> list[str]:
    """The lines of a text; words longer than a line are cut."""
    lines: list[str] = []
    for word in text.split():
        if lines and measure(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(shortened(word, size, width))
    return lines


def coordinate(value: float) -> str:
    """A number of pixels, a hundredth at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass
class Canvas:
    """Collects what is drawn.

    Attributes:
        name: of the picture; begins every id, so that a page may hold several pictures.
        parts: elements as text.
        levels: steps of the ramp that were used.
        defs: fills beside those of the palette, by name.
    """

    name: str
    parts: list[str] = field(default_factory=list)
    levels: set[int] = field(default_factory=set)
    defs: dict[str, str] = field(default_factory=dict)

    def rect(self, x: float, y: float, width: float, height: float, kind: str, round_by: float = 0) -> None:
        """A rectangle; `kind` is a class of the palette, or several, or something that `fill` has defined."""
        corner = f' rx="{coordinate(round_by)}"' if round_by else ""
        if kind in self.defs:
            corner += f' fill="url(#{self.name}-{kind})"'
        self.parts.append(
            f'<rect x="{_(x)}" y="{_(y)}" width="{_(width)}" height="{_(height)}"{corner} class="{kind}"/>'
        )

    def shade(self, x: float, y: float, width: float, height: float, weight: float, round_by: float = 0) -> str:
        """A rectangle of a weight's shade; returns the class of text on it."""
        step = level(weight)
        self.levels.add(step)
        self.rect(x, y, width, height, f"r{step}", round_by)
        return f"t{step}"

    def path(self, d: str, kind: str, width: float = 1, opacity: float = 1) -> None:
        """A line; `kind` is an edge class of the palette."""
        clear = f' stroke-opacity="{_(opacity)}"' if opacity < 1 else ""
        self.parts.append(f'<path d="{d}" class="{kind}" fill="none" stroke-width="{_(width)}"{clear}/>')

    def frame(
        self, x: float, y: float, width: float, height: float, kind: str, thick: float, round_by: float = 0
    ) -> None:
        """A rectangle's edge; `kind` is an edge class of the palette."""
        self.parts.append(
            f'<rect x="{_(x)}" y="{_(y)}" width="{_(width)}" height="{_(height)}" rx="{_(round_by)}" class="{kind}" '
            f'fill="none" stroke-width="{_(thick)}"/>'
        )

    def text(
        self, x: float, y: float, content: str, kind: str, size: float, anchor: str = "start", bold: bool = False,
        whole: str = "", turn: float = 0,
    ) -> None:  # fmt: skip
        """A line of text.

        Args:
            x: of its start, middle or end, as `anchor` says.
            y: of its base line.
            content: what it says.
            kind: a class of the palette.
            size: of the font, pixels.
            anchor: start, middle or end.
            bold: whether it stands out.
            whole: what it says unabridged, where that is something else.
            turn: degrees, around its own place.
        """
        more = "" if anchor == "start" else f' text-anchor="{anchor}"'
        more += f' transform="rotate({_(turn)} {_(x)} {_(y)})"' if turn else ""
        title = f"<title>{escape(whole)}</title>" if whole and whole != content else ""
        classes = f"{kind} {kind}-edge b" if bold else kind
        self.parts.append(
            f'<text x="{_(x)}" y="{_(y)}" class="{classes}" font-size="{_(size)}"{more}>{title}{escape(content)}</text>'
        )

    def hatch(self) -> None:
        """Define the fill `masked`."""
        self.defs["masked"] = (
            f'<pattern id="{self.name}-masked" width="7" height="7" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="7" height="7" class="card"/>'
            '<rect width="1.6" height="7" class="hatch"/></pattern>'
        )

    def ramp(self) -> None:
        """Define the fill `ramp`, all shades from left to right."""
        steps = range(0, LEVELS + 1, 10)
        self.levels.update(steps)
        stops = "".join(f'<stop offset="{step / LEVELS:g}" class="r{step}"/>' for step in steps)
        self.defs["ramp"] = f'<linearGradient id="{self.name}-ramp">{stops}</linearGradient>'

    def svg(self, width: float, height: float, title: str, description: str, theme: Theme, raster: bool = False) -> str:
        """The whole document.

        Args:
            width: pixels.
            height: pixels.
            title: what it is, in a few words.
            description: what it shows, and what follows from that.
            theme: see `palette.style`.
            raster: for a program that draws pixels, and has one weight of one font.
        """
        width, height = math.ceil(width), math.ceil(height)
        bold = "stroke-width:.5" if raster else "font-weight:600;stroke:none"
        rules = f"{style(theme, self.levels)}.b{{{bold}}}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-labelledby="{self.name}-title {self.name}-text" font-family="{FONTS}">'
            f'<title id="{self.name}-title">{escape(title)}</title>'
            f'<desc id="{self.name}-text">{escape(description)}</desc>'
            f"<style>{rules}</style><defs>{''.join(self.defs.values())}</defs>"
            f'<rect width="100%" height="100%" class="paper"/>{"".join(self.parts)}</svg>\n'
        )


_ = coordinate
