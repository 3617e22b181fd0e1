"""The widget's explore mode, in a real Chromium: its numbers, where they come from, and who can use it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import ARTIFACTS, MARKS, violations, visiting
from playwright.sync_api import Page, expect

from service.tutor.problem import Problem
from service.tutor.steps import STEPS, shown, steps_of, work

ROOT = Path(__file__).parents[3]
SCREENS = [("light", 1100), ("dark", 1100), ("light", 320), ("dark", 320)]

pytestmark = MARKS


@pytest.fixture
def page(browser, server) -> Iterator[Page]:
    with visiting(browser, width=1100) as page:
        yield opened(page, server.url)


def opened(page: Page, url: str, query: str = "?mode=explore") -> Page:
    page.goto(f"{url}/widget{query}")
    expect(page.get_by_role("heading", name="1. Project to queries")).to_be_visible()
    return page


def go(page: Page, step: str, *, causal: bool = False) -> None:
    steps = [name for name in STEPS if causal or name != "masked_scores"]
    page.get_by_label("Step of the recipe").fill(str(steps.index(step)))
    title = STEPS[step].title
    expect(page.get_by_role("heading", name=f"{steps.index(step) + 1}. {title}")).to_be_visible()


def printed(page: Page, table: str = ".made") -> list[list[str]]:
    rows = page.locator(f"table{table} tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


def origin(page: Page) -> str:
    return page.locator(".origin").inner_text().replace("−", "-")


# ---- numbers


def module(page: Page, name: str) -> str:
    """The address of one of the widget's modules, for scripts of a test."""
    folder = page.evaluate("document.querySelector('script[type=module]').src.replace(/[^/]+$/, '')")
    return f"{folder}{name}"


def drawn(rng: np.random.Generator, *, causal: bool, scale: float | None) -> dict[str, Any]:
    n, d, k, v = (int(rng.integers(1, 9)) for _ in range(4))
    matrices = {"query": (d, k), "key": (d, k), "value": (d, v)}
    return {
        "inputs": rng.normal(size=(n, d)).tolist(),
        "projections": {name: rng.normal(size=shape).tolist() for name, shape in matrices.items()},
        "is_causal": causal,
        "scale": scale,
    }


def test_the_browser_computes_what_the_tutor_computes(page):
    """Every step of random problems, as float64 on either side: a learner's picture and the grader must agree."""
    rng = np.random.default_rng(20261130)
    problems = [drawn(rng, causal=bool(i % 2), scale=[None, 1.0, 0.37][i % 3]) for i in range(60)]

    found = page.evaluate(
        """async ([math, problems]) => {
            const { work } = await import(math);
            return JSON.stringify(problems.map(work), (_, value) => value === -Infinity ? "masked" : value);
        }""",
        [module(page, "math.js"), problems],
    )

    for given, steps in zip(problems, json.loads(found), strict=True):
        projections = {name: np.array(matrix) for name, matrix in given["projections"].items()}
        problem = Problem(np.array(given["inputs"]), **projections, is_causal=given["is_causal"], scale=given["scale"])
        expected = work(problem)
        assert list(steps) == list(steps_of(problem))
        for step, array in steps.items():
            as_numbers = np.array([[-np.inf if x == "masked" else x for x in row] for row in array], dtype=object)
            got = np.array(as_numbers.tolist(), np.float64)
            np.testing.assert_allclose(got, shown(problem, step, expected[step]), rtol=1e-12, atol=1e-12)


def test_the_steps_are_told_as_the_service_tells_them(page):
    """Ids, order, titles and formulae: who reads the page and the API must not meet two recipes."""
    told = page.evaluate(
        "async (steps) => Object.entries((await import(steps)).STEPS).map(([id, s]) => [id, s.title, s.latex])",
        module(page, "steps.js"),
    )

    assert told == [[step.id, step.title, step.formula] for step in STEPS.values()]


