"""Pictures of an explanation: one file each. To add one, write the file and name it here."""

from collections.abc import Callable
from typing import Literal

from service.tutor.pictures.flow import flow
from service.tutor.pictures.heatmap import heatmap

PictureName = Literal["heatmap", "flow"]

PICTURES: dict[PictureName, Callable[..., str]] = {"heatmap": heatmap, "flow": flow}
"""Each takes an `Explanation`, a theme, and `raster`; see `heatmap`."""
