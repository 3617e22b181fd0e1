"""The page at `GET /`, in a real Chromium: what a visitor sees, does and hears."""

import json
import re

import pytest
from browsing import ARTIFACTS, MARKS, SCREENS, WATCH
from playwright.sync_api import Page, expect

pytestmark = MARKS


@pytest.fixture
def visit(browser, server):
    """Open the page as a visitor with that screen and scheme; returns once the first heatmap stands."""
    contexts = []

    def open_page(*, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(server.url)
        expect(page.locator("#weights tbody td")).to_have_count(16)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def page(visit) -> Page:
    return visit()


def weights(page: Page) -> list[list[float]]:
    """The printed heatmap."""
    rows = page.locator("#weights tbody tr").all()
    return [[float(text) for text in row.locator("td").all_inner_texts()] for row in rows]


def cell(page: Page, label: str):
    return page.get_by_label(label, exact=True)


def attend(page: Page) -> None:
    page.get_by_role("button", name="Attend").click()


def choose_twelve_heads(page: Page) -> None:
    page.get_by_label("Model").select_option("multi-head-384x12")
    expect(page.locator("#weights caption")).to_have_text("Attention weights of head 1 of 12")


def test_a_visitor_sees_a_heatmap_at_once(page):
    """The first look is the best explanation: the lesson's example is computed on load, and its rows sum to 1."""
    expect(page.get_by_label("Model")).to_have_value("lesson")
    expect(page.locator("#weights thead th[scope=col]")).to_have_text(["token", "Mia", "reads", "her", "book"])
    expect(page.locator("#weights tbody th[scope=row]")).to_have_text(["Mia", "reads", "her", "book"])
    drawn = weights(page)
    assert [len(row) for row in drawn] == [4] * 4
    assert [sum(row) for row in drawn] == pytest.approx([1] * 4, abs=0.021)  # four numbers, each rounded by 0.005
    expect(page.locator("#outputs tbody td")).to_have_count(12)
    page.screenshot(path=ARTIFACTS / "page.png", full_page=True)


def test_the_text_reads_one_row_of_the_picture_aloud(page):
    """A newcomer learns to read the heatmap from a sentence about this very one."""
    her = dict(zip(["Mia", "reads", "her", "book"], weights(page)[2], strict=True))
    assert max(her, key=her.get) == "Mia"
    expect(page.locator("#reading-example")).to_contain_text(f"“her”: {her['Mia']:.2f} of its weight is on “Mia”")


def test_the_page_keeps_to_a_strict_content_security_policy(browser, server):
    """No inline code, no outside resource: the policy of the service breaks nothing, and the console stays quiet."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(WATCH)
    said, asked_for = [], []
    page.on("console", lambda message: said.append((message.type, message.text)))
    page.on("pageerror", lambda error: said.append(("error", str(error))))
    page.on("requestfailed", lambda request: said.append(("error", request.url)))
    page.on("request", lambda request: asked_for.append(request.url))
    response = page.goto(server.url)
    assert "default-src 'none'" in response.headers["content-security-policy"]
    expect(page.locator("#weights tbody td")).to_have_count(16)
    expect(page.locator("#ready")).to_have_text("Ready")
    assert page.evaluate("window.violations") == []
    assert [text for kind, text in said if kind in ("error", "warning")] == []
    assert [url for url in asked_for if not url.startswith((f"{server.url}/", "data:"))] == []
    context.close()


def test_causal_zeroes_the_upper_triangle(page):
    """The checkbox shows what causal means without another press of the button."""
    assert weights(page)[0][1] > 0
    page.get_by_label("Causal").check()
    expect(page.locator("#weights td.masked")).to_have_text(["0.00"] * 6)
    drawn = weights(page)
    assert drawn[0] == [1, 0, 0, 0]
    assert all(drawn[row][column] == 0 for row in range(4) for column in range(row + 1, 4))
    assert [sum(row) for row in drawn] == pytest.approx([1] * 4, abs=0.021)


def test_an_edited_number_changes_the_heatmap(page):
    """The table is there to be played with; Enter in a cell is as good as the button."""
    before = weights(page)[2]
    cell(page, "her, pronoun").fill("-1")
    expect(page.get_by_role("status").first).to_contain_text("Press Attend")
    cell(page, "her, pronoun").press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("Done: 4 tokens, 1 head")
    assert weights(page)[2] != before


def test_tokens_can_be_added_and_removed(page):
    """n is the caller's choice."""
    page.get_by_role("button", name="Add a token").click()
    expect(cell(page, "t5, person")).to_be_focused()
    attend(page)
    expect(page.locator("#weights tbody td")).to_have_count(25)
    page.get_by_role("button", name="Remove the last").click()
    page.get_by_role("button", name="Remove the last").click()
    attend(page)
    expect(page.locator("#weights tbody td")).to_have_count(9)


@pytest.mark.parametrize(
    ("text", "advice"),
    [("", "is empty"), ("abc", "“abc” is not a number"), ("0,5", "write 0.5"), ("1e999", "too large")],
)
def test_a_cell_that_holds_no_number_is_named_and_marked(page, text, advice):
    """A visitor is told which cell, and how to mend it, before anything is sent."""
    cell(page, "reads, action").fill(text)
    attend(page)
    expect(page.get_by_role("alert")).to_contain_text("One cell needs a number")
    expect(page.get_by_role("alert")).to_contain_text("Token reads, action")
    expect(page.get_by_role("alert")).to_contain_text(advice)
    expect(cell(page, "reads, action")).to_have_attribute("aria-invalid", "true")
    expect(cell(page, "reads, action")).to_be_focused()
    expect(page.locator("#results")).to_be_hidden()  # no picture of numbers that are no longer there
    cell(page, "reads, action").fill("0.5")
    attend(page)
    expect(page.locator("#weights tbody td")).to_have_count(16)
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page.locator("[aria-invalid]")).to_have_count(0)


