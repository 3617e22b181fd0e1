"""Questions on masks."""

import numpy as np

from service.tutor.chance import Chance
from service.tutor.quiz.base import Choice, Posed, Question, fixed, mistaken, number, sized

_WHY = {
    "mask.ignored": "That shares the attention among all tokens, later ones too. They are hidden from this one.",
    "mask.strict": "That leaves the token itself out. A causal mask hides later tokens only.",
    "mask.reversed": "That hides the earlier tokens and shows the later ones.",
}

_PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")


def _pose(chance: Chance) -> Posed:
    while True:
        n = chance.between(4, 6)
        row = chance.between(2, n - 2)
        column = chance.below(row)
        known = {"scaled_scores": np.zeros((1, n, n))}

        def share(weights: np.ndarray, row: int = row, column: int = column) -> str:
            return number(float(weights[0, row, column]), 3)

        if found := mistaken(sized(n, 2, 2, 3, is_causal=True), known, "weights", tuple(_WHY), share):
            break
    right, wrong = found
    return Posed(
        f"There are {n} tokens, all scores are equal, and the mask is causal. What weight does the {_PLACES[row]} token"
        f" give to the {_PLACES[column]}?",
        Choice(right, "Yes: the same share for itself and for each token before it."),
        tuple(Choice(text, _WHY[id], id) for id, text in wrong),
    )


QUESTIONS = (
    fixed(
        "masks.how",
        "How is a token hidden from another?",
        Choice(
            "Its score becomes minus infinity, before the softmax.",
            "Yes: its exponential is then zero, and the others share the whole weight.",
        ),
        Choice(
            "Its weight becomes zero, after the softmax.",
            "By then it had its part in the sum, and the rest of the row adds up to less than one.",
            "mask.after_softmax",
        ),
        Choice(
            "Its score becomes zero, before the softmax.",
            "Zero is a score like any other: its exponential is one.",
            "mask.zero_score",
        ),
        Choice(
            "Its score becomes minus one, before the softmax.",
            "That makes its weight smaller, but not zero.",
            "mask.small_number",
        ),
    ),
    fixed(
        "masks.causal",
        "With a causal mask, whom may the third of five tokens look at?",
        Choice("Itself and the two before it", "Yes: nobody that comes later."),
        Choice("Only the two before it", "It may look at itself as well.", "mask.strict"),
        Choice("Itself and the two after it", "Just the other way round: what comes later is hidden.", "mask.reversed"),
        Choice("Everybody", "That is attention without a mask.", "mask.ignored"),
    ),
    fixed(
        "masks.padding",
        "The last token is padding and should not be seen. What is to be done with the scores?",
        Choice("Its column is hidden, in every row.", "Yes: then nobody looks at it."),
        Choice(
            "Its row is hidden.",
            "Then it looks at nobody, while all others still look at it.",
            "mask.padding_rows",
        ),
        Choice(
            "Nothing: its value is set to zero.",
            "It would still draw weight away from the others, who need all of it.",
            "mask.after_softmax",
        ),
        Choice(
            "Its column is set to zero.",
            "A score of zero is a score, and gets its share.",
            "mask.zero_score",
        ),
    ),
    Question("masks.number", _pose),
)
