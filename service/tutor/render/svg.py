"""`image/svg+xml`: a picture that says its finding to those who do not see it."""

from service.tutor.explain import Explanation
from service.tutor.pictures import PICTURES
from service.tutor.render.base import Look


class SvgRenderer:
    """Text stays text."""

    media_type = "image/svg+xml"
    charset = ""

    def render(self, explanation: Explanation, look: Look) -> bytes:
        """See `Renderer.render`."""
        return PICTURES[look.picture](explanation, look.theme).encode()
