"""Questions on values."""

from service.tutor.quiz.base import Choice, fixed

QUESTIONS = (
    fixed(
        "value.role",
        "What is a token's value for?",
        Choice(
            "Those that attend to the token receive it.",
            "Yes: outputs are mixed from values, and from nothing else.",
        ),
        Choice(
            "Queries are compared with it.",
            "Those are compared with keys. How a token is found and what it hands over are two things.",
            "score.qvt",
        ),
        Choice(
            "It says how important the token is to all others.",
            "There is no such number: how much a token counts depends on who is looking.",
        ),
        Choice(
            "None: it is the embedding that is handed over.",
            "The embedding is projected first; the value is what the projection makes of it.",
            "out.x",
        ),
    ),
    fixed(
        "value.width",
        "Keys have d_k columns. How many must values have?",
        Choice(
            "Any number; the outputs get as many.",
            "Yes: values are never compared with queries or keys, so their width is free.",
        ),
        Choice(
            "As many as keys, since they are compared with queries.",
            "Only keys are compared with queries.",
            "score.qvt",
        ),
        Choice(
            "As many as there are tokens, to be multiplied with the weights.",
            "It is their rows that the weights need, one for each token. The weights stand on the left.",
            "out.va",
        ),
        Choice(
            "As many as embeddings, since these are added to the outputs.",
            "Adding the embeddings is no part of attention itself.",
            "out.residual_added",
        ),
    ),
    fixed(
        "value.from",
        "The keys and the values of a layer are made from the same embeddings. What makes them differ?",
        Choice("Each has a matrix of its own.", "Yes: two matrices, two views of the same token."),
        Choice(
            "Values are keys after the softmax.",
            "The softmax is taken of scores. Neither keys nor values ever pass through it.",
        ),
        Choice(
            "Nothing: they are the same.",
            "Then what a token is found by would be all it has to say.",
            "proj.none",
        ),
        Choice(
            "Values are made with the matrix of the queries.",
            "That one makes queries, and nothing else.",
            "proj.swap_qv",
        ),
    ),
)
