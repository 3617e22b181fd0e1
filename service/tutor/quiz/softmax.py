"""Questions on the softmax."""

import numpy as np

from service.tutor.chance import Chance
from service.tutor.quiz.base import Choice, Posed, Question, fixed, mistaken, number, sized

_WHY = {
    "softmax.no_denominator": "That is the exponential itself. It has to be divided by the sum of the row.",
    "softmax.denominator_excludes_self": "That is divided by the sum of the others only. The whole includes the part.",
    "softmax.hardmax": "The softmax does not let the largest take it all, nor leave the others with nothing.",
}


def _pose(chance: Chance) -> Posed:
    while True:
        exponentials = [chance.between(1, 6) for _ in range(3)]
        at = chance.below(3)
        known = {"scaled_scores": np.log(np.tile(np.array(exponentials, dtype=np.float64), (1, 3, 1)))}

        def share(weights: np.ndarray, at: int = at) -> str:
            return number(float(weights[0, 0, at]), 3)

        if found := mistaken(sized(3, 2, 2, 4), known, "weights", tuple(_WHY), share):
            break
    right, wrong = found
    which = ("first", "second", "third")[at]
    return Posed(
        f"The exponentials of a row of scores are {', '.join(map(str, exponentials))}. What is the {which} weight?",
        Choice(right, "Yes: the exponential, divided by the sum of all in its row."),
        tuple(Choice(text, _WHY[id], id) for id, text in wrong),
    )


QUESTIONS = (
    fixed(
        "softmax.axis",
        "The table of scores has a row for each token that looks. Of what is the softmax taken?",
        Choice("Of each row", "Yes: each token shares out its own attention, and its row adds up to one."),
        Choice(
            "Of each column",
            "That would share each token out among those who look at it.",
            "softmax.columns",
        ),
        Choice(
            "Of the whole table at once",
            "Then all tokens together would have one attention between them.",
            "softmax.all",
        ),
        Choice(
            "Of each score by itself",
            "A share of what? The scores of a row have to compete.",
            "softmax.sigmoid",
        ),
    ),
    fixed(
        "softmax.shift",
        "The same number is added to all scores of a row. What happens to its weights?",
        Choice(
            "Nothing",
            "Yes: all exponentials grow by the same factor, and dividing by their sum takes it out again."
            " That is why the largest score may be taken off first.",
        ),
        Choice(
            "All of them grow.",
            "The exponentials do, but weights are shares: they still add up to one.",
            "softmax.no_denominator",
        ),
        Choice(
            "They come closer to each other.",
            "They would, if scores were divided by their sum as they are. Exponentials depend on differences only.",
            "softmax.linear",
        ),
        Choice(
            "The largest one gets all.",
            "It would take larger differences for that, and these are as before.",
            "softmax.hardmax",
        ),
    ),
    fixed(
        "softmax.negative",
        "A row of scores has a negative one, the smallest. What weight does that token get?",
        Choice("A small one, above zero", "Yes: an exponential is never zero or less."),
        Choice(
            "A negative one",
            "No share is negative: the exponential makes all scores positive first.",
            "softmax.linear",
        ),
        Choice(
            "None",
            "Only a score of minus infinity, a masked one, gets none.",
            "softmax.hardmax",
        ),
        Choice("The softmax cannot be taken of it.", "It can be taken of any numbers."),
    ),
    Question("softmax.number", _pose),
)
