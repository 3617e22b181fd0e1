"""Laws that every named mistake keeps, and what each of them leads to, written down a second time."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from service.tutor import misconceptions
from service.tutor.misconceptions import FILES, MISCONCEPTIONS
from service.tutor.problem import Problem
from service.tutor.steps import STEPS, shape_of, shown, steps_of, work

FOLDER = Path(misconceptions.__file__).parent

IDS = [
    "proj.transposed", "proj.wx", "proj.swap_qk", "proj.swap_kv", "proj.swap_qv", "proj.none", "proj.no_bias",
    "proj.cell_slip",
    "score.qtk", "score.kqt", "score.qqt", "score.kkt", "score.qvt", "score.elementwise", "score.no_transpose",
    "score.cosine",
    "scale.none", "scale.dk", "scale.sqrt_dmodel", "scale.sqrt_n", "scale.n", "scale.multiplied",
    "scale.dmodel", "scale.after_softmax", "scale.total_width",
    "mask.ignored", "mask.after_softmax", "mask.zero_score", "mask.reversed", "mask.strict",
    "mask.padding_rows", "mask.small_number",
    "softmax.columns", "softmax.all", "softmax.skipped", "softmax.linear", "softmax.no_denominator",
    "softmax.hardmax", "softmax.denominator_excludes_self", "softmax.sigmoid",
    "softmax.max_subtracted_shown_as_exp", "softmax.row_sum_of_rounded", "softmax.base2", "softmax.base10",
    "out.keys", "out.queries", "out.x", "out.transposed_weights", "out.va", "out.mean", "out.top1",
    "out.token_dropped", "out.not_summed", "out.wrong_row", "out.residual_added",
    "heads.interleaved", "heads.averaged", "heads.merge_order",
    "round.early", "round.truncated",
    "copy.row_col",
]  # fmt: skip


def drawn(n=4, d=5, k=3, v=3, heads=1, seed=0, **options) -> Problem:
    """A problem of numbers between -1 and 1, none of which is zero."""
    draw = np.random.default_rng(seed)

    def numbers(*shape):
        return draw.choice([-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0], shape)

    return Problem(
        numbers(n, d), numbers(d, heads * k), numbers(d, heads * k), numbers(d, heads * v), num_heads=heads, **options
    )


MASK = np.array([[1, 1, 0, 1], [1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 0, 1]], dtype=bool)

CASES = {
    "recommended": drawn(),
    "causal": drawn(is_causal=True),
    "masked": drawn(attn_mask=MASK),
    "causal and masked": drawn(attn_mask=MASK, is_causal=True),
    "padding": drawn(attn_mask=np.tile([True, True, True, False], (4, 1))),
    "nobody sees anybody": drawn(attn_mask=np.zeros((4, 4), dtype=bool)),
    "biases": replace(
        drawn(), query_bias=np.array([0.5, 1, -1]), key_bias=np.array([1, -0.5, 2]), value_bias=np.array([1.0, 2, 3])
    ),
    "two heads": drawn(heads=2, k=2, v=2, is_causal=True),
    "square": drawn(n=4, d=4, k=4, v=4),
    "long": drawn(n=16, d=2, k=2, v=2),
}

NEEDS = {
    "proj.transposed": "square",
    "proj.wx": "square",
    "proj.none": "square",
    "proj.no_bias": "biases",
    "score.no_transpose": "square",
    "scale.total_width": "two heads",
    "out.va": "square",
    "out.x": "square",
    "out.residual_added": "square",
    "heads.interleaved": "two heads",
    "heads.averaged": "two heads",
    "heads.merge_order": "two heads",
    **{name: "causal" for name in IDS if name.startswith("mask.")},
    "mask.padding_rows": "masked",
}
"""The case where each can be made: the recommended shape, or what it needs."""


def case_of(name: str) -> Problem:
    return CASES[NEEDS.get(name, "recommended")]


def changed(problem: Problem, worked, way) -> list[str]:
    """The steps that come out otherwise, in order; those that cannot be worked any more are not among them."""
    other = work(problem, replaced=way)
    return [step for step in steps_of(problem) if step in other and not same(other[step], worked[step])]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_every_file_of_the_folder_is_named_and_names_its_mistake():
    assert sorted(FILES) == sorted(path.stem for path in FOLDER.glob("[a-z]*.py") if path.stem != "base")
    assert {name.replace(".", "_") for name in MISCONCEPTIONS} == set(FILES)


def test_no_id_is_lost_or_renamed():
    """Statistics, courses and stored results refer to them; new ones are added to the list, none leaves it."""
    assert set(MISCONCEPTIONS) == set(IDS)
    assert len(FILES) == len(IDS) == 61


def test_the_page_lists_all_of_them():
    """In the same order."""
    page = (FOLDER.parents[2] / "docs" / "tutor.md").read_text()
    rows = [f"| `{one.id}` | `{one.step}` | {one.title} |" for one in MISCONCEPTIONS.values()]

    listed = [line for line in page.splitlines() if re.match(r"\| `[a-z]+\.[a-z0-9_]+` \|", line)]

    assert listed == rows, "the table should read:\n" + "\n".join(rows)


def test_they_are_in_the_order_of_the_recipe():
    at = [list(STEPS).index(one.step) for one in MISCONCEPTIONS.values()]

    assert at == sorted(at)


def test_twins_know_each_other_and_why():
    for one in MISCONCEPTIONS.values():
        for twin, reason in one.twins.items():
            assert reason.strip()
            assert MISCONCEPTIONS[twin].twins[one.id] == reason


@pytest.mark.parametrize("name", IDS)
def test_a_learner_is_told_what_and_why_and_what_to_do(name):
    """In words: a number in a hint could be one of the answers."""
    one = MISCONCEPTIONS[name]

    for text in (one.title, one.explanation, one.remedy, *one.twins.values()):
        assert text.strip() == text != ""
        assert not re.search(r"\d", text)
    assert all(text.endswith(".") for text in (one.explanation, one.remedy))
    assert not one.title.endswith(".")
    assert len(one.title) <= 70


@pytest.mark.parametrize("name", IDS)
def test_formulas_are_balanced(name):
    formula = MISCONCEPTIONS[name].formula
    bare = formula.replace(r"\{", "").replace(r"\}", "")

    depth = 0
    for sign in bare:
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0
    assert len(re.findall(r"\\left\b", formula)) == len(re.findall(r"\\right\b", formula))
    assert re.findall(r"\\begin\{(\w+)\}", formula) == re.findall(r"\\end\{(\w+)\}", formula)
    assert "$" not in formula


@pytest.mark.parametrize("name", IDS)
def test_each_changes_its_own_step_and_none_before(name):
    problem, one = case_of(name), MISCONCEPTIONS[name]
    worked = work(problem)

    assert changed(problem, worked, one.ways[0])[0] == one.step
    for way in one.ways:
        found = changed(problem, worked, way)
        assert not found or found[0] == next(iter(way))
        assert set(way) <= set(STEPS)


@pytest.mark.parametrize("name", IDS)
def test_every_way_can_be_gone(name):
    """A way that leads nowhere in any case would be dead weight."""
    worked = {case: work(problem) for case, problem in CASES.items()}

    for way in MISCONCEPTIONS[name].ways:
        # Sums of products of quarters have few decimals: there is nothing to cut off beyond the fourth.
        few = name == "round.truncated" and next(iter(way)) in ("query", "key", "value", "raw_scores")
        assert few or any(changed(problem, worked[case], way) for case, problem in CASES.items())


@pytest.mark.parametrize("name", IDS)
def test_whatever_the_problem_there_are_numbers_or_nothing(name):
    """`work` leaves out what cannot be made; what can be is never NaN."""
    for problem in CASES.values():
        for way in MISCONCEPTIONS[name].ways:
            for step, array in work(problem, replaced=way).items():
                assert not np.isnan(array).any(), step


# ---- what each leads to, by formulas of one head (or of two, where heads matter), from nothing but X and the matrices


def of(problem: Problem) -> SimpleNamespace:
    """Every intermediate, by other code than the tutor's; one head."""
    x, wq, wk, wv = problem.inputs, problem.query, problem.key, problem.value
    q, k, v = x @ wq, x @ wk, x @ wv
    if problem.query_bias is not None:
        q, k, v = q + problem.query_bias, k + problem.key_bias, v + problem.value_bias
    s = np.einsum("ic,jc->ij", q, k)
    t = s / len(wq[0]) ** 0.5
    keep = np.ones_like(s, dtype=bool) if problem.attn_mask is None else problem.attn_mask
    if problem.is_causal:
        keep = keep & (np.arange(len(x))[:, None] >= np.arange(len(x)))
    a = soft(np.where(keep, t, -np.inf))
    n, d = x.shape
    return SimpleNamespace(
        x=x, wq=wq, wk=wk, wv=wv, q=q, k=k, v=v, s=s, t=t, keep=keep, a=a, o=a @ v, n=n, d=d, dk=len(wq[0])
    )


