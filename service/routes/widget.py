"""The widget: a custom element for any page, a page of it for iframes, and oEmbed, which leads hosts to that page."""

import hashlib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qsl, quote, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from starlette.responses import Response

from service.errors import NotFound, NotOffered
from service.routes.pages import HEADERS, policy
from service.runtime import Runtime
from service.tutor.exercises.levels import LEVELS

FOLDER: Final = Path(__file__).parent.parent / "widget"
MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css"}

ANYWHERE: Final = {
    "Access-Control-Allow-Origin": "*",  # modules are fetched with CORS
    "Cross-Origin-Resource-Policy": "cross-origin",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of what pages of every origin may load."""

WIDTH, HEIGHT = 960, 720
"""Pixels of the frame that oEmbed proposes. The page tells its host when it is higher."""

TITLE = "Self-attention, step by step"


class WidgetQuery(BaseModel):
    """How the page shows the widget. What is not given is the learner's to choose."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["explore", "exercise", "whiteboard"] | None = None
    level: str | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**53)
    decimals: int | None = Field(default=None, ge=0, le=6)
    theme: Literal["auto", "light", "dark"] | None = None
    lang: str | None = Field(default=None, pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$", max_length=35)

    @field_validator("level")
    @classmethod
    def _known(cls, level: str | None, info: ValidationInfo) -> str | None:
        board = info.data.get("mode") == "whiteboard"  # of the whole recipe only
        known = [one.id for one in LEVELS.values() if one.whole or not board]
        if level not in (None, *known):
            raise ValueError(f"expected one of {', '.join(known)}")
        return level


class OembedQuery(BaseModel):
    """What a consumer of oEmbed asks; consumers add parameters of their own, which mean nothing here."""

    url: str = Field(max_length=2_000)
    maxwidth: int | None = Field(default=None, ge=1)
    maxheight: int | None = Field(default=None, ge=1)
    format: str = "json"


@dataclass(frozen=True)
class Assets:
    """The widget's files.

    Attributes:
        digest: of all of them. It stands in their paths, so that no browser mixes two versions.
        files: by name.
    """

    digest: str
    files: dict[str, bytes]

    @classmethod
    def read(cls) -> "Assets":
        """As they are in the package."""
        files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in MEDIA_TYPES}
        hashed = hashlib.sha256(b"".join(name.encode() + b"\0" + data + b"\0" for name, data in files.items()))
        return cls(hashed.hexdigest()[:16], files)


def router(runtime: Runtime) -> APIRouter:
    """`/widget`, `/widget.js` and the modules it imports, `/oembed`."""
    routes = APIRouter(include_in_schema=False)
    assets = Assets.read()
    hosts = runtime.settings.frame_ancestors
    headers = HEADERS | {"Content-Security-Policy": policy(" ".join(hosts) or "'none'")}

    @routes.get("/widget")
    async def widget(request: Request, query: Annotated[WidgetQuery, Query()]) -> HTMLResponse:
        return HTMLResponse(_page(request, query, assets, hosts), headers=headers)

    @routes.get("/widget.js")
    async def script(request: Request) -> Response:
        content = f'export * from "./widget/{assets.digest}/element.js";\n'.encode()
        return _asset(request, content, ".js", "public, max-age=300")

    @routes.get("/widget/{digest}/{name}")
    async def part(request: Request, digest: str, name: str) -> Response:
        if name not in assets.files:
            raise NotFound(f"the widget has no part {name!r}")
        # While versions change, a browser may ask for a part of the other one: it gets ours, but is not to keep it.
        cache = "public, max-age=31536000, immutable" if digest == assets.digest else "no-cache"
        return _asset(request, assets.files[name], Path(name).suffix, cache)

    @routes.get("/oembed")
    async def oembed(request: Request, query: Annotated[OembedQuery, Query()]) -> JSONResponse:
        if query.format != "json":
            raise NotOffered(f"oEmbed is answered as json, not as {query.format!r}")
        return JSONResponse(_rich(request, query), headers={"Access-Control-Allow-Origin": "*"})

    return routes


def _asset(request: Request, content: bytes, suffix: str, cache: str) -> Response:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = ANYWHERE | {"Cache-Control": cache, "ETag": tag}
    known = (part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(","))
    if tag in known:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=MEDIA_TYPES[suffix], headers=headers)


def _page(request: Request, query: WidgetQuery, assets: Assets, hosts: tuple[str, ...]) -> str:
    """The page for iframes. Paths are relative, so that it works behind a proxy that adds a prefix."""
    given = query.model_dump(exclude_none=True)
    attributes = "".join(f' {name}="{escape(str(value))}"' for name, value in given.items())
    discovery = f"{request.base_url}oembed?format=json&url={quote(str(request.url), safe='')}"
    parts = f"widget/{assets.digest}"
    return (
        f'<!doctype html><html lang="en" data-theme="{query.theme or "auto"}"><head><meta charset="utf-8">'
        f'<link rel="alternate" type="application/json+oembed" href="{escape(discovery)}" title="{TITLE}">'
        f"<title>{TITLE}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="attention-hosts" content="{escape(" ".join(hosts))}">'
        f'<link rel="icon" href="static/icon.svg"><link rel="stylesheet" href="{parts}/frame.css">'
        f'<script type="module" src="{parts}/frame.js"></script>'
        f'</head><body><main><h1 class="unseen">{TITLE}</h1><self-attention{attributes}></self-attention>'
        "<noscript><p>This page computes in your browser and needs JavaScript for that.</p></noscript>"
        "</main></body></html>"
    )


def _rich(request: Request, query: OembedQuery) -> dict[str, Any]:
    """The answer of oEmbed 1.0 for a URL of `/widget`.

    Raises:
        NotFound: for every other URL.
    """
    if not _is_ours(request, query.url):
        raise NotFound(f"{query.url!r} is no page of the widget here")
    width = min(WIDTH, query.maxwidth or WIDTH)
    height = min(HEIGHT, query.maxheight or HEIGHT)
    frame = (
        f'<iframe src="{escape(query.url)}" width="{width}" height="{height}" title="{TITLE}" '
        'loading="lazy" frameborder="0" referrerpolicy="origin" '
        'sandbox="allow-scripts allow-same-origin allow-forms"></iframe>'
    )
    return {
        "version": "1.0",
        "type": "rich",
        "title": TITLE,
        "provider_name": "Self-attention service",
        "provider_url": str(request.base_url),
        "cache_age": 3_600,
        "html": frame,
        "width": width,
        "height": height,
    }


def _is_ours(request: Request, url: str) -> bool:
    """Whether a URL is one of `/widget`, here.

    Its scheme need not be the one that we are spoken to with: the one who ends TLS may be somebody in front of us.
    """
    try:
        parts = urlsplit(url)
        WidgetQuery.model_validate(dict(parse_qsl(parts.query, keep_blank_values=True)))
    except (ValueError, ValidationError):
        return False
    here = urlsplit(str(request.base_url))
    return parts.scheme in ("http", "https") and parts.netloc == here.netloc and parts.path == f"{here.path}widget"
