"""The page of an explanation in a real Chromium."""

import pytest
from browsing import MARKS, SCREENS

from service.tutor.explain import explain
from service.tutor.render.base import Look
from service.tutor.render.html import HtmlRenderer
from tests.problems_at_hand import drawn, lesson

CASES = {
    "lesson": lesson(is_causal=True),
    "whole": drawn(whole=True, k=2, heads=2),
    "long": drawn(n=3, labels=("Donaudampfschifffahrtsgesellschaftskapitän", "b", "c")),
    "large": drawn(n=16, d=16, k=16, v=16),
}

pytestmark = MARKS


@pytest.mark.parametrize(
    ("scheme", "width", "case"),
    [
        *((*screen, "lesson") for screen in SCREENS),
        ("light", 320, "long"),
        ("dark", 320, "large"),
        ("dark", 1280, "whole"),
    ],
)
def test_the_page_is_accessible_and_never_scrolls_sideways(browser, scheme, width, case):
    """Rules that a program can check, in both schemes; WCAG 1.4.10 at 320 px; and nothing is asked of any server."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    asked_for = []
    page.on("request", lambda request: asked_for.append(request.url))

    page.set_content(HtmlRenderer().render(explain(CASES[case]), Look()).decode())

    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert axe.run(page).response["violations"] == []
    for details in page.locator("summary").all():
        details.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert asked_for == []
    context.close()


def test_formulas_are_drawn_as_formulas(browser):
    """A fraction is as high as two lines; where MathML is not known it would be one."""
    context = browser.new_context()
    page = context.new_page()

    page.set_content(HtmlRenderer().render(explain(CASES["lesson"]), Look()).decode())

    heights = page.evaluate("[...document.querySelectorAll('math mfrac')].map(e => e.getBoundingClientRect().height)")
    assert heights
    assert min(heights) > 25
    assert page.evaluate("getComputedStyle(document.querySelector('math annotation')).display") == "none"
    context.close()
