"""Queries made with the values' matrix and values with the queries'."""

from models.types import F64
from service.tutor.arithmetic import right
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import Stuck


def _same_width(problem: Problem, rows: F64) -> F64:
    if problem.head_dim != problem.value_dim:
        raise Stuck
    return rows


MISCONCEPTION = Misconception(
    id="proj.swap_qv",
    title="The matrices of queries and values changed places",
    formula=r"Q = X W_V, \quad V = X W_Q",
    explanation=(
        "A query is a question and is used up by comparing; a value is the content that is passed on."
        " Exchanged, the content asks and the question is passed on."
    ),
    remedy=(
        "Take the matrix marked Q for what is compared with the keys, and the one marked V for what is mixed"
        " in the end."
    ),
    ways=(
        {
            "query": lambda problem, values: _same_width(problem, right("value", problem, values)),
            "value": lambda problem, values: _same_width(problem, right("query", problem, values)),
        },
    ),
    twins={},
)