def soft(scores: np.ndarray) -> np.ndarray:
    exp = np.exp(scores)
    total = exp.sum(axis=1)
    total[total == 0] = 1
    return np.diag(1 / total) @ exp


def flipped(q: np.ndarray) -> np.ndarray:
    out = q.copy()
    at = max(range(len(q[0])), key=lambda column: abs(q[0, column]))
    out[0, at] = -out[0, at]
    return out


def first_of_row(a: np.ndarray) -> np.ndarray:
    return np.array([[float(j == list(row).index(max(row))) for j in range(len(row))] for row in a])


def masked_as(r: SimpleNamespace, number: float) -> np.ndarray:
    return np.array([[r.t[i, j] if r.keep[i, j] else number for j in range(r.n)] for i in range(r.n)])


def below(n: int) -> np.ndarray:
    return np.tril(np.ones((n, n), dtype=bool), -1)


INF = np.inf

EXPECTED = {
    "proj.transposed": ("query", lambda r: r.x @ np.swapaxes(r.wq, 0, 1)),
    "proj.wx": ("query", lambda r: r.wq @ r.x),
    "proj.swap_qk": ("query", lambda r: r.k),
    "proj.swap_kv": ("key", lambda r: r.v),
    "proj.swap_qv": ("query", lambda r: r.v),
    "proj.none": ("query", lambda r: r.x),
    "proj.no_bias": ("query", lambda r: r.x @ r.wq),
    "proj.cell_slip": ("query", lambda r: flipped(r.q)),
    "score.qtk": ("raw_scores", lambda r: np.einsum("ia,ib->ab", r.q, r.k)),
    "score.kqt": ("raw_scores", lambda r: np.einsum("ic,jc->ij", r.k, r.q)),
    "score.qqt": ("raw_scores", lambda r: np.einsum("ic,jc->ij", r.q, r.q)),
    "score.kkt": ("raw_scores", lambda r: np.einsum("ic,jc->ij", r.k, r.k)),
    "score.qvt": ("raw_scores", lambda r: np.einsum("ic,jc->ij", r.q, r.v)),
    "score.elementwise": ("raw_scores", lambda r: np.multiply(r.q, r.k)),
    "score.no_transpose": ("raw_scores", lambda r: np.einsum("ic,cj->ij", r.q, r.k)),
    "score.cosine": (
        "raw_scores",
        lambda r: r.s / np.outer(np.linalg.norm(r.q, axis=1), np.linalg.norm(r.k, axis=1)),
    ),
    "scale.none": ("scaled_scores", lambda r: r.s),
    "scale.dk": ("scaled_scores", lambda r: r.s / 3),
    "scale.sqrt_dmodel": ("scaled_scores", lambda r: r.s / 5**0.5),
    "scale.sqrt_n": ("scaled_scores", lambda r: r.s / 2),
    "scale.n": ("scaled_scores", lambda r: r.s / 4),
    "scale.multiplied": ("scaled_scores", lambda r: r.s * 3**0.5),
    "scale.dmodel": ("scaled_scores", lambda r: r.s / 5),
    "scale.after_softmax": ("weights", lambda r: soft(r.s) / 3**0.5),
    "mask.ignored": ("masked_scores", lambda r: r.t),
    "mask.after_softmax": ("weights", lambda r: soft(r.t) * r.keep),
    "mask.zero_score": ("masked_scores", lambda r: masked_as(r, 0)),
    "mask.reversed": ("masked_scores", lambda r: np.where(below(r.n), -INF, r.t)),
    "mask.strict": ("masked_scores", lambda r: np.where(below(r.n), r.t, -INF)),
    "mask.padding_rows": ("masked_scores", lambda r: np.where(r.keep.T, r.t, -INF)),
    "mask.small_number": ("masked_scores", lambda r: masked_as(r, -1)),
    "softmax.columns": ("weights", lambda r: soft(r.t.T).T),
    "softmax.all": ("weights", lambda r: np.exp(r.t) / sum(np.exp(r.t).flat)),
    "softmax.skipped": ("weights", lambda r: r.t),
    "softmax.linear": ("weights", lambda r: r.t / np.repeat(r.t.sum(axis=1), r.n).reshape(r.n, r.n)),
    "softmax.no_denominator": ("weights", lambda r: np.exp(r.t)),
    "softmax.hardmax": ("weights", lambda r: first_of_row(r.t)),
    "softmax.denominator_excludes_self": ("weights", lambda r: r.a / (1 - r.a)),  # odds, by their other formula
    "softmax.sigmoid": ("weights", lambda r: (1 + np.tanh(r.t / 2)) / 2),
    "softmax.max_subtracted_shown_as_exp": ("weights", lambda r: r.a / np.max(r.a, axis=1)[:, None]),
    "softmax.row_sum_of_rounded": (
        "softmax_sum",
        lambda r: np.array([[sum(round(weight / max(row), 1) for weight in row)] for row in r.a]),
    ),
    "softmax.base2": ("weights", lambda r: soft(r.t * np.log(2))),
    "softmax.base10": ("weights", lambda r: soft(r.t * np.log(10))),
    "out.keys": ("outputs", lambda r: r.a @ r.k),
    "out.queries": ("outputs", lambda r: r.a @ r.q),
    "out.x": ("outputs", lambda r: r.a @ r.x),
    "out.transposed_weights": ("outputs", lambda r: np.einsum("ji,jc->ic", r.a, r.v)),
    "out.va": ("outputs", lambda r: r.v @ r.a),
    "out.mean": ("outputs", lambda r: np.tile(sum(r.v) / 4, (4, 1))),
    "out.top1": ("outputs", lambda r: np.array([r.v[list(row).index(max(row))] for row in r.a])),
    "out.token_dropped": ("outputs", lambda r: r.a[:, :3] @ r.v[:3]),
    "out.not_summed": (
        "outputs",
        lambda r: np.array([[[r.a[i, j] * c for c in r.v[j]] for j in range(r.n)] for i in range(r.n)]),
    ),
    "out.wrong_row": ("outputs", lambda r: r.o[[3, 0, 1, 2]]),
    "out.residual_added": ("outputs", lambda r: r.a @ r.v + r.x),
    "round.early": ("scaled_scores", lambda r: np.array([[round(t, 1) for t in row] for row in r.t])),
    "round.truncated": ("weights", lambda r: np.floor(r.a)),
    "copy.row_col": ("raw_scores", lambda r: r.s.T),
}
"""What each leads to, the usual way, at the first step that tells."""


