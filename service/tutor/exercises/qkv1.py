"""The generator `qkv/1`: whole numbers −1, 0 and 1, drawn so that mistakes show.

What it makes of given terms never changes; whatever is to be made otherwise is another generator, beside this one.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from models.types import F64
from service.tutor.chance import Chance
from service.tutor.exercise import Exercise, Terms
from service.tutor.exercises.levels import LEVELS
from service.tutor.exercises.simulation import RIGHT, neighbours
from service.tutor.problem import Problem
from service.tutor.steps import last_scores, work

NAME = "qkv/1"

MOST_WEIGHT = 0.95
"""A row whose largest weight is more says much the same as one that picks its largest score."""

LEAST_ROW_SUM = 0.2
"""Scores of a row that add up to less in size, divided by their sum, are not numbers anybody would hand in."""

DRAWS, EXAMINED = 60, 8
"""Drawings from a seed of which the best are looked for by those rules, and of which so many are then tried out."""

MANY_NUMBERS = 200
"""Numbers of a problem from which a quarter of that is done: nobody works such by hand, and it would take long."""

SEPARATES = frozenset({
    "proj.transposed", "proj.wx", "proj.swap_qk", "proj.swap_qv", "proj.swap_kv", "proj.none", "proj.no_bias",
    "proj.cell_slip", "score.qtk", "score.kqt", "score.qqt", "score.kkt", "score.qvt", "score.elementwise",
    "score.no_transpose", "score.cosine", "scale.none", "scale.dk", "scale.sqrt_dmodel", "scale.sqrt_n", "scale.n",
    "scale.multiplied", "scale.dmodel", "scale.total_width", "scale.after_softmax", "mask.ignored",
    "mask.after_softmax", "mask.zero_score", "mask.reversed", "mask.strict", "mask.padding_rows", "mask.small_number",
    "softmax.base2", "softmax.base10", "softmax.columns", "softmax.all", "softmax.skipped", "softmax.linear",
    "softmax.no_denominator", "softmax.hardmax", "softmax.denominator_excludes_self", "softmax.sigmoid",
    "softmax.max_subtracted_shown_as_exp", "softmax.row_sum_of_rounded", "out.keys", "out.queries", "out.x",
    "out.transposed_weights", "out.va", "out.mean", "out.top1", "out.token_dropped", "out.not_summed",
    "out.wrong_row", "out.residual_added", "heads.interleaved", "heads.averaged", "heads.merge_order", "round.early",
    "round.truncated", "copy.row_col",
})  # fmt: skip
"""The misconceptions that drawings are chosen to tell apart. Those that were named later have no say: a seed's exercise
stays what it was."""


def exercise_of(terms: Terms) -> Exercise:
    """The exercise that the terms stand for, always the same."""
    return _shown(terms, problem_of(terms))


def problem_of(terms: Terms) -> Problem:
    """All its numbers, those that are not shown too."""
    sizes = (terms.tokens, terms.embed_dim, terms.head_dim, terms.value_dim, terms.num_heads)
    chance = Chance(f"{NAME} seed {terms.seed} draw {terms.draw} sizes {' '.join(map(str, sizes))}")

    def drawn(rows: int, columns: int) -> F64:
        numbers = [chance.between(-1, 1) for _ in range(rows * columns)]
        return np.array(numbers, np.float64).reshape(rows, columns)

    n, d, k, v, heads = sizes
    return Problem(
        inputs=drawn(n, d),
        query=drawn(d, heads * k),
        key=drawn(d, heads * k),
        value=drawn(d, heads * v),
        num_heads=heads,
        is_causal=terms.is_causal,
    )


def _shown(terms: Terms, problem: Problem) -> Exercise:
    level = LEVELS[terms.level]
    if level.whole:
        return Exercise(terms, problem, {})
    worked = work(problem, only=level.given)
    given = {step: np.round(worked[step], terms.decimals) + 0.0 for step in level.given}  # no −0 is shown
    # What is not shown nobody can have used: arrays that are made of it are not numbers either.
    hidden = Problem(
        inputs=np.full_like(problem.inputs, np.nan),
        query=np.full_like(problem.query, np.nan),
        key=np.full_like(problem.key, np.nan),
        value=np.full_like(problem.value, np.nan),
        num_heads=problem.num_heads,
        is_causal=problem.is_causal,
    )
    return Exercise(terms, hidden, given)


def faults(problem: Problem) -> int:
    """How many rules for good numbers are broken; each lets some mistakes lead to what is right, or to one another."""
    worked = work(problem)
    scores, weights = last_scores(problem, worked), worked["weights"]
    several = np.isfinite(scores).sum(axis=-1) > 1  # a row that sees itself only has nothing to weigh
    hidden = worked["scaled_scores"][np.isneginf(scores)]
    sums = np.where(np.isneginf(scores), 0.0, scores).sum(axis=-1)
    columns = worked["value"]
    return sum(
        (
            len(np.unique(problem.inputs, axis=0)) < problem.n,
            *(_symmetric(matrix) for matrix in (problem.query, problem.key, problem.value)),
            any(_symmetric(head) for head in worked["raw_scores"]),
            not columns.any(axis=0).all(),
            problem.n > 1 and bool((columns == columns[0]).all(axis=0).any()),
            bool((weights.max(axis=-1) >= MOST_WEIGHT)[several].any()),
            bool((hidden == 0).any()),
            bool((np.abs(sums) < LEAST_ROW_SUM).any()),
            not worked["query"].any(axis=1).all(),
            not worked["key"].any(axis=1).all(),
            problem.n > 1 and bool((np.ptp(worked["raw_scores"], axis=-1) == 0).any()),
        )
    )


def _symmetric(matrix: F64) -> bool:
    return matrix.shape[0] == matrix.shape[1] and len(matrix) > 1 and bool((matrix == matrix.T).all())


def chosen(terms: Terms) -> Terms:
    """The same terms with the drawing that shows the most mistakes; of those the first."""
    share = 4 if too_many_numbers(terms) else 1
    best, most, seen = terms, -1, set[str]()
    for number, each in enumerate(islice(_ranked(terms, DRAWS // share), EXAMINED // share)):
        near = neighbours(exercise_of(each), {})
        alone = {one for one in near if one in SEPARATES and not near[one] & (SEPARATES | {RIGHT})}
        seen |= alone
        if len(alone) > most:
            best, most = each, len(alone)
        if number and most == len(seen):
            break  # nothing seen so far is missing
    return best


def too_many_numbers(terms: Terms) -> bool:
    """Whether nobody would work it by hand."""
    columns = terms.num_heads * (2 * terms.head_dim + terms.value_dim)
    return (terms.tokens + columns) * terms.embed_dim >= MANY_NUMBERS


def _ranked(terms: Terms, draws: int) -> Iterator[Terms]:
    """Drawings that break none of the rules, one after the other, and then the others, from the best on."""
    broken: list[tuple[int, Terms]] = []
    for each in (replace(terms, draw=draw) for draw in range(draws)):
        if found := faults(problem_of(each)):
            broken.append((found, each))
        else:
            yield each
    yield from (each for _, each in sorted(broken, key=lambda pair: (pair[0], pair[1].draw)))
