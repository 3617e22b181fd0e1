"""From text to token ids, by the tokenizer.json that a checkpoint comes with."""

from dataclasses import dataclass

import numpy as np
import tokenizers

from models.errors import InvalidInput, InvalidModel
from models.types import I64


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's n tokens, the special ones around them included.

    Attributes:
        ids: (n,).
        tokens: as the vocabulary spells them: `##` or a missing `Ġ` marks the continuation of a word.
        offsets: where each stands in the text, first and one past the last, in Unicode code points: `text[start:end]`
            in Python. Tokens that share a character, as an emoji's bytes do, each have all of it; (0, 0) for special
            ones.
        special: whether the tokenizer added the token: it stands for no text. A `[SEP]` that the text itself holds
            becomes that token, and is not special.
    """

    ids: I64
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]


class Tokenizer:
    """A tokenizer.json; it never pads and never truncates, whatever the file says. Threads may share it."""

    def __init__(self, content: bytes, vocab_size: int) -> None:
        """Read the file's content; `vocab_size` is the encoder's.

        Raises:
            InvalidModel: if it is not a tokenizer.json.
        """
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises nothing narrower
            raise InvalidModel(f"tokenizer.json: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.vocab_size = vocab_size

    def encode(self, text: str) -> Tokens:
        """The tokens of a text, at least one.

        Raises:
            InvalidInput: if the text is not Unicode, has no tokens, or one that the encoder has no embedding for.
        """
        try:
            text.encode()  # the library calls half a character no text at all
            found = self._tokenizer.encode(text)
        except UnicodeEncodeError as error:
            raise InvalidInput(f"character {error.start} of the text is half of one, a lone surrogate") from error
        except Exception as error:  # such as a word it does not know, and no token for those
            raise InvalidInput(f"the tokenizer cannot read the text: {error}") from error
        if not found.ids:
            raise InvalidInput("the text has no tokens")
        for token, number in zip(found.tokens, found.ids, strict=True):
            if number >= self.vocab_size:
                raise InvalidInput(f"token {token!r} has id {number}, but the encoder ends at {self.vocab_size - 1}")
        return Tokens(
            np.array(found.ids, np.int64),
            tuple(found.tokens),
            tuple(found.offsets),
            tuple(map(bool, found.special_tokens_mask)),
        )
