"""Powers of ten instead of e."""

from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import last_scores

MISCONCEPTION = Misconception(
    id="softmax.base10",
    title="Powers of ten were taken instead of powers of e",
    formula=r"E_{ij} = 10^{T_{ij} - m_i}",
    explanation=(
        "The shape of the recipe is right, but its base is not: with ten instead of e the weights lie further"
        " apart. It is as if all scores had been multiplied by one more factor."
    ),
    remedy=(
        "Use the key of your calculator that is marked eˣ or exp; the one beside it, for powers of ten, is"
        " another function."
    ),
    ways=({"softmax_exp": lambda problem, values: 10.0 ** (last_scores(problem, values) - values["softmax_max"])},),
    twins={
        "softmax.hardmax": "where one score is far above the rest, both give it all the weight",
        "scale.multiplied": "where one score is far above the rest, both give it all the weight",
    },
)
