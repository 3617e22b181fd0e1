"""A worked problem as something to be shown: every step with its numbers, what it is made of, and what it says."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.errors import NumericOverflow
from models.masks import fully_masked_rows
from models.types import F64
from service.errors import InvalidOption
from service.tutor.exact import Cells, exact
from service.tutor.problem import MOST_WIDTH, Problem
from service.tutor.prose import WORDS, Tale, shares, summary
from service.tutor.steps import STEPS, StepId, Values, shape_of, shown, split, steps_of, work

DECIMALS = 2
"""Of numbers in words, tables and pictures, unless more are asked for."""


@dataclass(frozen=True, slots=True)
class Operand:
    """What a step is computed from.

    Attributes:
        name: a step's id, or a field of the request such as `projections.query`.
        symbol: LaTeX.
        shape: as it is shown; () for a number.
    """

    name: str
    symbol: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ExplainedStep:
    """One step. Arrays are as they are shown: without the axis of heads where there is one head.

    Attributes:
        id, title, symbol, formula: see `steps.Step`; the formula is that of this problem, with its bias or scale.
        operands: what it is computed from.
        values: its array; -inf where a score is masked.
        exact: a `Surd` per cell, where there are any.
        terms: the products of each cell's sum, values.shape + (terms, 3): two factors and their product. None where
            the step is no sum, or one of more products than anybody reads.
        row_labels, column_labels: of the last two axes of `values`.
        text: the step in words.
    """

    id: StepId
    title: str
    symbol: str
    formula: str
    operands: tuple[Operand, ...]
    values: F64
    exact: Cells | None
    terms: F64 | None
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Explanation:
    """A worked problem, h heads, n tokens.

    Attributes:
        problem: what was worked.
        model: name and version of the model, or None for the caller's own matrices.
        tale: whom the words and pictures follow, and the decimals of both.
        steps: in the order of the recipe.
        place: where in a larger model it happens; empty if nowhere.
        notes: what a reader should know beside it.
    """

    problem: Problem
    model: tuple[str, str] | None
    tale: Tale
    steps: tuple[ExplainedStep, ...]
    place: str
    notes: tuple[str, ...]

    @property
    def values(self) -> Values:
        """The steps' arrays with their axis of heads, as `steps.work` makes them."""
        return self.tale.values

    @cached_property
    def summary(self) -> str:
        """The finding in one sentence, without a full stop."""
        return summary(self.tale)

    @cached_property
    def alt(self) -> str:
        """What a picture of the weights shows, for who does not see it."""
        tale = self.tale
        where = self.where.replace("Head", "head")
        text = f"Attention weights of {self.problem.n} tokens{f', {where}' if where else ''}. {self.summary}."
        if len(tale.seen) > 1:
            text += f" Its shares: {shares(tale)}."
        if self.problem.keep is not None and (hidden := int((~self.problem.keep).sum())):
            text += f" {hidden} of {self.problem.keep.size} pairs are masked."
        return text

    @property
    def where(self) -> str:
        """Where the words and pictures are, in a problem of several heads or a larger model; empty otherwise."""
        heads = self.problem.num_heads
        return f"Head {self.tale.head + 1} of {heads}" if heads > 1 else self.place

    @property
    def fully_masked_rows(self) -> list[int]:
        """Rows that see nothing."""
        return fully_masked_rows(self.problem.keep)

    @property
    def row_sums(self) -> F64:
        """What the weights of each row add up to, (n,) or (h, n)."""
        sums: F64 = shown(self.problem, "softmax_sum", self.values["weights"].sum(axis=-1))
        return sums

    def step(self, name: StepId) -> ExplainedStep:
        """The step called so."""
        return next(step for step in self.steps if step.id == name)


def explain(
    problem: Problem,
    *,
    model: tuple[str, str] | None = None,
    head: int | None = None,
    focus: int | None = None,
    decimals: int = DECIMALS,
    place: str = "",
    notes: tuple[str, ...] = (),
) -> Explanation:
    """Work a problem and say what happens in it.

    Args:
        problem: what to work.
        model: whose numbers they are.
        head: the head that words and pictures follow; None for the most telling one.
        focus: the token they follow, likewise.
        decimals: of numbers in words and pictures.
        place: see `Explanation`.
        notes: what else to tell a reader.

    Raises:
        NumericOverflow: if a number grows beyond float64.
        InvalidOption: if there is no such head or token.
    """
    values = work(problem)
    for name, array in values.items():
        if np.isnan(array).any() or np.isposinf(array).any() or (name != "masked_scores" and np.isneginf(array).any()):
            raise NumericOverflow.at(
                "/inputs", f"the step {name} grows beyond what a float64 holds; give smaller numbers"
            )
    head, row = _focus(problem, values, head, focus)
    tale = Tale(problem, values, head, row, decimals)
    forms = exact(problem, values)
    steps = []
    for name in steps_of(problem):
        step = STEPS[name]
        terms = _terms(problem, values, step.id)
        form = forms.get(name)
        headless = form is not None and problem.num_heads == 1 and name not in ("query", "key", "value")
        steps.append(
            ExplainedStep(
                step.id,
                step.title,
                step.symbol,
                _formula(problem, step.id),
                _operands(problem, step.id),
                shown(problem, name, values[name]),
                form[0] if form is not None and headless else form,
                None if terms is None else shown(problem, name, terms),
                problem.tokens,
                _columns(problem, step.id),
                WORDS[step.id](tale),
            )
        )
    if problem.embed_dim > MOST_WIDTH or problem.head_dim > MOST_WIDTH:
        long = f"The products of sums of more than {MOST_WIDTH + 1} terms are left out"
        wide = f", and so are embeddings of more than {MOST_WIDTH} numbers and the matrices that they meet"
        notes = (*notes, f"{long}{wide if problem.embed_dim > MOST_WIDTH else ''}.")
    return Explanation(problem, model, tale, tuple(steps), place, notes)


