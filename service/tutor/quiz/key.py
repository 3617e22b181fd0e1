"""Questions on keys, and on comparing queries with them."""

from service.tutor.chance import Chance
from service.tutor.quiz.base import Choice, Posed, Question, fixed, integers, mistaken, number, sized, vector

_WHY = {
    "score.qqt": "That is the query times itself. A score needs both: the query of the one, the key of the other.",
    "score.kkt": "That is the key times itself. A score needs both: the query of the one, the key of the other.",
    "score.cosine": "That is the cosine of the angle between them. The lengths are not divided by here.",
}


def _pose(chance: Chance) -> Posed:
    while True:
        known = {"query": integers(chance, (1, 3)), "key": integers(chance, (1, 3))}
        if found := mistaken(sized(1, 3, 3, 4), known, "raw_scores", tuple(_WHY), lambda s: number(float(s[0, 0, 0]))):
            break
    right, wrong = found
    return Posed(
        f"A query is {vector(known['query'][0])} and a key is {vector(known['key'][0])}. What is their raw score?",
        Choice(right, "Yes: multiply entry by entry, and add the products up."),
        tuple(Choice(text, _WHY[id], id) for id, text in wrong),
    )


QUESTIONS = (
    fixed(
        "key.role",
        "What is a token's key for?",
        Choice("Queries of all tokens are compared with it.", "Yes: it is what the token can be found by."),
        Choice(
            "It is mixed into the outputs of tokens that attend to this one.",
            "That is the value's part. When the weights are known, keys are done.",
            "out.keys",
        ),
        Choice(
            "It says what this token is looking for.",
            "That is the query: the key answers other tokens' questions.",
            "proj.swap_qk",
        ),
        Choice(
            "It decides whether the token is masked.",
            "A mask is given from outside; no key is asked.",
        ),
    ),
    fixed(
        "key.own_matrix",
        "Why do queries and keys have a matrix each, and not one together?",
        Choice(
            "So that attention need not be mutual.",
            "Yes: a token can look for something else than it offers, as “her” may look for “Mia” without “Mia”"
            " looking for “her”.",
        ),
        Choice(
            "So that the table of scores equals its mirror image.",
            "It is the other way round: with one matrix for both it would, and attention would always be mutual.",
            "score.qqt",
        ),
        Choice(
            "There is no reason; the two matrices are always the same.",
            "They are learned apart, and come out different.",
            "proj.none",
        ),
        Choice(
            "So that queries can be longer than keys.",
            "They must be of the same length: a dot product goes through both together.",
        ),
    ),
    Question("key.score", _pose),
)
