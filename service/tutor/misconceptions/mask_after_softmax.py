"""Weights set to zero after the softmax."""

from service.tutor.arithmetic import hidden_as, mask_of, softmax
from service.tutor.misconceptions.base import Misconception

MISCONCEPTION = Misconception(
    id="mask.after_softmax",
    title="The mask came after the softmax",
    formula=r"A = \operatorname{softmax}(T), \text{ then } A_{ij} = 0 \text{ where } i \text{ may not see } j",
    explanation=(
        "The hidden places are empty, as they should be, but they had their part in the sum first. What is"
        " left of a row adds up to less than one."
    ),
    remedy=(
        "Hide the scores before the softmax. Then the whole weight is shared out among those that may be"
        " seen, and each row adds up to one."
    ),
    ways=({"weights": lambda problem, values: hidden_as(softmax(values["scaled_scores"]), mask_of(problem), 0.0)},),
    twins={},
)
