"""The widget inside other people's pages: framed from another origin, and as an element under a strict policy."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import exercise_double
import pytest
from browsing import ARTIFACTS, MARKS, host, violations, visiting
from playwright.sync_api import Frame, Page, expect
from serving import Server, start_server
from wire import until

ROOT = Path(__file__).parents[3]

pytestmark = MARKS

LISTEN = """<!doctype html><html lang="en"><head><title>A course</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head><body><main><h1>A course</h1>%s</main>
<script>
  window.heard = [];
  addEventListener("message", ({ data, origin }) => heard.push({ ...data, origin }));
</script>%s</body></html>"""

FRAME = (
    '<iframe src="%s" title="Self-attention" width="100%%" height="200" referrerpolicy="origin"'
    ' sandbox="allow-scripts allow-same-origin allow-forms"></iframe>'
)

CANVAS = """<script>
  addEventListener("message", ({ data }) => {
    if (data.subject === "lti.frameResize") document.querySelector("iframe").style.height = `${data.height}px`;
  });
</script>"""

H5P = """<script>
  addEventListener("message", ({ data, source, origin }) => {
    if (data.context !== "h5p") return;
    const frame = document.querySelector("iframe");
    const respond = (action) => source.postMessage({ context: "h5p", action }, origin);
    if (data.action === "hello") respond("hello");
    if (data.action === "prepareResize"
        && (frame.clientHeight !== data.scrollHeight || data.scrollHeight !== data.clientHeight)) {
      frame.style.height = `${data.clientHeight}px`;
      respond("resizePrepared");
    }
    if (data.action === "resize") frame.style.height = `${data.scrollHeight}px`;
  });
</script>"""

STRICT = (
    "default-src 'none'; script-src {service}; style-src 'none'; connect-src {service}; base-uri 'none'; "
    "require-trusted-types-for 'script'"
)


@pytest.fixture(scope="module")
def pages() -> dict[str, tuple[str, dict[str, str]]]:
    """What the host has; filled once the service's address is known."""
    return {}


@pytest.fixture(scope="module")
def course(pages) -> Iterator[str]:
    """A website that is allowed to frame and to call."""
    with host(pages) as origin:
        yield origin


@pytest.fixture(scope="module")
def stranger(pages) -> Iterator[str]:
    """The same website from an origin that nobody named."""
    with host(pages) as origin:
        yield origin


@pytest.fixture(scope="module")
def service(artifacts, course, pages) -> Iterator[Server]:
    running = start_server(artifacts, ATTENTION_FRAME_ANCESTORS=course, ATTENTION_CORS_ORIGINS=course)
    element = f'<script type="module" src="{running.url}/widget.js"></script>'
    frames = {"/explore": "?mode=explore", "/exercise": "?mode=exercise&seed=3"}
    for path, query in frames.items():
        pages[path] = (LISTEN % (FRAME % f"{running.url}/widget{query}", CANVAS), {})
    pages["/h5p"] = (LISTEN % (FRAME % f"{running.url}/widget?mode=explore", H5P), {})
    policy = STRICT.format(service=running.url)
    strict = {"Content-Security-Policy": policy, "Cross-Origin-Embedder-Policy": "require-corp"}
    plain = (
        '<!doctype html><html lang="en"><head><title>Ours</title>%s</head>'
        "<body><main><h1>Ours</h1>%s</main></body></html>"
    )
    pages["/strict"] = (plain % (element, '<self-attention mode="explore"></self-attention>'), strict)
    pages["/strict-exercise"] = (
        plain % (element, '<self-attention mode="exercise" seed="3"></self-attention>'),
        strict,
    )
    pages["/plain"] = (plain % (element, "<div></div>"), {})
    yield running
    assert running.stop() == 0


def framed(page: Page) -> Frame:
    expect(page.frame_locator("iframe").get_by_role("heading").nth(1)).to_be_visible()
    (frame,) = [frame for frame in page.frames if frame is not page.main_frame]
    return frame


def heard(page: Page, **having: object) -> list[dict[str, object]]:
    return [message for message in page.evaluate("heard") if message.items() >= having.items()]


def settled(page: Page, frame: Frame) -> int:
    """The height of the content once the host has made the frame as high."""
    content = "Math.ceil(document.body.getBoundingClientRect().height)"
    until(lambda: frame.evaluate(f"innerHeight === {content}"))
    return frame.evaluate(content)


# ---- framed by a page of another origin


def test_a_named_origin_frames_it_and_learns_its_height(browser, service, course):
    """In Canvas' dialect, and in our own; in whole pixels, and only when it is another."""
    with visiting(browser) as page:
        page.goto(f"{course}/explore")
        frame = framed(page)
        first = settled(page, frame)
        frame.locator("summary").click()
        until(lambda: frame.evaluate(f"innerHeight > {first}"))
        second = settled(page, frame)

        assert second > first > 300
        heights = [message["height"] for message in heard(page, subject="lti.frameResize")]
        assert heights[-1] == second
        assert all(isinstance(height, int) and height > 0 for height in heights)
        assert all(a != b for a, b in pairwise(heights))
        own = heard(page, source="self-attention-widget", v=1, type="height")
        assert [message["height"] for message in own] == heights
        assert {message["origin"] for message in own} == {service.url}
        page.screenshot(path=ARTIFACTS / "widget-framed.png", full_page=True)


