"""`image/png`: the same picture for mail, slides and learning platforms that take no SVG."""

import importlib.util
import subprocess
import sys
from functools import cache, lru_cache
from pathlib import Path
from threading import BoundedSemaphore

from service.tutor.explain import Explanation
from service.tutor.pictures import PICTURES
from service.tutor.render.base import Look

ZOOM = 2
"""Pixels per pixel of the SVG: sharp on dense screens."""

FAMILY = "DejaVu Sans"

TIMEOUT_S = 30.0

TOGETHER = BoundedSemaphore(2)
"""Pictures drawn at one time: each takes a core."""


class PngRenderer:
    """Drawn with one font, which comes with a package, so that bytes are the same on every machine."""

    media_type = "image/png"
    charset = ""

    def render(self, explanation: Explanation, look: Look) -> bytes:
        """See `Renderer.render`. What follows the reader's theme elsewhere is light here."""
        theme = "light" if look.theme == "auto" else look.theme
        return rasterised(PICTURES[look.picture](explanation, theme, raster=True))


@lru_cache(maxsize=32)
def rasterised(svg: str) -> bytes:
    """An SVG document as PNG, drawn by a process of its own; see `rasterise`.

    Raises:
        subprocess.SubprocessError: if that fails or takes too long.
    """
    program = Path(__file__).with_name("rasterise.py")
    command = [sys.executable, "-I", str(program), font(), FAMILY, str(ZOOM)]
    with TOGETHER:
        done = subprocess.run(command, input=svg.encode(), capture_output=True, check=True, timeout=TIMEOUT_S)
    return done.stdout


@cache
def font() -> str:
    """Where DejaVu Sans lies: `ziafont` brings it, and is not imported for it."""
    found = importlib.util.find_spec("ziafont")
    assert found is not None, "it is installed with the service"
    assert found.origin is not None, "it is a package"
    return str(Path(found.origin).parent / "fonts" / "DejaVuSans.ttf")
