"""The named mistakes: one file each. To add one, write the file and name it here."""

from service.tutor.misconceptions import scale_none
from service.tutor.misconceptions.base import Misconception

MISCONCEPTIONS: dict[str, Misconception] = {module.MISCONCEPTION.id: module.MISCONCEPTION for module in (scale_none,)}
"""Every misconception by its id, in the order of the steps where they happen."""
