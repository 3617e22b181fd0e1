"""What a raw route is: an endpoint below the framework, for bodies that must not become Python objects.

Everything small is an ordinary FastAPI router. Tensor routes are called straight from the outermost layer, which saves
the framework's share of a request, and describe themselves for OpenAPI.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from service.observe import Exchange, Receive, Scope, Send


class RawRoute(Protocol):
    """One path, served without the framework."""

    @property
    def path(self) -> str:
        """The one path it serves."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods it takes."""

    @property
    def schemas(self) -> Sequence[type[BaseModel]]:
        """Models that `describe` refers to, for `components.schemas`."""

    def describe(self) -> dict[str, Any]:
        """The OpenAPI path item."""

    async def __call__(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or raise an `AttentionError` before the answer has begun."""
