"""The widget's exercises, in a real Chromium: filling in, grading, hints and plans, for hands, eyes and ears."""

import json
from collections.abc import Iterator

import exercise_double
import pytest
from browsing import ARTIFACTS, MARKS, violations, visiting
from playwright.sync_api import Locator, Page, expect

SCREENS = [("light", 1100), ("dark", 1100), ("light", 320), ("dark", 320)]

pytestmark = MARKS


@pytest.fixture
def page(browser, server) -> Iterator[Page]:
    with visiting(browser, width=1100) as page:
        page.calls = exercise_double.serve(page)
        yield opened(page, server.url)


def opened(page: Page, url: str, query: str = "?mode=exercise&seed=3") -> Page:
    page.add_init_script("""
        window.graded = [];
        document.addEventListener("attention-graded", ({ detail }) => graded.push(detail));
    """)
    page.goto(f"{url}/widget{query}")
    expect(page.get_by_role("heading", name="The whole recipe")).to_be_visible()
    return page


def cell(page: Page, step: str, row: int, column: int) -> Locator:
    return page.get_by_label(f"{step}: row {row} “t{row}”, column {column}").first


def fill(page: Page, *numbers: str) -> None:
    for field, number in zip(page.locator("fieldset input").all(), numbers, strict=False):
        field.fill(number)


def check(page: Page) -> None:
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("status").first).to_contain_text("Score")


RIGHT = ["1", "2", "0", "1", *["6", "1", "1", "0"] * 2]


def test_what_is_asked_of_the_service(browser, server):
    """The attributes are the request; nothing else is."""
    with visiting(browser) as page:
        calls = exercise_double.serve(page)
        opened(page, server.url, "?mode=exercise&level=causal&seed=7&decimals=3")
        assert calls == [("exercises", {"mode": "guided", "level": "causal", "seed": 7, "decimals": 3})]
        expect(page.get_by_label("Level")).to_have_count(0)  # what was given is not the learner's to change
        expect(page.get_by_role("button", name="New numbers")).to_have_count(0)


def test_the_learner_chooses_what_was_not_given(browser, server):
    with visiting(browser) as page:
        calls = exercise_double.serve(page)
        opened(page, server.url, "?mode=exercise")
        page.get_by_label("Level").select_option("softmax")
        page.get_by_role("button", name="New numbers").click()
        expect(page.get_by_role("heading", name="The whole recipe")).to_be_focused()
        assert [body for _, body in calls] == [
            {"mode": "guided"}, {"mode": "guided", "level": "softmax"}, {"mode": "guided", "level": "softmax"},
        ]  # fmt: skip


def test_every_field_has_a_name_of_its_own(page):
    """Step, head, row with its token, and column: enough to work without seeing the table."""
    names = [field.get_attribute("aria-label") for field in page.locator("fieldset input").all()]

    assert len(set(names)) == len(names) == 12
    assert names[0] == "Project to queries: row 1 “t1”, column 1"
    assert names[-1] == "Compare by dot product, head 2: row 2 “t2”, column 2 “t2”"


def test_what_was_typed_is_sent_as_it_was_typed(page):
    """How people write numbers is the service's to read: fractions, decimal commas; a blank is null."""
    fill(page, "1/2", " 0,5 ", "", "−1")
    check(page)

    path, body = page.calls[-1]
    assert path == "exercises/grade"
    assert body == {
        "exercise": "token",
        "answers": {"query": [["1/2", "0,5"], [None, "−1"]], "raw_scores": [[[None] * 2] * 2] * 2},
    }


def test_each_cell_gets_its_verdict_in_sign_and_word(page):
    """Never by colour alone; ears hear it with the field."""
    fill(page, "1", "5", "", "x")
    check(page)

    for place, sign, word in (((1, 1), "✓", "right"), ((1, 2), "✗", "not right"), ((2, 1), "…", "missing"),
                              ((2, 2), "?", "not a number")):  # fmt: skip
        field = cell(page, "Project to queries", *place)
        mark = page.locator(f"#{field.get_attribute('aria-describedby')}")
        expect(mark).to_have_text(f"{sign}{word}")
        assert (field.get_attribute("aria-invalid") == "true") == (sign in "✗?")
    expect(page.get_by_role("status").first).to_have_text("Score 13 %: 1 of 12 cells right.")
    expect(page.get_by_text("Not all right yet: 25 % of the credit")).to_be_visible()
    page.screenshot(path=ARTIFACTS / "widget-graded.png", full_page=True)


def test_a_mark_goes_when_its_number_is_changed(page):
    """It speaks of a number that is no longer there."""
    fill(page, "5")
    check(page)
    cell(page, "Project to queries", 1, 1).fill("1")

    expect(cell(page, "Project to queries", 1, 1)).not_to_have_attribute("aria-invalid", "true")
    expect(cell(page, "Project to queries", 1, 1)).not_to_have_attribute("aria-describedby", "")