def test_a_problem_of_the_service_marks_the_cell_it_points_at(page):
    """1e39 is a fine number in JavaScript but not in float32: only the service can know, and its pointer is used."""
    cell(page, "her, thing").fill("1e39")
    attend(page)
    expect(page.get_by_role("alert")).to_contain_text("Token her, thing")
    expect(page.get_by_role("alert").get_by_role("link")).to_have_attribute("href", re.compile(r"^problems/[\w-]+$"))
    expect(page.locator("[aria-invalid]")).to_have_count(1)
    expect(cell(page, "her, thing")).to_have_attribute("aria-invalid", "true")
    page.screenshot(path=ARTIFACTS / "page-problem.png", full_page=True)


def test_a_broken_connection_is_said_plainly(page):
    """No stack trace and no eternal spinner when the network is gone."""
    page.route("**/v1/attention", lambda route: route.abort())
    attend(page)
    expect(page.get_by_role("alert")).to_contain_text("The service cannot be reached")


def test_a_service_that_wants_a_key_gets_one(page):
    """With API keys on, the page asks for one, sends it, and keeps it out of the command it prints."""

    def guard(route):
        if route.request.headers.get("authorization") == "Bearer secret":
            route.continue_(headers={k: v for k, v in route.request.headers.items() if k != "authorization"})
        else:
            problem = {"type": "/problems/unauthorized", "title": "An API key is needed", "detail": "send one"}
            route.fulfill(status=401, content_type="application/problem+json", body=json.dumps(problem))

    page.route("**/v1/attention", guard)
    attend(page)
    expect(page.get_by_role("alert")).to_contain_text("An API key is needed")
    page.get_by_label("API key").fill("secret")
    attend(page)
    expect(page.locator("#weights tbody td")).to_have_count(16)
    expect(page.locator("#curl")).to_contain_text("Bearer $ATTENTION_KEY")
    expect(page.locator("#curl")).not_to_contain_text("secret")


def test_heads_are_leafed_through_by_keyboard(page):
    """Twelve heads, one picture at a time; the ends stop, and focus is never lost."""
    choose_twelve_heads(page)
    first = weights(page)
    following = page.get_by_role("button", name="Next head")
    previous = page.get_by_role("button", name="Previous head")
    expect(previous).to_be_disabled()
    following.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#weights caption")).to_have_text("Attention weights of head 2 of 12")
    assert weights(page) != first
    previous.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#weights caption")).to_have_text("Attention weights of head 1 of 12")
    assert weights(page) == first
    expect(page.get_by_label("Head", exact=True)).to_be_focused()
    page.get_by_label("Head", exact=True).select_option("11")
    expect(page.locator("#weights caption")).to_have_text("Attention weights of head 12 of 12")
    expect(following).to_be_disabled()
    page.screenshot(path=ARTIFACTS / "page-heads.png", full_page=True)


