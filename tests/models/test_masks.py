import numpy as np
import pytest

from models.masks import fully_masked_rows, visible

MASK = np.array([[0, 1, 1], [1, 1, 0], [1, 0, 0]], bool)


def test_without_mask_and_causality_there_is_nothing_to_apply():
    """None spares every backend a matrix of True."""
    assert visible(3, None, is_causal=False) is None


def test_a_mask_alone_is_itself():
    """True = may attend, as the caller sent it."""
    np.testing.assert_array_equal(visible(3, MASK, is_causal=False), MASK)


def test_causal_rows_see_themselves_and_what_is_before():
    """Row 0 sees one column, not none."""
    np.testing.assert_array_equal(visible(3, None, is_causal=True), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


def test_mask_and_causality_both_apply():
    """A column is visible if both say so; the caller's mask is not changed."""
    before = MASK.copy()

    np.testing.assert_array_equal(visible(3, MASK, is_causal=True), [[0, 0, 0], [1, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(MASK, before)


@pytest.mark.parametrize(
    ("keep", "rows"),
    [(None, []), (np.ones((2, 2), bool), []), (MASK & np.tri(3, dtype=bool), [0]), (MASK & False, [0, 1, 2])],
)
def test_rows_that_see_nothing_are_listed(keep, rows):
    """As plain integers: they go into JSON."""
    found = fully_masked_rows(keep)

    assert found == rows
    assert all(type(row) is int for row in found)


@pytest.mark.parametrize(
    ("window", "is_causal", "rows"),
    [
        (
            2,
            True,
            ["1000", "1100", "0110", "0011"],
        ),  # as transformers has it (#39408, trap 47)
        (1, True, ["1000", "0100", "0010", "0001"]),
        (4, True, ["1000", "1100", "1110", "1111"]),
        (2, False, ["1100", "1110", "0111", "0011"]),
    ],
)
def test_a_window_counts_the_token_itself(window, is_causal, rows):
    """Whether it does is told differently everywhere; here it is written down."""
    expected = [[cell == "1" for cell in row] for row in rows]

    np.testing.assert_array_equal(visible(4, None, is_causal=is_causal, window=window), expected)


def test_a_window_and_a_mask_both_hold():
    mask = np.ones((3, 3), bool)
    mask[2, 1] = False

    np.testing.assert_array_equal(visible(3, mask, is_causal=True, window=2), [[1, 0, 0], [1, 1, 0], [0, 0, 1]])


def test_a_window_as_long_as_the_sequence_hides_nothing():
    """Then no mask is needed at all."""
    assert visible(3, None, is_causal=False, window=3) is None
