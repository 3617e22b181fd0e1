"""Colours: the ramp of the heatmap, and the few others, for light and for dark surroundings.

The ramps are monotone in lightness, so that they read the same without colour, and run from the paper's own shade to
the one that stands out: navy on light paper, gold on dark. Numbers on them are black or white, whichever reads better.
"""

from collections.abc import Iterable
from typing import Literal

Theme = Literal["light", "dark", "auto"]
Surround = Literal["light", "dark"]

LEVELS = 100
"""The ramp has so many steps; a weight w has step round(100 w)."""

STOPS: dict[Surround, tuple[str, ...]] = {
    "light": ("#f3f1ea", "#c8d8e6", "#8aadd0", "#3c70ad", "#00285f"),
    "dark": ("#1d2531", "#304a6e", "#667c93", "#b3a878", "#ffe27a"),
}

COLOURS: dict[Surround, dict[str, str]] = {
    "light": {
        "paper": "#ffffff", "card": "#f8f7f3", "ink": "#1b2330", "soft": "#56606f", "line": "#c9c6bc",
        "accent": "#b3490a", "flow": "#17559b", "hatch": "#a8a598",
    },
    "dark": {
        "paper": "#11151b", "card": "#1b212b", "ink": "#e5e9ef", "soft": "#a3adba", "line": "#3a4552",
        "accent": "#ffb067", "flow": "#8fbdf3", "hatch": "#5a6675",
    },
}  # fmt: skip

Rgb = tuple[float, float, float]


def level(weight: float) -> int:
    """The ramp's step of a weight in 0..1."""
    return min(LEVELS, max(0, round(weight * LEVELS)))


def shade(step: int, surround: Surround) -> str:
    """The colour of a step."""
    stops = STOPS[surround]
    place = step / LEVELS * (len(stops) - 1)
    first = min(int(place), len(stops) - 2)
    low, high = _rgb(stops[first]), _rgb(stops[first + 1])
    mixed = (round(a + (b - a) * (place - first)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it, 0..1."""
    red, green, blue = (
        part / 255 / 12.92 if part / 255 <= 0.04045 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in _rgb(colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio as WCAG 2.2 defines it, 1..21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def text_on(colour: str) -> str:
    """Black or white: one of them has 4.58:1 on any colour."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


def style(theme: Theme, levels: Iterable[int] = (), scope: str = "") -> str:
    """CSS rules of a picture.

    Args:
        theme: `auto` follows who looks at it.
        levels: the steps of the ramp that are used: `.r61` is a shape of that shade, `.t61` text on it.
        scope: a selector that all rules are kept within.
    """
    used = sorted(set(levels))
    if theme != "auto":
        return "".join(_rules(theme, used, scope))
    dark = "".join(_rules("dark", used, scope))
    return f"{''.join(_rules('light', used, scope))}@media (prefers-color-scheme:dark){{{dark}}}"


def _rules(surround: Surround, levels: Iterable[int], scope: str) -> Iterable[str]:
    before = f"{scope} " if scope else ""
    for name, colour in COLOURS[surround].items():
        yield f"{before}.{name}{{fill:{colour}}}{before}.{name}-edge{{stroke:{colour}}}"
    for step in levels:
        colour = shade(step, surround)
        yield f"{before}.r{step}{{fill:{colour};stop-color:{colour}}}{before}.t{step}{{fill:{text_on(colour)}}}"


def _rgb(colour: str) -> Rgb:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue
