"""The widget with the service's own exercises: every level worked through in a real Chromium, right and wrong."""

import json
from collections.abc import Iterator

import pytest
from browsing import ARTIFACTS, MARKS, violations, visiting
from playwright.sync_api import Page, expect

from service.tutor.exercise import Exercise
from service.tutor.exercises import exercise_of
from service.tutor.exercises.levels import LEVELS
from service.tutor.signing import Signer
from service.tutor.steps import shown

pytestmark = MARKS


@pytest.fixture
def page(browser) -> Iterator[Page]:
    with visiting(browser, width=1100) as page:
        yield page


def opened(page: Page, url: str, query: str) -> Exercise:
    """What the page was given; the token holds it all."""
    with page.expect_response("**/v1/exercises") as answered:
        page.goto(f"{url}/widget?{query}")
    return exercise_in(json.loads(answered.value.body()))


def exercise_in(answer: dict[str, str]) -> Exercise:
    return exercise_of(Signer().terms(answer["exercise"]))


def right(exercise: Exercise) -> list[str]:
    """What somebody types who makes no mistake, field by field."""
    numbers = [
        float(number) for step in exercise.ask for number in shown(exercise.problem, step, exercise.usual[step]).ravel()
    ]
    return ["-inf" if number == -float("inf") else f"{number:.{exercise.terms.decimals}f}" for number in numbers]


def fill(page: Page, texts: list[str]) -> None:
    fields = page.locator("fieldset input")
    expect(fields).to_have_count(len(texts))
    for field, text in zip(fields.all(), texts, strict=True):
        field.fill(text)


def check(page: Page) -> None:
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("Score")


def test_the_levels_are_those_of_the_service(page, server):
    """A level that is added there is to be had here."""
    page.goto(f"{server.url}/widget?mode=exercise")
    options = page.get_by_label("Level").locator("option")
    expect(options).to_have_count(len(LEVELS))

    assert [option.get_attribute("value") for option in options.all()] == list(LEVELS)


def test_a_whiteboard_has_the_levels_that_it_can_be_of(page, server):
    page.goto(f"{server.url}/widget?mode=whiteboard")
    options = page.get_by_label("Level").locator("option")
    whole = [level.id for level in LEVELS.values() if level.whole]
    expect(options).to_have_count(len(whole))

    assert [option.get_attribute("value") for option in options.all()] == whole


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_can_be_worked_through(page, server, level):
    """What is right gets the whole score, in whatever shape the level's tables are; and it can be read by all."""
    exercise = opened(page, server.url, f"mode=exercise&level={level}&seed=11")
    fill(page, right(exercise))
    assert violations(page) == []
    check(page)

    expect(page.get_by_role("status").first).to_contain_text("Score 100 %")
    expect(page.locator(".mark.ok")).to_have_count(len(right(exercise)))
    expect(page.locator("code")).to_have_count(0)  # every formula is drawn, none stands as LaTeX
    page.screenshot(path=ARTIFACTS / f"widget-level-{level}.png", full_page=True)


def test_a_mistake_is_named(page, server):
    """Scores that were not scaled, by somebody who went on from there rightly."""
    exercise = opened(page, server.url, "mode=exercise&level=scaling&seed=11")
    fill(page, [f"{number:.2f}" for number in exercise.given["raw_scores"].ravel()])
    check(page)

    expect(page.locator(".misconception")).to_contain_text("The scores were not scaled")
    page.screenshot(path=ARTIFACTS / "widget-mistake.png", full_page=True)


def test_hints_come_from_the_service(page, server):
    opened(page, server.url, "mode=exercise&level=softmax&seed=11")
    page.get_by_role("button", name="Hint").click()
    expect(page.locator(".hint-card p")).to_contain_text("Softmax of each row")
    page.get_by_role("button", name="Tell me the rule").click()
    expect(page.get_by_text("Hint 2 of 3")).to_be_visible()
    expect(page.locator(".hints math")).to_have_count(1)
    page.get_by_role("button", name="Show me one number").click()
    expect(page.locator(".hint-card p")).to_contain_text("row t4, column t1")


def test_with_everything_right_a_hint_leads_nowhere(page, server):
    exercise = opened(page, server.url, "mode=exercise&level=dot-product&seed=11")
    fill(page, right(exercise))
    page.get_by_role("button", name="Hint").click()

    expect(page.get_by_text("Everything is right.")).to_be_visible()
    expect(page.get_by_role("button", name="Tell me the rule")).to_have_count(0)


def test_numbers_may_be_written_as_people_write_them(page, server):
    exercise = opened(page, server.url, "mode=exercise&level=dot-product&seed=11")
    (number,) = right(exercise)
    fill(page, [f"{float(number) * 3:.0f}/3".replace("-", "−")])
    check(page)

    expect(page.get_by_role("status").first).to_contain_text("Score 100 %")
    expect(page.get_by_text("Read as:")).to_be_visible()


def test_a_whiteboard_from_plan_to_numbers(page, server):
    """The plan with a card too many, then the right one, then the recipe without its rules."""
    exercise = opened(page, server.url, "mode=whiteboard&level=causal&seed=11")
    for word in ("the queries", "the keys", "the values", "Take the dot product of every query with every key",
                 "Divide the raw scores by the square root", "Put minus infinity", "Take the softmax of each row",
                 "Add up the values"):  # fmt: skip
        page.locator(".cards:not(.chosen) li").filter(has_text=word).first.get_by_role("button").click()
    for field in page.locator(".chosen input").all():
        field.fill("4")
    page.get_by_role("button", name="Check the plan").click()
    expect(page.locator(".place.ok")).to_have_count(8)
    expect(page.locator(".chosen .mark.wrong")).to_have_count(4)  # queries, keys, values and outputs are 4 × 3
    page.screenshot(path=ARTIFACTS / "widget-plan-graded.png", full_page=True)
    assert violations(page) == []
    for card in page.locator(".chosen li").all():
        for field in card.locator("input[data-verdict=wrong]").all():
            field.fill("3")
    page.get_by_role("button", name="Check the plan").click()
    expect(page.get_by_role("status").first).to_contain_text("Score 100 %")
    page.get_by_role("button", name="Go on to the numbers").click()
    fill(page, right(exercise))
    expect(page.locator("fieldset .formula")).to_have_count(0)
    check(page)

    expect(page.get_by_role("status").first).to_contain_text("Score 100 %")
