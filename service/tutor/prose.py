"""What a worked problem says in words: one paragraph per step, tied to the very numbers that are shown.

The story is a library's: a query is what somebody comes looking for, a key is the label on a spine, a value is what is
inside; and nobody goes home with one book, but with a blend of all, in proportion to how well the labels fit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cached_property

import numpy as np

from models.types import F64
from service.tutor.problem import Problem
from service.tutor.steps import StepId, Values, last_scores, split

MOST_NAMED = 5
"""Tokens, or products, that a sentence lists before it says how many more there are."""


def number(value: float, decimals: int) -> str:
    """A number for people: so many decimals, a real minus sign, and no minus before nought."""
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    exact = Decimal(f"{value:.12g}")  # so that 8.325, which a float cannot hold, is rounded as on paper
    text = f"{exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP, LARGE):f}"
    return (text if text.strip("-0.") else text.lstrip("-")).replace("-", "−")


LARGE = Context(prec=400)
"""Digits of the largest float64, with decimals."""


def places(values: F64 | np.float64, decimals: int) -> int:
    """The decimals of an array: none where all its numbers are whole."""
    return 0 if np.all(values == np.round(values)) else decimals


def _signed(text: str) -> str:
    """A factor that does not come first: in brackets where it is negative."""
    return f"({text})" if text.startswith("−") else text


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


@dataclass(frozen=True)
class Tale:
    """One row of one head of a worked problem: whom the words follow.

    Attributes:
        problem: what was worked.
        values: its steps, as `steps.work` makes them.
        head, row: the head, and the token that asks.
        decimals: of numbers in the text.
    """

    problem: Problem
    values: Values
    head: int
    row: int
    decimals: int

    @cached_property
    def weights(self) -> F64:
        """The asker's weights, (n,)."""
        weights: F64 = self.values["weights"][self.head, self.row]
        return weights

    @cached_property
    def best(self) -> int:
        """The token it attends to most."""
        return int(self.weights.argmax())

    @cached_property
    def seen(self) -> list[int]:
        """The tokens it may see, the heaviest first."""
        keep = self.problem.keep
        order = np.argsort(-self.weights, kind="stable").tolist()
        return order if keep is None else [column for column in order if keep[self.row, column]]

    def fixed(self, value: float) -> str:
        """A number as it is shown."""
        return number(float(value), self.decimals)

    def whole(self, value: float) -> str:
        """A number as it is shown; without decimals if it is whole."""
        return number(float(value), places(np.float64(value), self.decimals))

    def vector(self, values: F64) -> str:
        """A row of numbers; a long one is cut."""
        decimals = places(values, self.decimals)
        numbers = [number(float(value), decimals) for value in values]
        return f"({', '.join(numbers if len(numbers) <= 6 else [*numbers[:5], '…'])})"

    def name(self, token: int) -> str:
        """A token in quotes."""
        return f"'{self.problem.tokens[token]}'"

    @property
    def asker(self) -> str:
        """The token that asks, in quotes."""
        return self.name(self.row)

    def other(self, token: int) -> str:
        """A token as seen by the asker."""
        return "itself" if token == self.row else self.name(token)

    def equals(self, *values: float) -> str:
        """= where these numbers are shown whole, else ≈."""
        return "=" if all(abs(round(value, self.decimals) - value) < 1e-9 for value in values) else "≈"

    def products(self, left: F64, right: F64) -> str:
        """`a·b + c·d = e` of two rows, (k,) each; what is nought is left out."""
        pairs = [(a, b) for a, b in zip(left, right, strict=True) if a != 0 and b != 0]
        total = float(left @ right)
        if not pairs:
            return "every product is 0, and so is their sum"
        decimals = max(places(left, self.decimals), places(right, self.decimals))
        told = [f"{number(a, decimals)}·{_signed(number(b, decimals))}" for a, b in pairs[:MOST_NAMED]]
        more = " + …" if len(pairs) > MOST_NAMED else ""
        sign = self.equals(total, *(x for pair in pairs for x in pair))
        return f"{' + '.join(told)}{more} {sign} {number(total, decimals)}"


def summary(tale: Tale) -> str:
    """The finding in one sentence."""
    where = f" in head {tale.head + 1}" if tale.problem.num_heads > 1 else ""
    if not tale.seen:
        return f"{tale.asker} may see no token at all{where}, so its output is zero"
    share = tale.fixed(tale.weights[tale.best])
    if len(tale.seen) == 1:
        return f"{tale.asker} sees {tale.other(tale.seen[0])} alone{where}, {share}"
    seen = tale.weights[tale.seen]
    if float(seen.max() - seen.min()) < 1e-9:
        return f"{tale.asker} attends to all {len(tale.seen)} tokens it sees alike{where}, {share} each"
    return f"{tale.asker} attends most to {tale.other(tale.best)}{where}, {share}"


