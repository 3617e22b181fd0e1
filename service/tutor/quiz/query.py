"""Questions on queries."""

from dataclasses import replace

import numpy as np

from service.tutor.chance import Chance
from service.tutor.quiz.base import Choice, Posed, Question, fixed, integers, matrix, mistaken, sized, vector

_WHY = {
    "proj.none": "That is the embedding itself. It becomes a query only by being multiplied with the matrix.",
    "proj.transposed": "Here the embedding met the rows of the matrix. Each entry of the query belongs to a column.",
    "proj.cell_slip": "Nearly: one of the entries has the wrong sign.",
}


def _pose(chance: Chance) -> Posed:
    while True:
        x, w = integers(chance, (2, 2)), integers(chance, (2, 2))
        problem = replace(sized(2, 2, 2, 2), inputs=x, query=w)
        if found := mistaken(problem, {}, "query", tuple(_WHY), lambda rows: vector(rows[0])):
            break
    right, wrong = found
    return Posed(
        f"A token's embedding is {vector(x[0])}. With this matrix, what is its query?",
        Choice(right, "Yes: the embedding times each column of the matrix, added up, one entry after another."),
        tuple(Choice(text, _WHY[id], id) for id, text in wrong),
        formula=f"W_Q = {matrix(np.asarray(w))}",
    )


QUESTIONS = (
    fixed(
        "query.role",
        "What is a token's query for?",
        Choice(
            "It says what this token is looking for in the others.",
            "Yes: it is the token's question to all others.",
        ),
        Choice(
            "It says what this token can be found by.",
            "That is the key: what a token holds up so that others' queries can find it.",
            "proj.swap_qk",
        ),
        Choice(
            "It is what other tokens receive when they attend to this one.",
            "That is the value. A query is never passed on to anybody.",
            "proj.swap_qv",
        ),
        Choice(
            "It says where in the sentence the token stands.",
            "Attention as such knows nothing of places; those have to be put into the embeddings, or the scores.",
        ),
    ),
    fixed(
        "query.made",
        "How is a token's query made?",
        Choice(
            "Its embedding is multiplied with a matrix.",
            "Yes: a matrix that the layer has learned, for queries alone, and the same for every token.",
        ),
        Choice(
            "It is the embedding itself.",
            "Then there would be nothing to learn about what to look for.",
            "proj.none",
        ),
        Choice(
            "The embeddings of all tokens are averaged.",
            "All tokens would then ask the same question. A query is made from one token alone.",
        ),
        Choice(
            "It is its key, divided by √d_k.",
            "The root comes in later, with the scores. Queries have a matrix of their own.",
            "score.kkt",
        ),
    ),
    Question("query.number", _pose),
)
