"""Whether numbers are finite."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from models.finite import all_finite


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(width=32)))
def test_it_says_what_asking_each_number_says(array):
    assert all_finite(array) == np.isfinite(array).all()


@pytest.mark.parametrize("number", [3e38, -3e38, 1e-45, 0.0])
def test_numbers_whose_squares_are_not_numbers_are_finite(number):
    assert all_finite(np.full((3, 4), number, np.float32))


def test_nothing_is_finite():
    assert all_finite(np.zeros((0, 3), np.float32))


def test_a_view_with_gaps_is_looked_at_as_it_is():
    array = np.full((4, 4), np.nan, np.float32)
    array[::2, ::2] = 1

    assert all_finite(array[::2, ::2])
    assert not all_finite(array[1:, 1:])
