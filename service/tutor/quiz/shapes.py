"""Questions on shapes."""

from service.tutor.chance import Chance
from service.tutor.quiz.base import Choice, Posed, Question


def _table(rows: int, columns: int) -> str:
    return f"{rows} × {columns}"


def _sizes(chance: Chance) -> tuple[int, int, int, int]:
    """Tokens, and columns of embeddings, keys and values; no two alike, and none the product of two others."""
    n, embed_dim, head_dim, value_dim = chance.shuffled((3, 4, 5, 7))
    return n, embed_dim, head_dim, value_dim


def _given(n: int, embed_dim: int, head_dim: int, value_dim: int) -> str:
    return (
        f"There are {n} tokens. Embeddings have {embed_dim} columns, queries and keys {head_dim}, values {value_dim}."
    )


def _query(chance: Chance) -> Posed:
    n, d, k, v = _sizes(chance)
    return Posed(
        f"{_given(n, d, k, v)} What is the shape of the matrix that makes the queries?",
        Choice(_table(d, k), "Yes: it takes rows as wide as embeddings and gives rows as wide as queries."),
        (
            Choice(
                _table(k, d), "That is its transpose: a row of the embeddings would not fit on it.", "proj.transposed"
            ),
            Choice(_table(n, k), "That is the shape of the queries themselves."),
            Choice(
                _table(n, d), "That is the shape of the embeddings. The matrix does not depend on how many tokens come."
            ),
        ),
    )


def _scores(chance: Chance) -> Posed:
    n, d, k, v = _sizes(chance)
    return Posed(
        f"{_given(n, d, k, v)} What is the shape of the scores?",
        Choice(_table(n, n), "Yes: one for each token that looks and each that is looked at."),
        (
            Choice(_table(k, k), "That compares columns with columns. Tokens are to be compared.", "score.qtk"),
            Choice(
                _table(n, k),
                "That is the shape of the queries, and of products that were not added up.",
                "score.elementwise",
            ),
            Choice(_table(n, v), "That is the shape of the outputs, or the values."),
        ),
    )


def _outputs(chance: Chance) -> Posed:
    n, d, k, v = _sizes(chance)
    return Posed(
        f"{_given(n, d, k, v)} What is the shape of the outputs?",
        Choice(_table(n, v), "Yes: a row for each token, as wide as the values that were mixed."),
        (
            Choice(_table(n, k), "As wide as keys would be right if keys were mixed.", "out.keys"),
            Choice(f"{n} × {n} × {v}", "Those are the weighted values before they are added up.", "out.not_summed"),
            Choice(_table(n, d), "As wide as embeddings would be right if embeddings were mixed.", "out.x"),
        ),
    )


def _heads(chance: Chance) -> Posed:
    n, heads, width = chance.choice((4, 5, 7)), chance.choice((2, 3)), chance.choice((6, 8))
    return Posed(
        f"There are {n} tokens and {heads} heads, whose values have {width} columns each. What is the shape of the"
        " outputs of all heads together?",
        Choice(_table(n, heads * width), "Yes: the heads stand side by side in each token's row."),
        (
            Choice(_table(n, width), "That would be so if the heads were averaged.", "heads.averaged"),
            Choice(_table(heads * n, width), "That has the heads below one another, and several rows for each token."),
            Choice(_table(heads, n), "That has no room for the columns of the values."),
        ),
    )


def _products(chance: Chance) -> Posed:
    n, d, k, v = _sizes(chance)
    return Posed(
        f"{_given(n, d, k, v)} How many dot products of queries and keys are there, without a mask?",
        Choice(str(n * n), "Yes: every token's query meets every token's key, its own too."),
        (
            Choice(str(n * (n - 1)), "Each token is compared with itself as well.", "mask.strict"),
            Choice(str(n), "That compares every token with itself only.", "score.elementwise"),
            Choice(str(n * n * k), "So many products of two numbers are added up, some for each dot product."),
        ),
    )


QUESTIONS = (
    Question("shapes.query_matrix", _query),
    Question("shapes.scores", _scores),
    Question("shapes.outputs", _outputs),
    Question("shapes.heads", _heads),
    Question("shapes.products", _products),
)