def shares(tale: Tale) -> str:
    """Who gets how much of the asker's attention."""
    told, rest = _told(tale)
    shown = [f"{tale.other(token)} {tale.fixed(tale.weights[token])}" for token in told]
    if not rest:
        return listed(shown)
    return f"{', '.join(shown)}, and {len(rest)} more {tale.fixed(tale.weights[rest].sum())} together"


def _told(tale: Tale) -> tuple[list[int], list[int]]:
    """The tokens that a sentence lists, and those it only counts: many, or such as would be shown as 0.00."""
    seen = [token for token in tale.seen if tale.fixed(tale.weights[token]).strip("0.")][:MOST_NAMED] or tale.seen[:1]
    rest = tale.seen[len(seen) :]
    return (tale.seen, []) if len(rest) == 1 and len(tale.seen) <= MOST_NAMED else (seen, rest)


def _query(tale: Tale) -> str:
    problem = tale.problem
    row = tale.values["query"][tale.row]
    bias = "" if problem.query_bias is None else ", plus the bias"
    text = (
        f"Think of a library. A query is what a token comes looking for. {tale.asker} comes with the question "
        f"{tale.vector(_of_head(tale, 'query')[tale.row])}: its embedding times the matrix W_Q{bias}. "
    )
    if not bias and len(problem.inputs[0]) <= 16:
        text += f"The first number of its row: {tale.products(problem.inputs[tale.row], problem.query[:, 0])}."
    if problem.num_heads > 1:
        text += (
            f" There are {problem.num_heads} heads, each with {problem.head_dim} of the {len(row)} columns and a "
            f"question of its own; what is said here follows head {tale.head + 1}."
        )
    return text.strip()


def _key(tale: Tale) -> str:
    return (
        f"A key is the label on a book's spine: what a token says it is about. {tale.name(tale.best)} is labelled "
        f"{tale.vector(_of_head(tale, 'key')[tale.best])}. Keys are made of the same embeddings as queries, but by a "
        "matrix of their own, W_K: what a token looks for and what it is found by are two things."
    )


def _value(tale: Tale) -> str:
    return (
        f"A value is what is inside the book: what a token hands to whoever reads it. {tale.name(tale.best)} holds "
        f"{tale.vector(_of_head(tale, 'value')[tale.best])}. The label decides how much of it is read; what is read is "
        "the value."
    )


def _raw_scores(tale: Tale) -> str:
    scores = tale.values["raw_scores"][tale.head, tale.row]
    best, worst = int(scores.argmax()), int(scores.argmin())
    query, key = _of_head(tale, "query")[tale.row], _of_head(tale, "key")[best]
    text = (
        f"{tale.asker} holds its question against every label: multiply number by number, and add. With the key of "
        f"{tale.name(best)}: {tale.products(query, key)}"
    )
    if len(scores) == 1:
        return f"{text}."
    if scores[best] == scores[worst]:
        return f"{text}; every other label fits as well."
    return f"{text}, the best match of its row. {tale.name(worst)} fits least, {tale.whole(scores[worst])}."


def _scaled_scores(tale: Tale) -> str:
    problem, at = tale.problem, (tale.head, tale.row, tale.best)
    raw, scaled = tale.values["raw_scores"][at], tale.values["scaled_scores"][at]
    bare = raw * problem.factor
    who = f"{tale.asker} and {tale.name(tale.best)}"
    if problem.scale is None and problem.head_dim == 1:
        text = f"Keys of one number need no scaling: √d_k = √1 = 1, so {who} keep {tale.whole(raw)}."
    elif problem.scale is None:
        root = np.sqrt(problem.head_dim)
        text = (
            f"Sums of {problem.head_dim} products come out about √{problem.head_dim} times as large as one, so every "
            f"score is divided by √d_k = √{problem.head_dim} {tale.equals(root)} {tale.whole(root)}. Else softmax "
            f"would soon read one book and no other. {who}: {tale.whole(raw)} / {tale.whole(root)} "
            f"{tale.equals(raw, root, bare)} {tale.fixed(bare)}."
        )
    else:
        text = (
            f"Every score is multiplied by the scale that was asked for, {problem.factor:g}: the larger it is, the "
            f"more of the reading goes to the best match. {who}: {tale.whole(raw)} · {problem.factor:g} "
            f"{tale.equals(raw, bare)} {tale.fixed(bare)}."
        )
    if problem.attn_bias is not None:
        text += f" Then the bias is added, here {tale.fixed(scaled - bare)}, which makes {tale.fixed(scaled)}."
    return text