def test_it_shrinks_again(browser, service, course):
    """A frame that only ever grows leaves a hole in the page."""
    with visiting(browser) as page:
        page.goto(f"{course}/explore")
        frame = framed(page)
        first = settled(page, frame)
        frame.locator("summary").click()
        until(lambda: frame.evaluate(f"innerHeight > {first}"))
        frame.locator("summary").click()
        until(lambda: frame.evaluate(f"innerHeight === {first}"))


def test_the_resizer_of_h5p_is_spoken_to(browser, service, course):
    """It asks first, and sets the height after the second handshake."""
    with visiting(browser) as page:
        page.goto(f"{course}/h5p")
        frame = framed(page)
        first = settled(page, frame)
        frame.locator("summary").click()
        until(lambda: frame.evaluate(f"innerHeight > {first}"))
        settled(page, frame)

        actions = [message["action"] for message in heard(page, context="h5p")]
        assert actions[0] == "hello"
        assert {"prepareResize", "resize"} <= set(actions)


def test_a_result_goes_to_the_host(browser, service, course):
    """Ready first, then each grade with its misconceptions: enough for a host to show, or to fetch the rest."""
    with visiting(browser) as page:
        exercise_double.serve(page)
        page.goto(f"{course}/exercise")
        frame = framed(page)
        for field, number in zip(frame.locator("fieldset input").all(), ["1", "2", "0", "1", "5"], strict=False):
            field.fill(number)
        frame.get_by_role("button", name="Check").click()
        page.wait_for_function("heard.some(({ type }) => type === 'graded')")

        (ready,) = heard(page, type="ready")
        assert ready.items() >= {"source": "self-attention-widget", "v": 1, "mode": "exercise"}.items()
        (graded,) = heard(page, type="graded")
        assert graded["score"] == 0.5
        assert graded["misconceptions"] == ["key-not-transposed"]
        assert graded["exercise"] == "token"


def test_an_error_goes_to_the_host(browser, service, course):
    with visiting(browser) as page:
        page.route("**/v1/exercises", lambda route: route.abort())
        page.goto(f"{course}/exercise")
        page.wait_for_function("heard.some(({ type }) => type === 'error')")

        (error,) = heard(page, type="error")
        assert error["title"] == "The service cannot be reached"


def test_only_the_host_is_listened_to(browser, service, course):
    """A message of any other window, or of the frame itself, changes nothing."""
    with visiting(browser) as page:
        page.goto(f"{course}/explore")
        frame = framed(page)
        settled(page, frame)
        frame.evaluate("postMessage({ context: 'h5p', action: 'hello' }, '*')")
        frame.locator("summary").click()
        settled(page, frame)

        assert {message["action"] for message in heard(page, context="h5p")} == {"hello"}


def test_a_stranger_may_not_frame_it(browser, service, stranger):
    """The browser refuses by frame-ancestors, and nothing is posted."""
    with visiting(browser) as page:
        with page.expect_console_message(lambda message: "frame-ancestors" in message.text):
            page.goto(f"{stranger}/explore")
        page.wait_for_load_state()

        assert page.frames[1].url.startswith("chrome-error:")
        assert heard(page) == []


def test_the_page_is_usable_in_a_narrow_frame(browser, service, course):
    """A phone inside a course; no sideways scrolling, and nothing for axe to find in either page."""
    with visiting(browser, width=360) as page:
        page.goto(f"{course}/explore")
        frame = framed(page)
        settled(page, frame)

        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert violations(page) == []
        page.screenshot(path=ARTIFACTS / "widget-framed-360.png", full_page=True)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://lms.example", True), ("https://a.school.example", True), ("https://a.b.school.example", True),
        ("https://school.example", False), ("http://a.school.example", False), ("null", False), ("", False),
        ("https://a.school.example:8443", False), ("https://evilschool.example", False),
        ("https://lms.example.evil.example", False),
    ],
)  # fmt: skip
def test_origins_are_compared_as_the_browser_compares_them(browser, service, origin, allowed):
    """Scheme, host and port; `*` stands for one or more labels."""
    with visiting(browser) as page:
        page.goto(f"{service.url}/widget")
        place = page.evaluate("document.querySelector('script').src.replace('frame.js', 'messages.js')")
        patterns = ["https://lms.example", "https://*.school.example"]
        call = "async ([place, ...rest]) => (await import(place)).isAllowed(...rest)"
        assert page.evaluate(call, [place, origin, patterns]) is allowed


# ---- as an element


def events_of(page: Page) -> None:
    page.add_init_script("""
        window.seen = [];
        for (const name of ["ready", "step", "graded", "error"]) {
            document.addEventListener(`attention-${name}`, ({ detail, target }) =>
                seen.push([name, detail, target.localName]));
        }
    """)