@pytest.mark.parametrize("name", EXPECTED)
def test_each_leads_to_what_its_formula_says(name):
    problem = case_of(name)
    step, formula = EXPECTED[name]

    worked = work(problem, replaced=MISCONCEPTIONS[name].ways[0], only=(step,))

    expected = formula(of(problem))
    np.testing.assert_allclose(shown(problem, step, worked[step]), expected, rtol=1e-9, atol=1e-12)


def test_what_heads_lead_to():
    """Two heads of two columns, cut by hand."""
    problem = CASES["two heads"]
    x, n = problem.inputs, problem.n
    past = np.tril(np.ones((n, n)))

    def head(columns):
        q, k, v = (x @ matrix[:, columns] for matrix in (problem.query, problem.key, problem.value))
        exp = np.exp(q @ k.T / 2**0.5) * past
        return exp / exp.sum(axis=1, keepdims=True) @ v

    first, second = head([0, 1]), head([2, 3])
    np.testing.assert_allclose(work(problem)["outputs"], np.hstack([first, second]))

    def outputs(name):
        return work(problem, replaced=MISCONCEPTIONS[name].ways[0])["outputs"]

    np.testing.assert_allclose(outputs("heads.averaged"), (first + second) / 2)
    np.testing.assert_allclose(outputs("heads.interleaved"), np.hstack([head([0, 2]), head([1, 3])]))
    read = [*first.flat, *second.flat]
    np.testing.assert_allclose(outputs("heads.merge_order"), [read[4 * i : 4 * i + 4] for i in range(4)])
    scaled = work(problem, replaced=MISCONCEPTIONS["scale.total_width"].ways[0])["scaled_scores"]
    np.testing.assert_allclose(scaled, work(problem)["raw_scores"] / 2)


