"""Every h-th column to a head, instead of neighbours."""

from models.types import F64
from service.tutor.arithmetic import mixed, several
from service.tutor.misconceptions.base import Misconception
from service.tutor.problem import Problem
from service.tutor.steps import StepId, Values


def _dealt(problem: Problem, values: Values, step: StepId) -> F64:
    return values[step].reshape(problem.n, -1, several(problem)).transpose(2, 0, 1)  # (h, n, columns)


def _raw_scores(problem: Problem, values: Values) -> F64:
    scores: F64 = _dealt(problem, values, "query") @ _dealt(problem, values, "key").swapaxes(-1, -2)
    return scores


def _weighted_values(problem: Problem, values: Values) -> F64:
    return mixed(values["weights"], _dealt(problem, values, "value"))


MISCONCEPTION = Misconception(
    id="heads.interleaved",
    title="The columns were dealt out to the heads in turn",
    formula=r"Q^{(a)} = \left( Q_{\cdot,a},\ Q_{\cdot,a+h},\ \ldots \right)",
    explanation=(
        "Columns were dealt to the heads like cards, one to each in turn. But a head owns neighbouring"
        " columns: the first head the first ones, the next head those after them."
    ),
    remedy=(
        "Draw lines down through queries, keys and values that cut them into as many equal pieces as there are heads."
    ),
    ways=({"raw_scores": _raw_scores, "weighted_values": _weighted_values},),
    twins={},
)
