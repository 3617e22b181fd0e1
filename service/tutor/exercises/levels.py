"""The levels: what is given, what is asked. To add one, write its entry here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

WHOLE = ("query", "key", "value", "raw_scores", "scaled_scores", "masked_scores", "weights", "outputs")
"""The main steps of the recipe; where nothing is masked, there is no `masked_scores`."""

ONE_HEAD: Mapping[str, Any] = MappingProxyType({"num_heads": 1, "is_causal": False})


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of exercise.

    Attributes:
        id: its public name, fixed for good.
        title: a few words.
        task: what is to be done, to the learner; `{d_k}` stands for the columns of a key.
        given: the steps whose arrays are given; none for embeddings and projections.
        asks: the steps that are asked unless the caller says otherwise.
        fixed: options that the level itself decides.
        decimals: places unless the caller says otherwise.
    """

    id: str
    title: str
    task: str
    given: tuple[str, ...]
    asks: tuple[str, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    decimals: int = 3

    @property
    def whole(self) -> bool:
        """Whether it is the recipe from its beginning, which a whiteboard asks for."""
        return not self.given


LEVELS: dict[str, Level] = {
    level.id: level
    for level in (
        Level(
            "dot-product", "Compare one query with one key", "Work out the dot product of the query and the key.",
            ("query", "key"), ("raw_scores",), {**ONE_HEAD, "tokens": 1}, 2,
        ),
        Level(
            "scores", "Compare every query with every key",
            "Work out the raw scores: a row per query, a column per key.",
            ("query", "key"), ("raw_scores",), ONE_HEAD, 2,
        ),
        Level(
            "scaling", "Scale the scores",
            "Scale the raw scores. Queries and keys have {d_k} columns, d_k = {d_k}.",
            ("raw_scores",), ("scaled_scores",), ONE_HEAD, 2,
        ),
        Level(
            "softmax", "From scores to weights", "Turn the scaled scores into attention weights, row by row.",
            ("scaled_scores",), ("weights",), ONE_HEAD,
        ),
        Level(
            "mixing", "Mix the values", "Work out the outputs: the values, mixed by the weights.",
            ("value", "weights"), ("outputs",), ONE_HEAD,
        ),
        Level(
            "recipe", "The whole recipe", "Work self-attention through, from the embeddings to the outputs.",
            (), WHOLE,
        ),
        Level(
            "causal", "The whole recipe, without looking ahead",
            "Work causal self-attention through: a token sees itself and those before it.",
            (), WHOLE, {"is_causal": True},
        ),
        Level(
            "two-heads", "Two heads, without looking ahead",
            "Work causal self-attention with two heads through. The first half of the columns of queries, keys, values"
            " and outputs belongs to the first head.",
            (), WHOLE, {"is_causal": True, "num_heads": 2},
        ),
    )
}  # fmt: skip
"""Every level by its id, from the easiest on."""

DEFAULT_LEVEL = "recipe"
