from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.tutor.exact import Surd, exact
from service.tutor.mathml import mathml
from service.tutor.problem import Problem
from service.tutor.steps import work


@pytest.mark.parametrize(
    ("top", "under", "text", "latex"),
    [
        (3, 2, "3/√2 = 3√2/2", r"\frac{3\sqrt{2}}{2}"),
        (2, 2, "2/√2 = √2", r"\sqrt{2}"),
        (-2, 2, "−2/√2 = −√2", r"-\sqrt{2}"),
        (6, 4, "6/2 = 3", "3"),
        (3, 4, "3/2", r"\frac{3}{2}"),
        (4, 8, "4/√8 = √2", r"\sqrt{2}"),
        (5, 12, "5/√12 = 5√3/6", r"\frac{5\sqrt{3}}{6}"),
        (-7, 1, "−7", "-7"),
        (0, 3, "0/√3 = 0", "0"),
    ],
)
def test_a_fraction_with_a_root_below_is_written_as_at_school(top, under, text, latex):
    form = Surd.over_root(top, under)

    assert form.text == text
    assert form.latex == latex
    assert mathml(latex)


@settings(deadline=None)  # the machine may be busy
@given(top=st.integers(-500, 500), under=st.integers(1, 16))
def test_every_form_evaluates_to_what_it_stands_for(top, under):
    form = Surd.over_root(top, under)

    assert form.value == pytest.approx(top / under**0.5, abs=1e-12)
    assert Fraction(form.numerator, form.denominator).denominator == form.denominator  # lowest terms
    assert all(form.radicand % (a * a) for a in range(2, 5))


def problem(seed=0, n=4, d=3, k=2, **options) -> Problem:
    draw = np.random.default_rng(seed).integers(-3, 4, (4, 64)).astype(float)
    shapes = ((n, d), (d, k), (d, k), (d, k))
    return Problem(*(row[: a * b].reshape(a, b) for row, (a, b) in zip(draw, shapes, strict=True)), **options)


@settings(deadline=None)  # the machine may be busy
@given(seed=st.integers(0, 99), k=st.integers(1, 9), is_causal=st.booleans())
def test_the_exact_forms_are_the_steps(seed, k, is_causal):
    """Two ways to the same numbers: whole numbers and roots here, float64 there."""
    case = problem(seed, k=k, is_causal=is_causal)
    values = work(case)

    found = exact(case, values)

    for step, cells in found.items():
        evaluated = np.vectorize(lambda cell: -np.inf if cell is None else cell.value)(np.array(cells, object))
        np.testing.assert_allclose(evaluated, values[step], atol=1e-9)
    assert ("masked_scores" in found) == is_causal


def test_there_are_none_where_a_number_is_not_whole():
    case = problem()
    halves = Problem(case.inputs / 2, case.query, case.key, case.value)

    assert exact(halves, work(halves)) == {}


def test_an_own_scale_or_bias_leaves_the_scaled_scores_to_decimals():
    for options in ({"scale": 0.3}, {"attn_bias": np.ones((4, 4))}):
        case = problem(**options)
        assert set(exact(case, work(case))) == {"query", "key", "value", "raw_scores"}


def test_a_row_that_sees_nothing_has_a_largest_score_of_nought():
    case = problem(attn_mask=np.zeros((4, 4), bool))

    assert exact(case, work(case))["softmax_max"][0][0][0].value == 0