def test_a_misconception_is_named_with_its_remedy(page):
    fill(page, "1", "2", "0", "1", "5")
    check(page)

    found = page.locator(".misconception")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("The keys were not transposed")
    expect(found).to_contain_text("Take rows of Q with rows of K.")
    expect(page.get_by_text("These numbers do not tell which of these it was:")).to_be_visible()
    expect(page.locator(".maybe li")).to_have_text(["The scores were turned", "score.other"])


def test_how_a_number_was_read_is_said_where_it_is_not_plain(page):
    fill(page, "1/2")
    check(page)

    expect(page.get_by_text("Read as: “1/2” is 0.5.")).to_be_visible()


def test_all_right_is_said(page):
    fill(page, *RIGHT)
    check(page)

    expect(page.get_by_text("All right. Well done.")).to_be_visible()
    expect(page.get_by_text("It follows from your earlier numbers, so it counts as right.")).to_be_visible()
    graded = page.evaluate("graded.at(-1)")
    assert graded.pop("answers") == page.calls[-1][1]["answers"]  # so that a host can grade them itself
    assert graded == {
        "score": 1, "misconceptions": [], "exercise": "token", "seed": 3, "level": "recipe", "mode": "guided",
    }  # fmt: skip


def test_trying_again_is_graded_again(page):
    fill(page, "5")
    check(page)
    fill(page, *RIGHT)
    check(page)

    expect(page.get_by_role("status").first).to_have_text("Score 100 %: 12 of 12 cells right.")
    expect(page.locator("[aria-invalid]")).to_have_count(0)
    page.get_by_role("button", name="Clear the marks").click()
    expect(page.locator(".mark")).to_have_count(0)
    assert cell(page, "Project to queries", 1, 1).input_value() == "1"  # marks go, numbers stay


def test_hints_give_away_little_by_little(page):
    """Which step, then the rule, then one number; each asked for by itself, about the same step."""
    page.get_by_role("button", name="Hint").click()
    expect(page.get_by_text("Hint 1 of 3: Look at the queries.")).to_be_visible()
    page.get_by_role("button", name="Tell me the rule").click()
    expect(page.get_by_text("Hint 2 of 3: Rows of X times columns of the weights.")).to_be_visible()
    page.get_by_role("button", name="Show me one number").click()
    expect(page.get_by_text("Hint 3 of 3: The first number is 1.")).to_be_visible()

    asked = [(body["level"], body.get("step")) for path, body in page.calls if path == "exercises/hint"]
    assert asked == [(1, None), (2, "query"), (3, "query")]


def test_what_is_given_is_drawn(page):
    """Embeddings, weights, and earlier steps where the level begins later; masked scores say so."""
    expect(page.locator(".given table")).to_have_count(6)
    expect(page.locator(".given caption").first).to_have_text("X embeddings 2 × 2")
    expect(page.locator(".given td.masked")).to_have_text(["−∞ masked"] * 2)


# ---- by keyboard


def test_an_exercise_is_done_by_keyboard(page):
    """Tab along a row, arrows from row to row, Enter to check."""
    cell(page, "Project to queries", 1, 1).focus()
    page.keyboard.type("1")
    page.keyboard.press("ArrowDown")
    expect(cell(page, "Project to queries", 2, 1)).to_be_focused()
    page.keyboard.type("0")
    page.keyboard.press("Tab")
    expect(cell(page, "Project to queries", 2, 2)).to_be_focused()
    page.keyboard.press("Enter")

    expect(page.get_by_role("status").first).to_contain_text("2 of 12 cells right")


# ---- the whiteboard


@pytest.fixture
def board(browser, server) -> Iterator[Page]:
    with visiting(browser, width=1100) as page:
        page.calls = exercise_double.serve(page)
        yield opened(page, server.url, "?mode=whiteboard&seed=3")


def add(page: Page, text: str) -> None:
    page.get_by_role("button", name=f"Add “{text}").click()


def order(page: Page) -> list[str]:
    return [text[:8] for text in page.locator(".chosen .text").all_inner_texts()]


def test_a_plan_is_made_by_keyboard(board):
    """Cards are moved by buttons, which keep the focus; where a card has come to is said."""
    for text in ("Take the softmax", "Multiply each", "Multiply the"):
        board.get_by_role("button", name=f"Add “{text}").focus()
        board.keyboard.press("Enter")
    assert order(board) == ["Take the", "Multiply", "Multiply"]
    board.get_by_role("button", name="Move down “Take the").focus()
    board.keyboard.press("Enter")
    board.keyboard.press("Enter")

    expect(board.get_by_role("status").first).to_have_text("Now step 3 of 3.")
    expect(board.get_by_role("button", name="Move down “Take the")).to_be_focused()
    assert order(board) == ["Multiply", "Multiply", "Take the"]
    board.keyboard.press("Enter")  # it is last: nothing happens
    assert order(board)[2] == "Take the"
    board.get_by_role("button", name="Remove “Take the").focus()
    board.keyboard.press("Enter")
    assert len(order(board)) == 2
    expect(board.get_by_role("button", name="Remove “Multiply the")).to_be_focused()


