"""A real Chromium for tests, pages of other origins to put things into, and what a page is asked about."""

import functools
import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
ARTIFACTS = Path(__file__).parents[1] / "test-artifacts"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCREENS = [("light", 1280), ("dark", 1280), ("light", 320), ("dark", 320)]
"""Schemes and widths that a page is tried with."""

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => violations.push(`${e.violatedDirective} ${e.blockedURI}`));
"""

MARKS = [pytest.mark.browser, pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no {CHROMIUM}")]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; for fixtures of a module, as `asyncio.run` fails in this thread while it is open."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Browser, *, width: int = 1280, scheme: str = "light", **options: Any) -> Iterator[Page]:
    """A page of a visitor with that screen and scheme; it fails at the end if its scripts have failed."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
    page = context.new_page()
    page.add_init_script(WATCH)
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    yield page
    context.close()
    assert failed == []


def violations(page: Page) -> list[dict[str, Any]]:
    """What axe-core finds, in shadow trees too."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    return [
        {"id": found["id"], "nodes": [node["html"][:200] for node in found["nodes"]]}
        for found in axe.run(page).response["violations"]
    ]


class _Pages(http.server.BaseHTTPRequestHandler):
    def __init__(self, pages: Mapping[str, tuple[str, Mapping[str, str]]], *args: Any) -> None:
        self.pages = pages
        super().__init__(*args)

    def do_GET(self) -> None:
        text, headers = self.pages.get(self.path.partition("?")[0], ("", {}))
        self.send_response(200 if text else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@contextmanager
def host(pages: Mapping[str, tuple[str, Mapping[str, str]]], port: int = 0) -> Iterator[str]:
    """A website of another origin: paths to pages and their headers. Yields its origin.

    `pages` is read at each request, so that it may be filled once the origin is known.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(_Pages, pages))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