def test_every_formula_is_drawn(page):
    """As MathML, with its LaTeX beside it; behind a mask the softmax is of M. Another one stands as it is written."""
    formulae = [step.formula for step in STEPS.values()]
    formulae += [formula.replace("T_{i", "M_{i") for formula in formulae if formula.startswith(("m_i", "E_"))]
    formulae += [rf"A_{{ij}} = \frac{{e^{{{s}_{{ij}}}}}}{{\sum_k e^{{{s}_{{ik}}}}}}" for s in "TM"]

    found = page.evaluate(
        """async ([place, formulae]) => {
            const { formula } = await import(place);
            return [...formulae, "x = y"].map(formula).map((it) =>
                [it.localName, (it.querySelector("annotation") ?? it).textContent]);
        }""",
        [module(page, "mathml.js"), formulae],
    )

    assert found == [["math", formula] for formula in formulae] + [["code", "x = y"]]


def test_the_example_is_the_lesson(page):
    """It is built in, so that it is there at once and without a key; this holds it to the model that is served."""
    lesson = page.evaluate("async (place) => (await import(place)).LESSON", module(page, "lesson.js"))

    spec = json.loads((ROOT / "models/specs/lesson.json").read_text())
    assert lesson["projections"] == spec["weights"]
    assert lesson["columns"] == spec["labels"]
    assert {name: lesson[name] for name in ("labels", "inputs")} == spec["example"]


def test_the_weights_are_printed(page):
    """The numbers of the README, and a sentence that reads the row of the followed token."""
    go(page, "weights")

    assert printed(page)[2] == ["0.896", "0.014", "0.073", "0.017"]
    expect(page.locator(".finding")).to_have_text("“her” looks most at “Mia”: 0.896 of its attention.")
    page.screenshot(path=ARTIFACTS / "widget-weights.png", full_page=True)


# ---- where a number comes from


def test_a_cell_tells_its_row_and_column_and_sum(page):
    """At once for the followed token, and for whichever cell is pointed at."""
    assert origin(page) == "Q[her, 1]: 0.2·0 + 0·0.5 + 0·2 + 1·4 + 0.5·0.1 = 4.05"
    page.locator("table.made tbody tr").nth(1).locator("td").nth(2).hover()

    assert origin(page) == "Q[reads, 3]: 0·2 + 0·2.5 + 1·0 + 0·0 + 0.5·0.1 = 0.05"
    sources = page.locator("td.source")
    expect(sources).to_have_count(10)  # a row of five, a column of five
    expect(page.locator("td.target")).to_have_text("0.05")
    page.screenshot(path=ARTIFACTS / "widget-query.png", full_page=True)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("raw_scores", "S[her, Mia]: 4.05·2.05 + 0.6·0 + 0.45·0.05 = 8.325"),
        ("scaled_scores", "T[her, Mia]: 8.325 ÷ √3 ≈ 4.806"),
        ("softmax_max", "m[her]: the largest of 4.806; 0.65; 2.304; 0.823 ≈ 4.806"),
        ("softmax_exp", "E[her, Mia]: e to the power of 4.806 - 4.806 = 1"),
        ("softmax_sum", "z[her]: 1 + 0.016 + 0.082 + 0.019 ≈ 1.116"),
        ("weights", "A[her, Mia]: 1 ÷ 1.116 ≈ 0.896"),
        ("weighted_values", "her takes of Mia, 1: 0.896·1 ≈ 0.896"),
        ("outputs", "O[her, 1]: 0.896·1 + 0.014·0 + 0.073·0.4 + 0.017·0 ≈ 0.925"),
    ],
)
def test_every_step_writes_its_sum_out(page, step, expected):
    """Rounded to what is printed; ≈ says where digits were dropped."""
    go(page, step)

    assert origin(page) == expected


def test_the_mask_says_who_may_not_see_whom(page):
    page.get_by_label("Causal mask").check()
    go(page, "masked_scores", causal=True)

    expect(page.locator("table.made td.masked")).to_have_count(6)
    page.locator("table.made td.masked").first.hover()
    assert origin(page) == "M[Mia, reads]: masked: “reads” comes after “Mia”"
    expect(page.locator("table.made td.masked").first).to_have_text("−∞ masked")
    page.screenshot(path=ARTIFACTS / "widget-mask.png", full_page=True)


