"""Weighted values listed and not summed."""

from models.types import F64
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values


def _listed(problem: Problem, values: Values) -> F64:
    each = values["weighted_values"]  # (h, n, n, value_dim)
    return each.transpose(1, 2, 0, 3).reshape(problem.n, problem.n, -1)


def _below_one_another(listed: F64) -> F64:
    return listed.reshape(len(listed) ** 2, -1)


MISCONCEPTION = Misconception(
    id="out.not_summed",
    title="The weighted values were not added up",
    formula=r"O_i = \left( A_{i1} V_1, A_{i2} V_2, \ldots \right)",
    explanation=(
        "The products are right, but they still stand side by side, one for every pair of tokens. Each token"
        " needs a single row: what all the others, together, have given it."
    ),
    remedy="For each token, add its weighted values up, column by column, until one row is left.",
    ways=({"outputs": _listed}, {"outputs": lambda problem, values: _below_one_another(_listed(problem, values))}),
    twins={},
)