OTHER_WAYS = {
    "minus a hundred": ("mask.small_number", 2, "masked_scores", lambda r: masked_as(r, -100)),
    "exponentials over sums of columns": (
        "softmax.columns", 1, "weights", lambda r: (e := r.a / r.a.max(axis=1)[:, None]) / e.sum(axis=0),
    ),
    "exponentials over the sum of all": (
        "softmax.all", 1, "weights", lambda r: (e := r.a / r.a.max(axis=1)[:, None]) / e.sum(),
    ),
    "the token itself is left out": (
        "out.token_dropped", 1, "outputs", lambda r: r.o - np.diag(r.a)[:, None] * r.v,
    ),
    "pairs below one another": (
        "out.not_summed", 1, "outputs", lambda r: np.array([r.a[i, j] * r.v[j] for i in range(4) for j in range(4)]),
    ),
    "neighbours exchanged": ("out.wrong_row", 15, "outputs", lambda r: r.o[[1, 0, 2, 3]]),
    "upside down": ("out.wrong_row", -1, "outputs", lambda r: r.o[[3, 2, 1, 0]]),
    "rounded between two steps": ("round.early", 1, "weights", lambda r: soft(np.round(r.t, 1))),
    "cut after two places": ("round.truncated", 2, "weights", lambda r: np.floor(r.a * 100) / 100),
    "weights on their side": ("copy.row_col", 2, "weights", lambda r: r.a.T),
}  # fmt: skip


