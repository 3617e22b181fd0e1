"""The tables of differences that a test run leaves behind."""

import pytest

from tests.parity_table import LAYERS, MINILM, figure, render


def test_a_cell_holds_the_largest_figure_and_rows_stand_by_name():
    """Figures come in any order, some of them from other processes."""
    text = render(
        [
            figure(MINILM, ("weights",), "onnx", 2e-6),
            figure(MINILM, ("weights",), "onnx", 1.2e-5),
            figure(MINILM, ("states",), "eager", 0.0),
            figure(MINILM, ("weights",), "onnx", 3e-6),
        ]
    )

    assert text.splitlines()[-2:] == ["| states | – | 0 | – |", "| weights | – | – | 1.2e-5 |"]
    assert LAYERS not in text


def test_a_figure_that_is_no_number_is_shown():
    """It is the worst of all, and no maximum may hide it."""
    found = [figure(MINILM, ("weights",), "onnx", value) for value in (1e-6, float("nan"), 1e-6)]

    assert render(found).endswith("| weights | – | – | nan |\n")


@pytest.mark.parametrize(("row", "column"), [(("a", "b"), "onnx"), (("a",), "weights: onnx")])
def test_a_figure_that_has_no_place_in_its_table_is_refused(row, column):
    """It would be lost in silence."""
    with pytest.raises(AssertionError):
        figure(MINILM, row, column, 0.0)
