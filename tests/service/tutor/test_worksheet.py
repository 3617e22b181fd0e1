from html.parser import HTMLParser

import pytest
from learners import exercise

from service.tutor.exercises.levels import LEVELS
from service.tutor.worksheet import answer_sheet, number, worksheet

KINDS = [(level, "guided", 1) for level in LEVELS] + [("two-heads", "whiteboard", 1), ("causal", "whiteboard", 2)]


class Page(HTMLParser):
    """What stands on a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.cells = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *each) for each in attrs]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


@pytest.mark.parametrize(("level", "mode", "part"), KINDS)
@pytest.mark.parametrize("sheet", [worksheet, answer_sheet])
def test_a_sheet_is_sound_and_needs_nothing_from_elsewhere(sheet, level, mode, part):
    given = exercise(level, 3, mode=mode, part=part)

    page = Page(sheet(given, "token<&"))

    assert page.open == []
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert not [each for each in page.attributes if each[1] in ("src", "href", "style") or each[1].startswith("on")]
    assert page.tags.count("table") == page.tags.count("caption") > 0
    assert page.tags.count("th") == sum(each[1] == "scope" for each in page.attributes)
    assert ("html", "lang", "en") in page.attributes
    assert page.tags.count("h1") == 1


def test_a_worksheet_has_room_for_every_number_asked_and_shows_none():
    given = exercise("recipe", 3)

    text = worksheet(given, "token")

    blanks = sum(given.right[step].size for step in given.ask)
    assert text.count("class='blank'") == blanks
    assert len(Page(text).cells) == 4 * 5 + 3 * 5 * 3  # what is given


def test_an_answer_sheet_shows_every_number():
    given = exercise("causal", 3)

    text = answer_sheet(given, "token")

    assert "class='blank'" not in text
    assert "−∞" in text
    assert {number(float(value), 3) for value in given.right["weights"].ravel()} <= set(Page(text).cells)


def test_a_plan_on_paper_has_its_cards():
    given = exercise("causal", 3, mode="whiteboard")

    assert worksheet(given, "token").count("<li>") == 11
    assert worksheet(given, "token").count("class='blank'") == 0
    assert answer_sheet(given, "token").count("<li>") == 8


def test_what_is_to_be_known_by_heart_is_not_printed_on_the_worksheet():
    assert "add up the products" not in worksheet(exercise("recipe"), "token")
    assert "add up the products" in answer_sheet(exercise("recipe"), "token")


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (-1.0, "−1"), (-0.0, "0"), (0.57735, "0.577"), (-0.0001, "0.000"), (2.5, "2.500")]
)
def test_numbers_are_printed_as_people_write_them(value, text):
    assert number(value, 3) == text