@pytest.mark.parametrize("which", OTHER_WAYS)
def test_other_ways_lead_to_what_they_say(which):
    name, at, step, formula = OTHER_WAYS[which]
    problem = case_of(name)

    worked = work(problem, replaced=MISCONCEPTIONS[name].ways[at])

    np.testing.assert_allclose(shown(problem, step, worked[step]), formula(of(problem)), rtol=1e-9, atol=1e-12)


def test_the_mean_of_what_may_be_seen():
    problem = CASES["causal"]

    outputs = work(problem, replaced=MISCONCEPTIONS["out.mean"].ways[1])["outputs"]

    value = work(problem)["value"]
    np.testing.assert_allclose(outputs, [value[: i + 1].mean(axis=0) for i in range(4)])


def test_a_mask_of_its_own_is_inverted_and_one_over_rows_keeps_causality():
    problem, both = CASES["masked"], CASES["causal and masked"]
    scores = work(problem)["scaled_scores"][0]

    inverted = work(problem, replaced=MISCONCEPTIONS["mask.reversed"].ways[0])["masked_scores"][0]
    over_rows = work(both, replaced=MISCONCEPTIONS["mask.padding_rows"].ways[0])["masked_scores"][0]
    mirrored = work(both, replaced=MISCONCEPTIONS["mask.reversed"].ways[0])["masked_scores"][0]

    np.testing.assert_array_equal(inverted, np.where(MASK, -INF, scores))
    np.testing.assert_array_equal(over_rows, np.where(MASK.T & np.tri(4, dtype=bool), scores, -INF))
    np.testing.assert_array_equal(mirrored, np.where(MASK & ~below(4), scores, -INF))


# ---- what problems cannot tell apart


def final(problem: Problem, name: str, step: str = "outputs") -> np.ndarray:
    return work(problem, replaced=MISCONCEPTIONS[name].ways[0])[step]


def test_keys_of_one_column_need_no_scale():
    problem = drawn(k=1)

    for name in ("scale.none", "scale.dk", "scale.multiplied"):
        np.testing.assert_array_equal(final(problem, name, "scaled_scores"), work(problem)["scaled_scores"])


