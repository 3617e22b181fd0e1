import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import NumericOverflow
from models.reference import self_attention
from models.spec import AttentionSpec
from models.weights import AttentionWeights
from service.errors import InvalidOption
from service.tutor.explain import explain
from service.tutor.mathml import mathml
from service.tutor.prose import WORDS, number
from service.tutor.steps import STEPS, shape_of, split, steps_of
from tests.problems_at_hand import blind, drawn, lesson

ODD = [
    {"is_causal": True},
    {"attn_mask": blind(), "is_causal": True},
    {"attn_mask": np.zeros((4, 4), bool)},
    {"attn_bias": np.arange(16.0).reshape(4, 4)},
    {"scale": 0.25},
    {"heads": 2, "is_causal": True},
    {"heads": 3, "attn_bias": np.ones((3, 4, 4))},
    {"query_bias": np.ones(3), "value_bias": np.ones(2)},
    {"n": 1, "k": 1, "v": 1, "d": 1},
    {"n": 16, "d": 16, "k": 16, "v": 16},
    {"whole": True},
]


@settings(deadline=None)  # the machine may be busy
@given(
    n=st.integers(1, 6), k=st.integers(1, 4), v=st.integers(1, 4), heads=st.integers(1, 3), seed=st.integers(0, 99),
    is_causal=st.booleans(), masked=st.booleans(), biased=st.booleans(), scale=st.sampled_from([None, 0.3]),
)  # fmt: skip
def test_the_numbers_are_the_references(n, k, v, heads, seed, is_causal, masked, biased, scale):
    """Two ways to them: step by step for people here, in one go there."""
    random = np.random.default_rng(seed)
    options = {
        "is_causal": is_causal,
        "scale": scale,
        "attn_mask": random.random((n, n)) < 0.6 if masked else None,
        "attn_bias": random.normal(size=(heads, n, n)) if biased else None,
    }
    problem = drawn(seed, n, 5, k, v, heads, **options)
    problem = (
        drawn(seed, n, 5, k, v, heads, **options, value_bias=random.normal(size=heads * v)) if seed % 2 else problem
    )
    weights = AttentionWeights(problem.query, problem.key, problem.value, value_bias=problem.value_bias)
    spec = AttentionSpec(name="x", embed_dim=5, num_heads=heads, head_dim=k, value_dim=v)

    found = explain(problem)

    trace = self_attention(problem.inputs, weights, spec, **options)
    for step in found.steps:
        assert step.values.shape == shape_of(problem, step.id)
        if step.id in ("query", "key", "value"):
            np.testing.assert_allclose(split(found.values[step.id], heads), getattr(trace, step.id), atol=1e-10)
        elif step.id != "weighted_values":
            np.testing.assert_allclose(found.values[step.id], getattr(trace, step.id), atol=1e-10)
    np.testing.assert_allclose(found.row_sums.reshape(heads, n)[:, trace.softmax_sum[0, :, 0] > 0], 1, atol=1e-12)
    assert found.fully_masked_rows == np.flatnonzero(trace.softmax_sum[0, :, 0] == 0).tolist()


@pytest.mark.parametrize("options", ODD)
def test_the_terms_of_every_sum_add_up_to_its_cell(options):
    found = explain(drawn(**options))

    told = {step.id for step in found.steps if step.terms is not None}
    for step in found.steps:
        if step.terms is not None:
            np.testing.assert_allclose(step.terms[..., 2].sum(axis=-1), step.values, atol=1e-10)
            np.testing.assert_allclose(step.terms[..., 0] * step.terms[..., 1], step.terms[..., 2], atol=1e-10)
    assert told == {"query", "key", "value", "raw_scores", "softmax_sum", "outputs"}


@pytest.mark.parametrize("options", ODD)
def test_every_step_has_words_a_formula_that_can_be_drawn_and_operands(options):
    problem = drawn(**options)

    found = explain(problem)

    assert [step.id for step in found.steps] == list(steps_of(problem))
    for step in found.steps:
        assert step.text.endswith(".")
        assert "nan" not in step.text
        assert mathml(step.formula)
        assert step.title == STEPS[step.id].title
        assert step.operands
        assert len(step.row_labels) == step.values.shape[-2]
        assert len(step.column_labels) == step.values.shape[-1]
        for operand in step.operands:
            if operand.name in STEPS:
                assert operand.shape == found.step(operand.name).values.shape


def test_there_are_words_for_every_step():
    assert list(WORDS) == list(STEPS)


