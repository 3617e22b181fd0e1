"""Keys made with the values' matrix and values with the keys'."""

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
    id="proj.swap_kv",
    title="The matrices of keys and values changed places",
    formula=r"K = X W_V, \quad V = X W_K",
    explanation=(
        "Keys decide how much attention a token gets, values are what it hands over. Exchanged, tokens are"
        " found by what they say and say what they were to be found by."
    ),
    remedy=(
        "Take each matrix for its own job: the one marked K for comparing with queries, the one marked V for"
        " what is mixed in the end."
    ),
    ways=(
        {
            "key": lambda problem, values: _same_width(problem, right("value", problem, values)),
            "value": lambda problem, values: _same_width(problem, right("key", problem, values)),
        },
    ),
    twins={
        "score.qvt": ("with values in the place of keys the scores are the same; the keys and the outputs tell"),
    },
)