@pytest.mark.parametrize(
    ("shape", "one", "other"),
    [
        ({"d": 4, "k": 2}, "scale.dk", "scale.sqrt_dmodel"),
        ({"d": 3, "k": 3}, "scale.dk", "scale.dmodel"),
        ({"n": 3, "k": 3}, "scale.dk", "scale.n"),
        ({"n": 5, "d": 5}, "scale.sqrt_dmodel", "scale.sqrt_n"),
        ({"n": 5, "d": 5}, "scale.dmodel", "scale.n"),
        ({"d": 4, "k": 2, "heads": 2}, "scale.sqrt_dmodel", "scale.total_width"),
    ],
)
def test_some_shapes_make_two_scales_one(shape, one, other):
    problem = drawn(**shape)

    np.testing.assert_allclose(final(problem, one), final(problem, other), rtol=1e-12)
    assert other in MISCONCEPTIONS[one].twins
    shape = {"d": 5, "k": 3, "n": 4} | {name: shape[name] for name in shape if name == "heads"}
    assert not np.allclose(final(drawn(**shape), one), final(drawn(**shape), other))


def test_the_usual_square_of_two_cannot_tell_a_wrong_scale():
    """Why such an exercise is not the one to begin with: root of two, by whatever is counted."""
    problem = drawn(n=2, d=2, k=2, v=2)

    for name in ("scale.sqrt_dmodel", "scale.sqrt_n"):
        np.testing.assert_array_equal(final(problem, name), work(problem)["outputs"])


def test_exchanged_matrices_and_the_product_in_the_wrong_order_are_one_from_the_scores_on():
    for problem in CASES.values():
        for step in list(steps_of(problem))[3:]:
            np.testing.assert_allclose(final(problem, "score.kqt", step), final(problem, "proj.swap_qk", step))
    assert not np.allclose(final(CASES["recommended"], "proj.swap_qk", "query"), work(CASES["recommended"])["query"])


def test_powers_of_two_look_like_the_forgotten_root_at_two_columns():
    """2^(s/√2) = e^(0.490 s), which is nearly e^(s/2); at three columns they are 0.400 and 0.333."""
    near, far = drawn(k=2, seed=1), drawn(k=3, seed=1)

    def apart(problem):
        return np.abs(final(problem, "softmax.base2", "weights") - final(problem, "scale.dk", "weights")).max()

    assert apart(near) < 0.01 < apart(far)


@pytest.mark.parametrize(
    ("one", "other", "step"),
    [
        ("softmax.hardmax", "out.top1", "outputs"),
        ("score.qvt", "proj.swap_kv", "weights"),
        ("score.kqt", "copy.row_col", "outputs"),
    ],
)
def test_other_twins_are_alike_where_they_say(one, other, step):
    np.testing.assert_allclose(final(drawn(), one, step), final(drawn(), other, step), rtol=1e-12)
    assert other in MISCONCEPTIONS[one].twins


def test_shares_by_column_are_read_by_column_where_scores_are_symmetric():
    problem = drawn()
    problem = replace(problem, key=problem.query)

    by_column = work(problem, replaced=MISCONCEPTIONS["softmax.columns"].ways[0])

    np.testing.assert_allclose(by_column["weights"][0], work(problem)["weights"][0].T)
    np.testing.assert_allclose(by_column["outputs"], final(problem, "out.transposed_weights"))


def test_wrong_shapes_are_those_of_the_mistake():
    """Shape is what tells first; it is the mistake's own and no accident."""
    problem = drawn()

    assert final(problem, "score.qtk", "raw_scores").shape == (1, 3, 3)
    assert final(problem, "score.elementwise", "raw_scores").shape == (1, 4, 3)
    assert final(problem, "out.not_summed").shape == (4, 4, 3)
    assert shape_of(problem, "raw_scores") == (4, 4)


def test_only_what_costs_nothing_warns():
    assert {one.id for one in MISCONCEPTIONS.values() if one.warns} == {"round.early", "softmax.row_sum_of_rounded"}
    assert {one.id for one in MISCONCEPTIONS.values() if one.slip} == {
        "proj.cell_slip", "out.wrong_row", "round.truncated", "copy.row_col",
    }  # fmt: skip