def test_the_lesson_is_told_as_a_story_of_her_who_looks_for_mia():
    """The words name who asks, who answers and how much, with the numbers of the tables."""
    found = explain(lesson())

    assert found.summary == "'her' attends most to 'Mia', 0.90"
    assert found.alt.startswith("Attention weights of 4 tokens. 'her' attends most to 'Mia', 0.90.")
    words = {step.id: step.text for step in found.steps}
    assert "library" in words["query"]
    assert "'her' comes with the question (4.05, 0.60, 0.45)" in words["query"]
    assert "1.00·4.00 + 0.50·0.10 = 4.05" in words["query"]
    assert "'Mia' is labelled (2.05, 0.00, 0.05)" in words["key"]
    assert "'Mia' holds (1.00, 0.05, 0.05)" in words["value"]
    assert "4.05·2.05 + 0.45·0.05 ≈ 8.33, the best match of its row. 'reads' fits least, 1.13" in words["raw_scores"]
    assert "'her' and 'Mia': 8.33 / 1.73 ≈ 4.81" in words["scaled_scores"]
    assert "'Mia' 0.90, itself 0.07, 'book' 0.02 and 'reads' 0.01: together 1" in words["weights"]
    assert "0.90 of 'Mia', 0.07 of 'her', 0.02 of 'book' and 0.01 of 'reads'" in words["outputs"]
    assert "(0.93, 0.07, 0.06)" in words["outputs"]


@settings(deadline=None)  # the machine may be busy
@given(seed=st.integers(0, 99), n=st.integers(2, 9), is_causal=st.booleans())
def test_the_words_name_the_heaviest_weight_and_its_number(seed, n, is_causal):
    found = explain(drawn(seed, n, is_causal=is_causal))

    head, row = found.tale.head, found.tale.row
    weights = found.step("weights").values[row]
    best = int(weights.argmax())
    share = number(weights[best], 2)
    other = "itself" if best == row else f"'t{best + 1}'"
    assert found.summary.startswith(f"'t{row + 1}' ")
    assert other in found.summary or "alike" in found.summary
    assert share in found.summary
    assert f"{other} {share}" in found.step("weights").text
    assert head == 0


def test_every_number_of_the_words_is_one_that_is_shown():
    """Whoever looks for a number of the text finds it in the tables, or is told where it comes from."""
    found = explain(lesson())
    shown = {number(abs(x), 2) for step in found.steps for x in step.values.flat}
    shown |= {number(abs(x), 2) for array in (found.problem.inputs, found.problem.query) for x in array.flat}
    shown |= {"1.73"}  # √3

    for step in found.steps:
        assert set(re.findall(r"\d+\.\d\d", step.text)) <= shown


def test_a_row_that_sees_nothing_is_said():
    found = explain(drawn(attn_mask=blind()), focus=0)

    assert found.summary == "'t1' may see no token at all, so its output is zero"
    assert found.fully_masked_rows == [0]
    assert "may see nothing" in found.step("masked_scores").text
    assert "output is zero: (0, 0)" in found.step("outputs").text


def test_the_mask_is_said_and_who_is_left():
    text = explain(lesson(is_causal=True)).step("masked_scores").text

    assert "6 of 16 pairs are hidden" in text
    assert "'her' sees 'Mia', 'reads' and itself." in text


def test_head_and_token_may_be_chosen():
    problem = drawn(heads=3)

    found = explain(problem, head=1, focus=2)

    assert (found.tale.head, found.tale.row) == (1, 2)
    assert found.summary.startswith("'t3' attends most to")
    assert "in head 2" in found.summary
    for name, value in (("head", 3), ("focus", 4), ("focus", -1)):
        with pytest.raises(InvalidOption) as caught:
            explain(problem, **{name: value})
        assert caught.value.fields[0].pointer == f"/{name}"


def test_whole_numbers_come_with_their_exact_forms():
    found = explain(drawn(whole=True, heads=2, k=2))

    scaled = found.step("scaled_scores")
    assert np.vectorize(lambda form: form.value)(np.array(scaled.exact, object)) == pytest.approx(scaled.values)
    assert found.step("weights").exact is None
    assert explain(drawn()).step("raw_scores").exact is None


def test_what_grows_out_of_bounds_is_an_error_not_a_nan():
    problem = drawn()
    huge = type(problem)(problem.inputs * 1e200, problem.query * 1e200, problem.key, problem.value)

    with pytest.raises(NumericOverflow):
        explain(huge)


def test_long_sums_are_left_out_and_that_is_said():
    found = explain(drawn(n=3, d=40, k=32, v=32, widest=64))

    assert found.step("query").terms is None
    assert found.step("raw_scores").terms is None
    assert found.step("outputs").terms is not None
    assert "left out" in found.notes[0]


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(8.325, 2, "8.33"), (-0.004, 2, "0.00"), (-1.5, 1, "−1.5"), (2.5, 0, "3"), (-np.inf, 2, "−∞"), (0.0, 3, "0.000")],
)
def test_numbers_are_rounded_as_on_paper(value, decimals, text):
    assert number(value, decimals) == text