def test_wide_embeddings_are_edited_as_json(page):
    """384 columns are no table; what cannot be read is said, and the made-up numbers are the same on every visit."""
    choose_twelve_heads(page)
    box = page.get_by_label("Token embeddings, as JSON")
    made_up = box.input_value()
    box.fill("[[1, 2], ")
    attend(page)
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
    expect(box).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Attend").focus()
    page.reload()
    expect(page.locator("#weights tbody td")).to_have_count(16)
    choose_twelve_heads(page)
    assert box.input_value() == made_up


def test_the_answer_says_what_computed_it_and_how_long_it_took(page):
    """A visitor learns the backend and where the time went, from the answer itself."""
    page.get_by_label("Backend").select_option("reference")
    expect(page.locator("#computed-by")).to_contain_text(re.compile(r"^reference .*model lesson"))
    expect(page.locator("#timing")).to_have_text(
        re.compile(r"^decode \d+\.\d\d · queue \d+\.\d\d · compute \d+\.\d\d · encode \d+\.\d\d$")
    )


def test_the_curl_command_is_the_request_that_was_sent(page, server):
    """Pasting it must give the answer on the screen."""
    with page.expect_request("**/v1/attention") as sent:
        page.get_by_label("Causal").check()
    expect(page.locator("#curl")).to_contain_text(f"-d '{sent.value.post_data}'")
    expect(page.locator("#curl")).to_contain_text(f"curl -sS {server.url}/v1/attention")
    assert sent.value.post_data_json["is_causal"] is True


@pytest.mark.parametrize("name", ["lesson", "multi-head-384x12"])
def test_a_small_phone_never_scrolls_sideways(visit, name):
    """At 320 px tables may scroll inside their own box, the page may not; that is WCAG 1.4.10."""
    page = visit(width=320)
    page.get_by_label("Model").select_option(name)
    expect(page.locator("#computed-by")).to_contain_text(name)
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    page.screenshot(path=ARTIFACTS / f"page-320-{name}.png", full_page=True)


def test_the_dark_scheme_is_dark(visit):
    """Who asked for dark gets a dark page, and a heatmap whose scale runs from dark to bright."""
    page = visit(scheme="dark")
    lightness = """(selector) => {
        const canvas = new OffscreenCanvas(1, 1).getContext("2d");
        canvas.fillStyle = getComputedStyle(document.querySelector(selector)).backgroundColor;
        canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data.slice(0, 3).reduce((a, b) => a + b) / 3;
    }"""
    assert page.evaluate(lightness, "body") < 40
    page.get_by_label("Causal").check()
    expect(page.locator("#weights td.masked")).to_have_count(6)
    zero = page.evaluate(lightness, "#weights tbody tr:first-child td:nth-of-type(4)")
    one = page.evaluate(lightness, "#weights tbody tr:first-child td:nth-of-type(1)")
    assert zero < 60
    assert one > 180
    page.screenshot(path=ARTIFACTS / "page-dark.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_can_be_read_on_every_shade(visit, scheme):
    """WCAG 1.4.3 asks for 4.5:1 of text to background; the heatmap has it for every weight, not these alone."""
    page = visit(scheme=scheme)
    worst = page.evaluate("""() => {
        const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
        const luminance = (colour) => {
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
            const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((byte) => {
                const part = byte / 255;
                return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const cell = document.querySelector("#weights tbody td");
        const ratios = Array.from({ length: 101 }, (_, percent) => {
            cell.style.setProperty("--w", String(percent / 100));
            const { color, backgroundColor } = getComputedStyle(cell);
            const [dark, light] = [luminance(color), luminance(backgroundColor)].sort((a, b) => a - b);
            return (light + 0.05) / (dark + 0.05);
        });
        return Math.min(...ratios);
    }""")
    assert worst >= 4.5


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_axe_finds_nothing_to_complain_about(visit, scheme, width):
    """Accessibility rules that a program can check, on the first view, with an error showing, and with many heads."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = visit(scheme=scheme, width=width)
    assert axe.run(page).response["violations"] == []
    cell(page, "Mia, thing").fill("abc")
    attend(page)
    expect(page.get_by_role("alert")).to_contain_text("abc")
    assert axe.run(page).response["violations"] == []
    choose_twelve_heads(page)
    assert axe.run(page).response["violations"] == []
