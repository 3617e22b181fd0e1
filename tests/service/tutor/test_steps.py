import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import ShapeMismatch
from models.reference import attention
from service.tutor.problem import Problem
from service.tutor.steps import STEPS, Stuck, kept, shape_of, shown, split, steps_of, work


def problem(n=4, d=5, k=3, v=2, heads=1, seed=0, **options) -> Problem:
    draw = np.random.default_rng(seed).integers(-2, 3, (4, 40)).astype(float)
    return Problem(
        draw[0, : n * d].reshape(n, d) if n * d <= 40 else np.resize(draw[0], (n, d)),
        np.resize(draw[1], (d, heads * k)),
        np.resize(draw[2], (d, heads * k)),
        np.resize(draw[3], (d, heads * v)),
        num_heads=heads,
        **options,
    )


@given(
    n=st.integers(1, 6),
    k=st.integers(1, 4),
    v=st.integers(1, 4),
    heads=st.integers(1, 3),
    seed=st.integers(0, 99),
    is_causal=st.booleans(),
)
def test_the_steps_lead_where_the_reference_does(n, k, v, heads, seed, is_causal):
    """Two ways to the same numbers: step by step here, in one go there."""
    case = problem(n, 5, k, v, heads, seed, is_causal=is_causal)

    worked = work(case)

    trace = attention(*(split(worked[name], heads) for name in ("query", "key", "value")), is_causal=is_causal)
    for step in ("raw_scores", "scaled_scores", "softmax_max", "softmax_exp", "softmax_sum", "weights", "outputs"):
        np.testing.assert_allclose(worked[step], getattr(trace, step), rtol=1e-12, atol=1e-12)
    for step, array in worked.items():
        assert shown(case, step, array).shape == shape_of(case, step)
        np.testing.assert_array_equal(kept(case, step, shown(case, step, array)), array)


def test_masking_is_a_step_only_where_something_is_masked():
    assert "masked_scores" not in steps_of(problem())
    assert list(steps_of(problem(is_causal=True))) == list(STEPS)
    assert np.isneginf(work(problem(is_causal=True))["masked_scores"][0, 0, 1:]).all()


def test_a_row_that_sees_nothing_has_no_weights():
    mask = np.ones((4, 4), dtype=bool)
    mask[2] = False

    worked = work(problem(attn_mask=mask))

    assert not worked["weights"][0, 2].any()
    assert not worked["outputs"][2].any()


def test_what_is_known_is_gone_on_from():
    case = problem()
    own = work(case)["scaled_scores"] + 1.5

    worked = work(case, known={"scaled_scores": own}, only=("weights",))

    assert list(worked) == ["scaled_scores", "softmax_max", "softmax_exp", "softmax_sum", "weights"]
    np.testing.assert_allclose(worked["weights"], work(case)["weights"])  # a constant added to a row changes nothing
    assert work(case, known={"weights": np.ones((1, 4, 4))})["outputs"][0, 0] == work(case)["value"].sum(axis=0)[0]


def test_what_does_not_fit_is_left_out_and_so_is_all_that_follows_from_it():
    def stuck(*_):
        raise Stuck

    assert list(work(problem(), replaced={"raw_scores": stuck})) == ["query", "key", "value"]
    wrong_shape = work(problem(), replaced={"raw_scores": lambda _, values: values["query"].T @ values["key"]})
    assert wrong_shape["raw_scores"].shape == (3, 3)
    assert "outputs" not in wrong_shape


def test_a_step_done_otherwise_may_use_whatever_comes_before_it():
    """Somebody who mixes the queries needs them, which whoever mixes the values does not."""
    case = problem(k=2, v=2)
    way = {"outputs": lambda _, values: values["weights"][0] @ values["query"]}

    worked = work(case, known={"weights": np.ones((1, 4, 4))}, replaced=way, only=("outputs",))

    np.testing.assert_allclose(worked["outputs"][0], work(case)["query"].sum(axis=0))


def test_what_fits_nowhere_does_not_keep_later_steps_from_being_worked():
    case = problem()
    known = {"raw_scores": np.ones((1, 3, 2)), "weights": np.ones((1, 4, 4))}

    worked = work(case, known=known)

    assert "softmax_exp" in worked
    assert worked["outputs"].shape == (4, 2)


def test_arrays_are_rounded_where_asked():
    worked = work(problem(), decimals=2)

    for array in worked.values():
        np.testing.assert_array_equal(array, np.round(array, 2))


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"n": 17}, "/inputs"),
        ({"d": 17}, "/inputs"),
        ({"labels": ("one",)}, "/labels"),
    ],
)
def test_a_problem_too_large_or_ill_fitting_is_refused(change, pointer):
    with pytest.raises(ShapeMismatch) as caught:
        problem(**change)

    assert caught.value.fields[0].pointer == pointer
