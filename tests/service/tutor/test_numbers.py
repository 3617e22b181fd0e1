import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.tutor.numbers import BLANK, LARGEST, Reading, cells_of, read, read_sheet


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (0, 0), (-1, -1), (0.5, 0.5), ("0.5", 0.5), ("0,5", 0.5), (".5", 0.5), (",5", 0.5), ("5.", 5), ("+2", 2),
        ("−2", -2), ("–2", -2), ("- 2", -2), (" 2 ", 2), ("\u00a02\u202f", 2), ("1/3", 1 / 3), ("−1 / 3", -1 / 3),
        ("1e-3", 1e-3), ("1E3", 1e3), ("½", 0.5), ("−⅓", -1 / 3), ("√3", math.sqrt(3)), ("2/√3", 2 / math.sqrt(3)),
        ("-sqrt(2)", -math.sqrt(2)), ("sqrt( 3 ) / 3", 1 / math.sqrt(3)), ("0,577", 0.577), ("-0,577", -0.577),
        ("1,2345", 1.2345), ("1,23", 1.23), ("1234,567", 1234.567), ("1.234", 1.234), ("007", 7), ("1e9", 1e9),
        (",123", 0.123), ("0,5/1,5", 1 / 3), ("1e-300", 1e-300),
    ],
)  # fmt: skip
def test_a_number_is_read_as_people_write_it(written, value):
    assert read(written) == Reading(pytest.approx(value))


@pytest.mark.parametrize("written", [None, "", " ", "\t", "\u00a0"])
def test_a_blank_is_missing_and_not_zero(written):
    assert read(written) == BLANK


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("1,234", "thousands"), ("-12,345", "thousands"), ("999,000", "thousands"), ("1,234/2", "thousands"),
        ("1,414/1,414", "thousands"),
        ("1,234.5", "not a number"), ("1.234,5", "not a number"), ("1 234", "not a number"), ("1½", "not a number"),
        ("nan", "not a number"), ("NaN", "not a number"), ("inf", "not a number"), ("1/0", "zero"), ("1/0,0", "zero"),
        ("one", "not a number"), ("0x10", "not a number"), ("1_000", "not a number"), ("--2", "not a number"),
        ("1/2/3", "not a number"), ("50%", "not a number"), ("√-1", "not a number"), ("√", "not a number"),
        (".", "not a number"), (",", "not a number"), ("/", "not a number"), ("⅟", "not a number"),
        ("٣", "not a number"), ("1" * 41, "longer"), ("1" * 40, "larger"), ("1e999", "larger"), (10**400, "larger"),
        (math.nan, "larger"), (math.inf, "larger"), (-math.inf, "larger"), (True, "not a number"), ({}, "not a number"),
        ([], "not a number"), ("-inf", "masked score"), ("1/1e-300", "larger"), ("+", "not a number"),
    ],
)  # fmt: skip
def test_what_is_no_number_for_sure_is_refused_with_a_reason(written, reason):
    """A guess would be graded as if the learner had meant it."""
    reading = read(written)

    assert reading.value is None
    assert reason in reading.fault


@pytest.mark.parametrize("written", ["-inf", "−∞", "- ∞", "-Infinity", "masked", "Masked", " −inf ", -math.inf])
def test_a_masked_score_may_be_written_in_words(written):
    assert read(written, masked=True) == Reading(-math.inf)


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=30))
def test_whatever_stands_there_is_read_without_an_exception(answer):
    sheet = read_sheet(answer, most=50, masked=True)

    for cell in cells_of(sheet.readings):
        assert cell.value is None or abs(cell.value) <= LARGEST or cell.value == -math.inf


def test_a_sheet_is_an_array_with_holes():
    sheet = read_sheet([[1, "0,5"], ["", "x"]], most=10)

    np.testing.assert_array_equal(sheet.values, [[1, 0.5], [np.nan, np.nan]])
    assert [cell.fault[:4] for cell in cells_of(sheet.readings)] == ["", "", "", "this"]
    assert not sheet.empty
    assert read_sheet([[None, ""]], most=10).empty


@pytest.mark.parametrize("answer", [[[1, 2], [3]], [1, [2]], [[], [1]], [[[[[1]]]]], [[1] * 20] * 20, [[]] * 500])
def test_what_makes_no_array_is_none(answer):
    """Rows of unlike lengths, lists in lists in lists, and more than anybody would write."""
    sheet = read_sheet(answer, most=100)

    if answer == [[]] * 500 or len(str(answer)) > 100 or "[[[[[" in str(answer):
        assert "far more" in sheet.readings.fault
    else:
        assert sheet.values is None
