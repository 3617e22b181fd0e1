"""Powers of two instead of e."""

from service.tutor.misconceptions.base import Misconception
from service.tutor.steps import last_scores

MISCONCEPTION = Misconception(
    id="softmax.base2",
    title="Powers of two were taken instead of powers of e",
    formula=r"E_{ij} = 2^{T_{ij} - m_i}",
    explanation=(
        "The shape of the recipe is right, but its base is not: with two instead of e the weights lie closer"
        " together. It is as if all scores had been multiplied by one more factor."
    ),
    remedy="Use the key marked eˣ or exp of your calculator, and not a power of two.",
    ways=({"softmax_exp": lambda problem, values: 2.0 ** (last_scores(problem, values) - values["softmax_max"])},),
    twins={
        "scale.dk": "where keys have two columns, the two change the weights by nearly the same",
    },
)