def test_a_strict_page_needs_to_allow_our_script_only(browser, service, course):
    """No inline style or script, no eval, no markup from strings; and it loads where resources must opt in."""
    with visiting(browser) as page:
        page.goto(f"{course}/strict")
        expect(page.get_by_role("heading", name="1. Project to queries")).to_be_visible()
        page.get_by_label("Step of the recipe").fill("8")
        expect(page.get_by_text("“her” looks most at “Mia”: 0.896")).to_be_visible()

        assert page.evaluate("violations") == []
        widget = "document.querySelector('self-attention').shadowRoot.querySelector"
        assert page.evaluate(f"getComputedStyle({widget}('.widget')).backgroundColor") == "rgb(248, 247, 243)"
        heated = page.evaluate(f"getComputedStyle({widget}('.heat tbody td')).backgroundColor")
        assert re.fullmatch(r"rgb\(\d+, \d+, \d+\)", heated)
        assert violations(page) == []
        page.screenshot(path=ARTIFACTS / "widget-strict.png", full_page=True)


def test_a_strict_page_may_have_exercises(browser, service, course):
    """The calls go to where the script came from, which lets this page call."""
    with visiting(browser) as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{course}/strict-exercise")
        expect(page.get_by_role("heading", name="The whole recipe")).to_be_visible()
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_role("status").first).to_contain_text("Score 0 %")

        assert {f"{service.url}/v1/exercises", f"{service.url}/v1/exercises/grade"} <= set(asked)
        assert {url.rpartition(":")[2].partition("/")[0] for url in asked} == {
            url.rpartition(":")[2] for url in (course, service.url)
        }
        assert page.evaluate("violations") == []


def test_the_host_hears_events(browser, service, course):
    """They cross the shadow tree and bubble, so that one listener on the document is enough."""
    with visiting(browser) as page:
        events_of(page)
        page.goto(f"{course}/plain")
        page.evaluate("document.querySelector('div').append(document.createElement('self-attention'))")
        expect(page.get_by_role("heading", name="1. Project to queries")).to_be_visible()
        page.get_by_role("button", name="Next").click()

        assert page.evaluate("seen") == [
            ["ready", {"mode": "explore"}, "self-attention"],
            ["step", {"step": "key", "index": 1, "token": "her"}, "self-attention"],
        ]


def test_a_problem_of_the_hosts_own_can_be_explored(browser, service, course):
    """Given before or after the script has come: frameworks set properties whenever they like."""
    problem = {
        "inputs": [[1, 0], [0, 1]],
        "projections": {name: [[1, 2], [3, 4]] for name in ("query", "key", "value")},
        "labels": ["up", "down"],
    }
    with visiting(browser) as page:
        page.goto(f"{course}/plain")
        page.evaluate(
            """async (problem) => {
                const element = document.createElement("self-attention");
                element.problem = problem;
                document.querySelector("div").append(element);
            }""",
            problem,
        )
        expect(page.get_by_label("Follow").locator("option")).to_have_text(["up", "down"])
        page.evaluate("(problem) => (document.querySelector('self-attention').problem = problem)",
                      problem | {"labels": ["left", "right"], "is_causal": True})  # fmt: skip
        expect(page.get_by_label("Follow").locator("option")).to_have_text(["left", "right"])
        expect(page.get_by_label("Causal mask")).to_be_checked()


def test_attributes_may_change_and_elements_may_be_many(browser, service, course):
    with visiting(browser) as page:
        page.goto(f"{course}/plain")
        page.evaluate("""() => {
            for (const decimals of ["1", "2"]) {
                const element = document.createElement("self-attention");
                element.setAttribute("decimals", decimals);
                element.setAttribute("mode", "explore");
                document.querySelector("div").append(element);
            }
        }""")
        origins = page.locator(".origin")
        expect(origins).to_have_count(2)
        expect(origins.nth(0)).to_contain_text("≈ 4")
        expect(origins.nth(1)).to_contain_text("= 4.05")
        page.evaluate("document.querySelector('self-attention').setAttribute('decimals', '3')")
        expect(origins.nth(0)).to_contain_text("= 4.05")
        assert page.evaluate("""() => {
            const ids = [...document.querySelectorAll("self-attention")]
                .flatMap(({ shadowRoot }) => [...shadowRoot.querySelectorAll("[id]")].map(({ id }) => id));
            return new Set(ids).size === ids.length;
        }""")


def test_the_style_of_the_page_stays_outside(browser, service, course):
    """A course's style sheet must not make numbers unreadable, nor ours its headings."""
    with visiting(browser) as page:
        page.goto(f"{course}/plain")
        page.add_style_tag(content="td, h2, button { color: rgb(255, 0, 0) !important; }")
        page.evaluate("document.querySelector('div').append(document.createElement('self-attention'))")
        expect(page.get_by_role("heading", name="1. Project to queries")).to_be_visible()
        title = "document.querySelector('self-attention').shadowRoot.querySelector('h2')"
        assert page.evaluate(f"getComputedStyle({title}).color") == "rgb(27, 35, 48)"
