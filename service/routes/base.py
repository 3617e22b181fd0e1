"""What a raw route is: an endpoint below the framework, for bodies that must not become Python objects.

Everything small is an ordinary FastAPI router. Tensor routes are called straight from the outermost layer, which saves
the framework's share of a request, and describe themselves for OpenAPI.
"""

import re
from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from service.exchange import Exchange, Receive, Scope, Send


class RawRoute(Protocol):
    """One path, or all paths of one template, served without the framework."""

    @property
    def path(self) -> str:
        """The path; `{name}` stands for a segment, which is to be found in `scope["path_params"]`."""

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


PARAMETER = re.compile(r"\\\{(\w+)\\\}")
"""A parameter of a template, once that is escaped."""


class RawRoutes:
    """Which raw route takes a path."""

    def __init__(self, routes: Sequence[RawRoute]) -> None:
        """Serve `routes`."""
        self._fixed = {route.path: route for route in routes if "{" not in route.path}
        self._templates = [
            (re.compile(PARAMETER.sub(r"(?P<\1>[^/]+)", re.escape(route.path))), route)
            for route in routes
            if "{" in route.path
        ]

    def find(self, path: str) -> tuple[RawRoute | None, dict[str, str]]:
        """The route, or None, and what stands in the place of its template's parameters."""
        if (route := self._fixed.get(path)) is not None:
            return route, {}
        for pattern, route in self._templates:
            if match := pattern.fullmatch(path):
                return route, match.groupdict()
        return None, {}
