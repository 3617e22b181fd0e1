"""How large a request's tensors and its answer are, whether that is allowed, and what would be."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models.types import TensorName
from service.errors import TooLarge
from service.messages import AnswerOptions, AttentionInput, TextInput
from service.settings import MIB, Settings
from service.tickets import Limits

SQUARE: frozenset[TensorName] = frozenset({"weights", "scores"})
"""Tensors that grow with the square of the tokens."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What decides how large tensors are: heads, widths of a query, of a value and of an embedding, and layers."""

    heads: int
    head_dim: int
    value_dim: int
    embed_dim: int
    layers: int = 1

    def elements(self, name: TensorName, n: int) -> int:
        """Elements of a tensor for n tokens, in all layers."""
        if name in SQUARE:
            return self.layers * self.heads * n * n
        if name == "projected":
            return self.layers * n * self.embed_dim
        return self.layers * self.heads * n * (self.head_dim if name in ("query", "key") else self.value_dim)

    def computed(self, lengths: Sequence[int], options: AnswerOptions) -> int:
        """Bytes of the tensors asked for, before heads are averaged and weights made sparse."""
        return 4 * sum(self.elements(name, n) for n in lengths for name in options.wanted)

    def alone(self, n: int, options: AnswerOptions) -> int:
        """Bytes to compute a sequence of n tokens on any backend, also one that holds scores nobody asked for."""
        return self.computed([n], options) + 4 * self.elements("scores", n)

    def answered(self, lengths: Sequence[int], options: AnswerOptions) -> int:
        """Bytes of the answer's tensors in its dtype; indices of sparse weights have four each."""
        total, each = 0, 2 if options.dtype == "float16" else 4
        for n in lengths:
            for name in options.wanted:
                elements = self.elements(name, n)
                if options.average_heads and name in SQUARE:
                    elements //= self.heads
                if options.top_k and name == "weights":
                    elements = elements // n * min(options.top_k, n)
                    total += 4 * elements
                total += each * elements
        return total


def checked_size(
    request: AttentionInput | TextInput,
    lengths: Sequence[int],
    sizes: Sizes,
    bytes_in: int,
    settings: Settings,
    limits: Limits,
    holds_scores: Callable[[int, Sequence[str]], bool],
) -> int:
    """Bytes that the request and its tensors will take as float32, which is what they are computed in.

    Args:
        request: the request.
        lengths: tokens of each of its sequences.
        sizes: of what computes it.
        bytes_in: of the request as received.
        settings: the limits of one request.
        limits: of all that is in flight.
        holds_scores: whether a matrix of scores is held to compute these tensors for so many tokens.

    Raises:
        TooLarge: saying what would fit.
    """
    if len(lengths) > (most := min(settings.max_sequences, limits.sequences)):
        raise TooLarge.at(request.field, f"{len(lengths)} sequences; at most {most} fit in one request")
    most = min(settings.max_tokens, limits.tokens)
    for i, n in enumerate(lengths):
        if n > most:
            raise TooLarge.at(request.pointer(i), f"{n} tokens; a sequence may have {most}")
    if (tokens := sum(lengths)) > limits.tokens:
        raise TooLarge.at(request.field, f"{tokens} tokens in all; at most {limits.tokens} fit in one request")

    most_answered, options = settings.max_answer_mib * MIB, request.options

    def working(lengths: Sequence[int], options: AnswerOptions) -> int:
        """Bytes of the longest sequence's scores, where a slot holds them, whether or not they are asked for."""
        if not holds_scores(max(lengths), options.wanted):
            return 0
        return 4 * sizes.elements("scores", max(lengths))

    def fits(lengths: Sequence[int], options: AnswerOptions) -> bool:
        if sizes.answered(lengths, options) > most_answered or working(lengths, options) > limits.bytes:
            return False
        return bytes_in + sizes.computed(lengths, options) <= limits.bytes

    size = bytes_in + sizes.computed(lengths, options)
    for what, taken, dtype, most in (
        ("the answer", sizes.answered(lengths, options), options.dtype, most_answered),
        ("the request and its tensors", size, "float32", limits.bytes),
        ("the computation", working(lengths, options), "float32", limits.bytes),
    ):
        if taken > most:
            raise TooLarge(
                f"{what} would take {math.ceil(taken / MIB)} MiB as {dtype} for {max(lengths)} tokens; "
                f"{most // MIB} MiB are allowed. To fit, {_what_fits(lengths, options, fits) or 'send less'}."
            )
    return size


def _what_fits(
    lengths: Sequence[int], options: AnswerOptions, fits: Callable[[Sequence[int], AnswerOptions], bool]
) -> str:
    """Changes of a request that is too large, each of which by itself makes it fit; empty if there is none."""

    def largest(stop: int, change: Callable[[int], tuple[Sequence[int], AnswerOptions]]) -> int:
        """The largest number below `stop` for which the changed request fits; 0 if none does."""
        return bisect_left(range(1, stop), True, key=lambda number: not fits(*change(number)))

    def changed(**fields: object) -> AnswerOptions:
        return options.model_copy(update=fields)

    advice = []
    if count := largest(len(lengths), lambda count: (lengths[:count], options)):
        advice.append(f"send the first {count} of the {len(lengths)} sequences alone")
    square = [name for name in options.wanted if name in SQUARE]
    rest = tuple(name for name in options.wanted if name not in SQUARE)
    if square and rest and fits(lengths, changed(returns=rest)):
        advice.append(f"leave {' and '.join(square)} out of `return`")
    if k := largest(max(lengths) + 1, lambda k: (lengths, changed(top_k=k))):
        advice.append(f"ask for `top_k` {k} or less")
    if fits(lengths, changed(average_heads=True)):
        advice.append("ask for `average_heads`")
    if options.decimals is None and fits(lengths, changed(dtype="float16")):
        advice.append("ask for `dtype` float16")
    if n := largest(max(lengths), lambda n: ([min(n, length) for length in lengths], options)):
        advice.append(f"send at most {n} tokens in a sequence")
    return ", or ".join(advice)
