"""Renderers of explanations: one file per media type. To add one, write the file and name it here."""

from service.tutor.render.base import Renderer
from service.tutor.render.html import HtmlRenderer
from service.tutor.render.json import JsonRenderer
from service.tutor.render.markdown import MarkdownRenderer
from service.tutor.render.png import PngRenderer
from service.tutor.render.svg import SvgRenderer
from service.tutor.render.tex import TexRenderer

_ALL: tuple[Renderer, ...] = (
    JsonRenderer(),
    HtmlRenderer(),
    MarkdownRenderer(),
    TexRenderer(),
    SvgRenderer(),
    PngRenderer(),
)

RENDERERS: dict[str, Renderer] = {renderer.media_type: renderer for renderer in _ALL}
"""What an explanation can be written in, by media type; the first is the favourite where a caller has none."""