def test_without_scale_scores_stay_as_they_are(page):
    page.get_by_label("Scale by √d").uncheck()
    go(page, "scaled_scores")

    assert origin(page) == "T[her, Mia]: 8.325 × 1 = 8.325"


def test_taking_the_mask_away_leaves_its_step(page):
    """The step that is shown may no longer be one of the recipe."""
    page.get_by_label("Causal mask").check()
    go(page, "masked_scores", causal=True)
    page.get_by_label("Causal mask").uncheck()

    expect(page.get_by_role("heading", name="5. Scale")).to_be_visible()


def test_another_token_can_be_followed(page):
    go(page, "weighted_values")
    page.get_by_label("Follow").select_option("book")

    assert origin(page).startswith("book takes of Mia, 1:")
    go(page, "weights")
    expect(page.locator(".finding")).to_contain_text("“book” looks most at “reads”")


# ---- the numbers can be changed


def test_an_edited_number_changes_what_follows(page):
    page.locator("summary").click()
    page.get_by_label("embeddings, row 3 “her”, column 4 “pronoun”").fill("2")
    go(page, "query")

    assert printed(page)[2][0] == "8.05"
    page.get_by_role("button", name="Start over").click()
    assert printed(page)[2][0] == "4.05"


@pytest.mark.parametrize(("text", "ok"), [("0,5", True), ("−1", True), ("1e-1", True), ("", False), ("x", False),
                                          ("1,234", False), ("1e9", False)])  # fmt: skip
def test_a_number_that_cannot_be_read_is_named(page, text, ok):
    """The last one that could be is kept, and it is said where and what to write."""
    page.locator("summary").click()
    cell = page.get_by_label("query weights, row 1 “person”, column 1", exact=True)
    cell.fill(text)

    if ok:
        expect(page.locator("[aria-invalid]")).to_have_count(0)
    else:
        expect(cell).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_text("query weights, row 1 “person”, column 1: write a number such as 0.5")).to_be_visible()
        assert printed(page)[2][0] == "4.05"


def test_numbers_follow_the_language(browser, server):
    """A decimal comma where readers write one."""
    with visiting(browser) as page:
        opened(page, server.url, "?mode=explore&lang=de&decimals=2")
        go(page, "weights")
        assert printed(page)[2] == ["0,90", "0,01", "0,07", "0,02"]


# ---- by keyboard


