"""Heads' numbers written out in a row and cut anew, not put side by side."""

from models.types import F64
from service.tutor.arithmetic import several
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Values


def _outputs(problem: Problem, values: Values) -> F64:
    several(problem)
    of_heads: F64 = values["weighted_values"].sum(axis=-2)  # (h, n, value_dim)
    return of_heads.reshape(problem.n, -1)


MISCONCEPTION = Misconception(
    id="heads.merge_order",
    title="The heads were merged in the wrong order",
    formula=r"O = \operatorname{reshape}\left( O^{(1)}; O^{(2)}; \ldots \right)",
    explanation=(
        "The heads' tables were read off one after the other and refilled into rows, so that one row holds"
        " numbers of several tokens. Every row belongs to one token."
    ),
    remedy=("Stay in the row of a token: first what the first head has for it, then beside it what the second has."),
    ways=({"outputs": _outputs},),
    twins={},
)