def _focus(problem: Problem, values: Values, head: int | None, row: int | None) -> tuple[int, int]:
    """The head and the row to tell of: of those that may be chosen, the one that prefers another token the most.

    What counts is how far its weight is above an even share: who sees one other token only says little by reading it.
    """
    for name, given, count in (("head", head, problem.num_heads), ("focus", row, problem.n)):
        if given is not None and not 0 <= given < count:
            raise InvalidOption.at(f"/{name}", f"expected a number from 0 to {count - 1}, got {given}")
    others = np.where(np.eye(problem.n, dtype=bool), -1.0, values["weights"])  # (h, n, n)
    seen = problem.n if problem.keep is None else np.maximum(problem.keep.sum(axis=-1), 1)
    best = others.max(axis=-1) - 1 / seen  # (h, n)
    if head is not None:
        best[np.arange(problem.num_heads) != head] = -4.0
    if row is not None:
        best[:, np.arange(problem.n) != row] = -4.0
    found = np.unravel_index(int(np.argmax(np.round(best, 12))), best.shape)
    return int(found[0]), int(found[1])


def _terms(problem: Problem, values: Values, step: StepId) -> F64 | None:
    """Factors and products of each cell's sum, with the axis of heads; see `ExplainedStep`."""
    heads = problem.num_heads
    match step:
        case "query" | "key" | "value":
            matrix, bias = getattr(problem, step), getattr(problem, f"{step}_bias")
            left, right = problem.inputs[:, None, :], matrix.T[None]  # (n, 1, d), (1, columns, d)
            if bias is not None:
                left = np.concatenate([left, np.ones((problem.n, 1, 1))], axis=-1)
                right = np.concatenate([right, bias[None, :, None]], axis=-1)
        case "raw_scores":
            left, right = split(values["query"], heads)[:, :, None], split(values["key"], heads)[:, None]
        case "softmax_sum":
            left = values["softmax_exp"][:, :, None]  # (h, n, 1, n)
            right = np.ones_like(left)
        case "outputs":
            each = values["weights"][:, :, None, :]  # (h, n, 1, n)
            mixed = split(values["value"], heads).swapaxes(-1, -2)[:, None]  # (h, 1, v, n)
            shape = (heads, problem.n, problem.value_dim, problem.n)
            left, right = (
                np.broadcast_to(part, shape).swapaxes(0, 1).reshape(problem.n, -1, problem.n) for part in (each, mixed)
            )
        case _:
            return None
    left, right = np.broadcast_arrays(left, right)
    if left.shape[-1] > MOST_WIDTH + 1:
        return None
    return np.stack([left, right, left * right], axis=-1)


def _formula(problem: Problem, step: StepId) -> str:
    """A step's formula with what this problem has beside the plain recipe."""
    formula = STEPS[step].formula
    if step in ("query", "key", "value") and getattr(problem, f"{step}_bias") is not None:
        return f"{formula} + b_{STEPS[step].symbol}"
    if step == "scaled_scores":
        plain = formula if problem.scale is None else rf"T = {problem.factor:g} \cdot S"
        return plain if problem.attn_bias is None else f"{plain} + B"
    if problem.masked and step in ("softmax_max", "softmax_exp"):
        return formula.replace("T_{ij}", "M_{ij}")
    return formula


def _operands(problem: Problem, step: StepId) -> tuple[Operand, ...]:
    """What a step of this problem is computed from."""

    def made(*names: StepId) -> tuple[Operand, ...]:
        return tuple(Operand(name, STEPS[name].symbol, shape_of(problem, name)) for name in names)

    scores: StepId = "masked_scores" if problem.masked else "scaled_scores"
    n, d = problem.inputs.shape
    match step:
        case "query" | "key" | "value":
            matrix, bias = getattr(problem, step), getattr(problem, f"{step}_bias")
            letter = STEPS[step].symbol
            found = (Operand("inputs", "X", (n, d)), Operand(f"projections.{step}", f"W_{letter}", matrix.shape))
            return found if bias is None else (*found, Operand(f"{step}_bias", f"b_{letter}", bias.shape))
        case "raw_scores":
            return made("query", "key")
        case "scaled_scores":
            factor = Operand("head_dim", "d_k", ()) if problem.scale is None else Operand("scale", r"\text{scale}", ())
            bias = problem.attn_bias
            added = () if bias is None else (Operand("attn_bias", "B", bias.shape),)
            return (*made("raw_scores"), factor, *added)
        case "masked_scores":
            return (*made("scaled_scores"), Operand("attn_mask", r"\text{mask}", (n, n)))
        case "softmax_max":
            return made(scores)
        case "softmax_exp":
            return made(scores, "softmax_max")
        case "softmax_sum":
            return made("softmax_exp")
        case "weights":
            return made("softmax_exp", "softmax_sum")
        case "weighted_values" | "outputs":
            return made("weights", "value")


def _columns(problem: Problem, step: StepId) -> tuple[str, ...]:
    """Labels of the last axis of a step's array."""
    letters = {"query": "q", "key": "k", "value": "v", "outputs": "o", "weighted_values": "v"}
    if step == "softmax_max":
        return ("largest",)
    if step == "softmax_sum":
        return ("sum",)
    if step not in letters:
        return problem.tokens
    width = shape_of(problem, step)[-1]
    each = width if step == "weighted_values" else width // problem.num_heads
    names = tuple(f"{letters[step]}{i % each + 1}" for i in range(width))
    if each == width:
        return names
    return tuple(f"head {i // each + 1}: {name}" for i, name in enumerate(names))