def test_everything_can_be_done_by_keyboard(page):
    """Tab to the slider, arrows along the recipe, Tab into the table, arrows along its cells; focus can be seen."""
    page.keyboard.press("Tab")
    expect(page.get_by_label("Follow")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("Tab")
    slider = page.get_by_label("Step of the recipe")
    while not slider.evaluate("(it) => it.getRootNode().activeElement === it"):
        page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", name="4. Compare by dot product")).to_be_visible()
    expect(slider).to_have_attribute("aria-valuetext", "4 of 11: Compare by dot product")

    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Next")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="5. Scale")).to_be_visible()
    page.keyboard.press("Tab")
    assert origin(page).startswith("T[her, Mia]")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    assert origin(page).startswith("T[reads, reads]")
    page.keyboard.press("End")
    assert origin(page).startswith("T[reads, book]")
    outline = page.evaluate(
        "getComputedStyle(document.querySelector('self-attention').shadowRoot.activeElement).outline"
    )
    assert "4px" in outline
    page.keyboard.press("Tab")  # one stop per table
    expect(page.locator("summary")).to_be_focused()


def test_the_ends_of_the_recipe_stop(page):
    """A button at its end says so and does nothing, and keeps the focus it has."""
    previous, following = page.get_by_role("button", name="Previous"), page.get_by_role("button", name="Next")
    expect(previous).to_have_attribute("aria-disabled", "true")
    previous.click(force=True)
    expect(page.get_by_role("heading", name="1. Project to queries")).to_be_visible()
    go(page, "outputs")
    expect(following).to_have_attribute("aria-disabled", "true")


# ---- for everybody


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_axe_finds_nothing_in_any_step(browser, server, scheme, width):
    """And the page never scrolls sideways at 320 px; only tables do, in their own boxes."""
    with visiting(browser, width=width, scheme=scheme) as page:
        opened(page, server.url, "")
        page.get_by_label("Causal mask").check()
        page.locator("summary").click()
        for step in ("query", "masked_scores", "softmax_exp", "weights", "outputs"):
            go(page, step, causal=True)
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") == width
        page.screenshot(path=ARTIFACTS / f"widget-explore-{scheme}-{width}.png", full_page=True)


def test_numbers_can_be_read_on_every_shade(page):
    """4.5:1 on every colour of either ramp, by WCAG's formula; and lightness goes one way, so grey print works."""
    found = page.evaluate(
        """async (place) => {
            const { colourAt, inkOn, luminance } = await import(place);
            const shades = (scheme) => Array.from({ length: 1001 }, (_, i) => colourAt(scheme, i / 1000));
            const contrast = (bytes) => {
                const [dark, light] = [luminance(bytes), inkOn(bytes) === "#fff" ? 1 : 0].sort((a, b) => a - b);
                return (light + 0.05) / (dark + 0.05);
            };
            return ["light", "dark"].map((scheme) => ({
                worst: Math.min(...shades(scheme).map(contrast)), luminances: shades(scheme).map(luminance) }));
        }""",
        module(page, "heat.js"),
    )

    for ramp, direction in zip(found, (-1, 1), strict=True):
        assert ramp["worst"] >= 4.5
        assert (np.diff(ramp["luminances"]) * direction >= -0.004).all()  # bytes are whole numbers


@pytest.mark.parametrize(("theme", "scheme"), [("dark", "light"), ("light", "dark"), ("auto", "dark")])
def test_the_theme_may_be_asked_for(browser, server, theme, scheme):
    """A host's page may be dark where the reader's system is light."""
    with visiting(browser, scheme=scheme) as page:
        opened(page, server.url, f"?mode=explore&theme={theme}")
        paper = "getComputedStyle(document.querySelector('self-attention').shadowRoot.querySelector('.widget'))"
        expected = "rgb(248, 247, 243)" if theme == "light" else "rgb(17, 21, 27)"
        assert page.evaluate(f"{paper}.backgroundColor") == expected
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == expected


def test_targets_are_large_enough(page):
    """24 by 24 px at least, WCAG 2.5.8."""
    page.locator("summary").click()
    for control in page.locator("button, input, select, summary, table.made td").all():
        box = control.bounding_box()
        assert min(box["width"], box["height"]) >= 20 if control.get_attribute("type") == "checkbox" else 24


def test_nothing_moves_for_those_who_asked_for_it(browser, server):
    with visiting(browser, reduced_motion="reduce") as page:
        opened(page, server.url)
        tick = "document.querySelector('self-attention').shadowRoot.querySelector('.ticks span')"
        assert page.evaluate(f"getComputedStyle({tick}).transitionProperty") == "none"


def test_modes_can_be_changed_where_none_was_given(browser, server):
    """What was done in one is still there on the way back."""
    with visiting(browser) as page:
        opened(page, server.url, "")
        go(page, "weights")
        page.get_by_role("button", name="Exercise").click()
        expect(page.get_by_role("button", name="Exercise")).to_have_attribute("aria-pressed", "true")
        page.get_by_role("button", name="Explore").click()
        expect(page.get_by_role("heading", name="9. Divide by the sum")).to_be_visible()


def test_the_start_page_leads_here(browser, server):
    with visiting(browser) as page:
        page.goto(server.url)
        page.get_by_role("link", name="Step by step").click()
        expect(page.get_by_role("heading", name="1. Project to queries")).to_be_visible()
