"""Questions on the weighted sum of values."""

import numpy as np

from service.tutor.chance import Chance
from service.tutor.quiz.base import Choice, Posed, Question, fixed, integers, mistaken, sized, vector

_WHY = {
    "out.mean": "That is the plain mean of the values. The weights say who counts more.",
    "out.top1": "That is the value of the token with the largest weight. The others count too, by theirs.",
    "out.token_dropped": "The last token is missing from that sum.",
}

_WEIGHTS = ((0.5, 0.3, 0.2), (0.6, 0.1, 0.3), (0.2, 0.7, 0.1), (0.1, 0.4, 0.5), (0.25, 0.15, 0.6), (0.1, 0.8, 0.1))


def _pose(chance: Chance) -> Posed:
    while True:
        weights = np.array(chance.choice(_WEIGHTS))
        known = {"weights": np.tile(weights, (1, 3, 1)), "value": integers(chance, (3, 2), 5)}
        if found := mistaken(sized(3, 3, 2, 5), known, "outputs", tuple(_WHY), lambda rows: vector(rows[0])):
            break
    right, wrong = found
    values = ", ".join(vector(row) for row in known["value"])
    return Posed(
        f"A token's weights are {', '.join(f'{weight:g}' for weight in weights)}; the values of the three tokens are"
        f" {values}. What is its output?",
        Choice(right, "Yes: each value times its weight, and the sum of all."),
        tuple(Choice(text, _WHY[id], id) for id, text in wrong),
    )


QUESTIONS = (
    fixed(
        "weighted-sum.output",
        "How is a token's output computed?",
        Choice(
            "Each token's value is multiplied with its weight, and all are added up.",
            "Yes: an average of values, in which some count more than others. The weights are those of the row"
            " of this token.",
        ),
        Choice(
            "The keys of all tokens are averaged, each by its weight.",
            "The weights are right. But keys serve to be found; it is values that are handed over.",
            "out.keys",
        ),
        Choice(
            "The embeddings of all tokens are added up, each by its weight.",
            "The weights are right. But embeddings are projected to values before they are mixed.",
            "out.x",
        ),
        Choice(
            "It is the value of the token with the largest weight.",
            "That one counts most, and all others count too.",
            "out.top1",
        ),
        Choice(
            "Each token's value is multiplied with its score, and the products are added up.",
            "Scores are no shares yet: they may be negative, and add up to anything. The softmax comes first.",
            "softmax.skipped",
        ),
    ),
    fixed(
        "weighted-sum.row",
        "Which weights make the output of the second token?",
        Choice("Those in the second row", "Yes: a row belongs to the token that looks."),
        Choice(
            "Those in the second column",
            "A column holds how much everybody looks at that token.",
            "out.transposed_weights",
        ),
        Choice("The one in the second row and second column", "That is only how much it looks at itself."),
        Choice(
            "Those in the first row, since the first token comes before it",
            "That row makes the output of the first token. Which tokens count is for the weights to say.",
            "out.wrong_row",
        ),
    ),
    fixed(
        "weighted-sum.equal",
        "A token gives every token the same weight. What is its output?",
        Choice("The mean of all values", "Yes: in this case, and in no other, the weights make no difference."),
        Choice(
            "The sum of all values",
            "Weights add up to one, so every value comes in with its part only.",
            "softmax.no_denominator",
        ),
        Choice("Its own value", "It counts no more than the others here."),
        Choice(
            "The mean of all embeddings",
            "Values are mixed: what the projection has made of the embeddings.",
            "out.x",
        ),
    ),
    Question("weighted-sum.number", _pose),
)