def test_a_plan_is_graded_and_then_come_the_numbers(board):
    """Order and shapes first, whatever the score; then the same numbers, to be worked."""
    for text in ("Multiply the", "Multiply each", "Take the softmax"):
        add(board, text)
    board.get_by_label("Rows of “Multiply each").fill("2")
    board.get_by_label("Columns of “Multiply each").fill("2")
    board.get_by_label("Rows of “Take the").fill("two")
    board.get_by_role("button", name="Check the plan").click()
    expect(board.get_by_text("well placed")).to_have_count(3)
    expect(board.get_by_label("Rows of “Multiply each")).not_to_have_attribute("aria-invalid", "true")
    expect(board.get_by_label("Rows of “Take the")).to_have_attribute("aria-invalid", "true")
    board.screenshot(path=ARTIFACTS / "widget-plan.png", full_page=True)

    plan = {"order": ["c1", "c2", "c4"], "shapes": {"c2": ["2", "2"], "c4": ["two", None]}}
    assert board.calls[-1] == ("exercises/grade", {"exercise": "token", "answers": {"plan": plan}})
    board.get_by_role("button", name="Go on to the numbers").click()
    expect(board.get_by_role("heading", name="The whole recipe")).to_be_focused()
    expect(board.locator("fieldset input")).to_have_count(12)
    expect(board.locator("fieldset .formula")).to_have_count(0)  # the rules are to be known by heart


def test_cards_that_do_not_belong_stay_out(board):
    add(board, "Divide every")
    board.get_by_role("button", name="Check the plan").click()

    expect(board.get_by_text("not right here")).to_be_visible()
    expect(board.get_by_text("Steps missing from the order: 3.")).to_be_visible()


# ---- when something fails


def problem(status: int, title: str, detail: str) -> dict[str, object]:
    return {"status": status, "content_type": "application/problem+json",
            "body": json.dumps({"type": "/problems/x", "title": title, "detail": detail})}  # fmt: skip


def test_a_problem_is_told_and_nothing_typed_is_lost(page):
    fill(page, "1")
    page.route("**/grade", lambda route: route.fulfill(**problem(503, "Busy", "try again later")))
    page.get_by_role("button", name="Check").click()

    expect(page.get_by_role("alert")).to_contain_text("Busy")
    expect(page.get_by_role("alert")).to_contain_text("try again later")
    assert cell(page, "Project to queries", 1, 1).input_value() == "1"


def test_a_broken_connection_is_told(page):
    page.route("**/hint", lambda route: route.abort())
    page.get_by_role("button", name="Hint").click()

    expect(page.get_by_role("alert")).to_contain_text("The service cannot be reached")


def test_a_service_that_wants_a_key_gets_one(browser, server):
    """It is kept in the page, and sent with every call."""
    with visiting(browser) as page:
        keys = []

        def guard(route):
            keys.append(route.request.headers.get("authorization"))
            if keys[-1] != "Bearer secret":
                route.fulfill(**problem(401, "An API key is needed", "send one"))
            else:
                route.fulfill(
                    status=200, content_type="application/json", body=json.dumps(exercise_double.exercise({}))
                )

        page.route("**/v1/exercises", guard)
        page.goto(f"{server.url}/widget?mode=exercise")
        expect(page.get_by_role("alert")).to_contain_text("An API key is needed")
        page.get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_role("heading", name="The whole recipe")).to_be_visible()
        assert keys == [None, "Bearer secret"]


# ---- for everybody


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_axe_finds_nothing_in_exercises(browser, server, scheme, width):
    """Before and after grading, with hints, and with a plan; and the page never scrolls sideways."""
    with visiting(browser, width=width, scheme=scheme) as page:
        exercise_double.serve(page)
        opened(page, server.url)
        assert violations(page) == []
        fill(page, "1", "5", "", "x", "5")
        check(page)
        page.get_by_role("button", name="Hint").click()
        page.get_by_role("button", name="Tell me the rule").click()
        expect(page.get_by_text("Hint 2 of 3")).to_be_visible()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.screenshot(path=ARTIFACTS / f"widget-exercise-{scheme}-{width}.png", full_page=True)
        page.goto(f"{server.url}/widget?mode=whiteboard")
        add(page, "Multiply the")
        add(page, "Take the softmax")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.screenshot(path=ARTIFACTS / f"widget-whiteboard-{scheme}-{width}.png", full_page=True)