def _masked_scores(tale: Tale) -> str:
    problem = tale.problem
    assert problem.keep is not None, "there is such a step only where there is a mask"
    hidden = int((~problem.keep).sum())
    why = "Nobody may read what comes after: a token sees itself and those before it. " if problem.is_causal else ""
    text = (
        f"{why}{hidden} of {problem.keep.size} pairs are hidden, and their scores become −∞: e to the power of that is "
        "0, so a hidden book gets no share at all. "
    )
    if not tale.seen:
        return f"{text}{tale.asker} may see nothing."
    told = [tale.other(token) for token in sorted(tale.seen)]
    return f"{text}{tale.asker} sees {'all' if len(told) == problem.n else listed(told)}."


def _softmax_max(tale: Tale) -> str:
    if not tale.seen:
        return f"{tale.asker} sees nothing, so there is no largest score: 0 is written down instead."
    largest = tale.values["softmax_max"][tale.head, tale.row, 0]
    return (
        f"Softmax is about to raise e to every score. First the largest of each row is noted, for {tale.asker} "
        f"{tale.fixed(largest)}, and taken away from all of the row: no weight changes by that, and no number grows "
        "out of bounds."
    )


def _softmax_exp(tale: Tale) -> str:
    if not tale.seen:
        return f"Every exponential of {tale.asker} is 0: it sees nothing."
    text = (
        f"Exponentials make ratios of differences. The best match of {tale.asker}, {tale.name(tale.best)}, has e⁰ = 1"
    )
    if len(tale.seen) == 1:
        return f"{text}."
    second = tale.seen[1]
    score = last_scores(tale.problem, tale.values)[tale.head, tale.row, second]
    largest = tale.values["softmax_max"][tale.head, tale.row, 0]
    made = tale.values["softmax_exp"][tale.head, tale.row, second]
    return (
        f"{text}; {tale.name(second)} comes next with e to the power of {tale.fixed(score)} − {tale.fixed(largest)}, "
        f"{tale.equals(made)} {tale.fixed(made)}."
    )


def _softmax_sum(tale: Tale) -> str:
    if not tale.seen:
        return f"The exponentials of {tale.asker} add up to 0: there is nothing to share out."
    row = tale.values["softmax_exp"][tale.head, tale.row]
    total = tale.values["softmax_sum"][tale.head, tale.row, 0]
    told = [tale.fixed(row[token]) for token in sorted(tale.seen)]
    terms = " + ".join(told) if len(told) <= 2 * MOST_NAMED else f"{' + '.join(told[:MOST_NAMED])} + …"
    return f"The row of {tale.asker} adds up to {terms} {tale.equals(total, *row)} {tale.fixed(total)}: the whole."


def _weights(tale: Tale) -> str:
    if not tale.seen:
        return f"{tale.asker} has nothing to share out: its row adds up to 0, so all of its weights are set to 0."
    return (
        f"Each exponential over the sum of its row is a share of the whole. {tale.asker} gives {shares(tale)}: "
        "together 1. This is the softness: the best match gets the most, and whoever may be seen gets something."
    )


def _weighted_values(tale: Tale) -> str:
    if not tale.seen:
        return f"{tale.asker} takes nothing from any value."
    weight, value = tale.weights[tale.best], _of_head(tale, "value")[tale.best]
    made = tale.values["weighted_values"][tale.head, tale.row, tale.best]
    return (
        f"Every book is read in proportion to its share. For {tale.asker}, the value of {tale.name(tale.best)} counts "
        f"{tale.fixed(weight)} times: {tale.fixed(weight)}·{tale.vector(value)} "
        f"{tale.equals(weight, *value, *made)} {tale.vector(made)}."
    )


def _outputs(tale: Tale) -> str:
    row = _of_head(tale, "outputs")[tale.row]
    if not tale.seen:
        return f"{tale.asker} saw nothing, so its output is zero: {tale.vector(row)}."
    told, rest = _told(tale)
    shown = [f"{tale.fixed(tale.weights[token])} of {tale.name(token)}" for token in told]
    blend = listed(shown) if not rest else f"{', '.join(shown)} and a little of {len(rest)} more"
    end = "" if len(tale.seen) == 1 else " No single book went over the counter, but a blend of all of them."
    return f"What {tale.asker} takes home is {blend}, added up: {tale.vector(row)}.{end}"


def _of_head(tale: Tale, step: str) -> F64:
    """The columns of the head that is told of, (n, columns)."""
    columns: F64 = split(tale.values[step], tale.problem.num_heads)[tale.head]
    return columns


WORDS: dict[StepId, Callable[[Tale], str]] = {
    "query": _query,
    "key": _key,
    "value": _value,
    "raw_scores": _raw_scores,
    "scaled_scores": _scaled_scores,
    "masked_scores": _masked_scores,
    "softmax_max": _softmax_max,
    "softmax_exp": _softmax_exp,
    "softmax_sum": _softmax_sum,
    "weights": _weights,
    "weighted_values": _weighted_values,
    "outputs": _outputs,
}
"""What is said of a step."""
