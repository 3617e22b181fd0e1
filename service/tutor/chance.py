"""Chance that falls the same way for ever, on every machine: what exercises and quizzes are drawn by.

NumPy's and Python's own generators may change their streams between versions; an exercise that was handed out must not.
"""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_WORD = 1 << 64


class Chance:
    """A stream of 64-bit words drawn from a text: block i is SHA-256 of the text, a zero byte, and i in 8 bytes.

    Numbers are big-endian. The stream of a text never changes; to draw differently, draw from another text.
    """

    def __init__(self, seed_text: str) -> None:
        """Begin the stream of `seed_text`; put into it whatever the draws are to depend on."""
        self._seed = seed_text.encode() + b"\x00"
        self._blocks = 0
        self._words: list[int] = []

    def _word(self) -> int:
        if not self._words:
            block = hashlib.sha256(self._seed + self._blocks.to_bytes(8, "big")).digest()
            self._blocks += 1
            self._words = [int.from_bytes(block[at : at + 8], "big") for at in (24, 16, 8, 0)]  # taken from the end
        return self._words.pop()

    def below(self, n: int) -> int:
        """A whole number 0 to n - 1, each as likely; n is 1 to 2**64, else ValueError."""
        if not 1 <= n <= _WORD:
            raise ValueError(f"there is no number below {n} to draw")
        limit = _WORD - _WORD % n  # words beyond the last whole multiple would make small numbers likelier
        while (word := self._word()) >= limit:
            pass
        return word % n

    def between(self, least: int, most: int) -> int:
        """A whole number from `least` to `most`, both possible."""
        return least + self.below(most - least + 1)

    def choice(self, items: Sequence[T]) -> T:
        """One of the items, each as likely; ValueError where there are none."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in another order, every order as likely (Fisher and Yates)."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order
