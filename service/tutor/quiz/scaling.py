"""Questions on scaling."""

import numpy as np

from service.tutor.chance import Chance
from service.tutor.quiz.base import Choice, Posed, Question, fixed, mistaken, number, sized

_WHY = {
    "scale.none": "This is the raw score as it was.",
    "scale.dk": "That is divided by the width itself. Its root is what is needed.",
    "scale.multiplied": "That is the right number in the wrong direction: scaling makes scores smaller.",
    "scale.sqrt_dmodel": "The root was taken of the embeddings' width. The sum ran over the columns of a key.",
}


def _pose(chance: Chance) -> Posed:
    while True:
        width, embed_dim = chance.choice((4, 9)), chance.choice((4, 9, 16))
        score = chance.choice((-1, 1)) * 6.0 * chance.between(1, 6)
        known = {"raw_scores": np.full((1, 1, 1), score)}
        problem = sized(1, width, 2, embed_dim)
        if found := mistaken(problem, known, "scaled_scores", tuple(_WHY), lambda s: number(float(s[0, 0, 0]))):
            break
    right, wrong = found
    return Posed(
        f"Embeddings have {embed_dim} columns, queries and keys {width}. A raw score is {number(score)}."
        " What is it after scaling?",
        Choice(right, "Yes: divided by the root of the number of columns of a key."),
        tuple(Choice(text, _WHY[id], id) for id, text in wrong),
    )


QUESTIONS = (
    fixed(
        "scaling.why",
        "Why are scores scaled before the softmax?",
        Choice(
            "Else the softmax would give nearly all weight to one token.",
            "Yes: dot products of many columns lie far apart. Scaled, they spread alike however wide the keys are.",
        ),
        Choice(
            "So that each row adds up to one.",
            "That is the softmax's own doing, whatever the scores are.",
            "scale.after_softmax",
        ),
        Choice(
            "So that long sentences do not get larger scores than short ones.",
            "A score compares two tokens; how many others there are makes no difference to it.",
            "scale.sqrt_n",
        ),
        Choice(
            "So that every query and every key has length one.",
            "Scaling divides all scores by the same number. It looks at nobody's length.",
            "score.cosine",
        ),
    ),
    fixed(
        "scaling.by",
        "What are the raw scores divided by?",
        Choice("√d_k, the root of the number of columns of a key", "Yes: that is how sums of so many products spread."),
        Choice(
            "d_k, the number of columns of a key",
            "The right width, but without the root the scores become too much alike.",
            "scale.dk",
        ),
        Choice(
            "√d_model, the root of the number of columns of an embedding",
            "The sum in a score runs over a query and a key, not over embeddings.",
            "scale.sqrt_dmodel",
        ),
        Choice(
            "√n, the root of the number of tokens",
            "More tokens make more scores, not larger ones.",
            "scale.sqrt_n",
        ),
    ),
    Question("scaling.number", _pose),
)
