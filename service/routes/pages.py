"""Pages for people: the start page, and what each error type means."""

from html import escape
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse
from starlette.staticfiles import StaticFiles

from service.errors import NotFound
from service.problems import known_problems, status_of, title_of

FOLDER: Final = Path(__file__).parent.parent / "pages"


def policy(frame_ancestors: str = "'none'") -> str:
    """Content-Security-Policy of our own pages: nothing from elsewhere, nothing inline, and framed by nobody else."""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        f"base-uri 'none'; form-action 'self'; frame-ancestors {frame_ancestors}"
    )


HEADERS = {"Content-Security-Policy": policy(), "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def static_files() -> StaticFiles:
    """What the pages load, for `/static`."""
    return StaticFiles(directory=FOLDER)


def router() -> APIRouter:
    """`/`, `/problems`, `/problems/{code}`."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def start() -> FileResponse:
        return FileResponse(FOLDER / "index.html", media_type="text/html", headers=HEADERS)

    @routes.get("/problems")
    async def problems() -> HTMLResponse:
        rows = "".join(
            f"<tr><td><a href='/problems/{cls.code}'><code>{cls.code}</code></a></td><td>{status_of(cls)}</td>"
            f"<td>{escape(title_of(cls))}.</td></tr>"
            for cls in known_problems()
        )
        table = (
            f"<table><thead><tr><th>type</th><th>status</th><th>meaning</th></tr></thead><tbody>{rows}</tbody></table>"
        )
        return _page("Error types", table)

    @routes.get("/problems/{code}")
    async def problem(code: str) -> HTMLResponse:
        for cls in known_problems():
            if cls.code == code:
                text = f"<p>{escape(title_of(cls))}.</p><p>HTTP status {status_of(cls)}.</p>"
                return _page(code, f"{text}<p><a href='/problems'>All error types</a></p>")
        raise NotFound(f"there is no error type {code!r}; /problems lists them")

    return routes


def _page(title: str, content: str) -> HTMLResponse:
    return HTMLResponse(
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<link rel='stylesheet' href='/static/page.css'></head><body><main><h1>{escape(title)}</h1>{content}"
        "<p><a href='/'>Start page</a></p></main></body></html>",
        headers=HEADERS,
    )
