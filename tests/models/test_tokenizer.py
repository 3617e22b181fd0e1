import numpy as np
import pytest

from models.errors import InvalidInput, InvalidModel
from models.tokenizer import Tokenizer
from tests.encoders import VOCABULARY, bytes_tokenizer, word_pieces


def tokenizer(**changes) -> Tokenizer:
    return Tokenizer(word_pieces(**changes), len(VOCABULARY))


def test_ids_are_the_vocabularys():
    found = tokenizer().encode("The cat sat.")

    assert found.tokens == ("[CLS]", "the", "cat", "sat", ".", "[SEP]")
    assert found.ids.dtype == np.int64
    assert [VOCABULARY[i] for i in found.ids] == list(found.tokens)


def test_nothing_is_padded_or_cut_though_the_file_says_so():
    """MiniLM's file pads to 128 and cuts there: 120 tokens of a short sentence would stand for nothing."""
    short, long = tokenizer().encode("cat"), tokenizer().encode("cat " * 500)

    assert short.tokens == ("[CLS]", "cat", "[SEP]")
    assert len(long.ids) == 502


def test_offsets_are_places_in_the_text():
    text = "The  cats sat!"

    found = tokenizer().encode(text)

    assert [text[start:end] for start, end in found.offsets] == ["", "The", "cat", "s", "sat", "!", ""]
    assert found.tokens == ("[CLS]", "the", "cat", "##s", "sat", "[UNK]", "[SEP]")


def test_special_tokens_are_those_that_were_added():
    """A token that the text itself holds has a place in it."""
    found = tokenizer().encode("cat [SEP] sat")

    assert found.tokens == ("[CLS]", "cat", "[SEP]", "sat", "[SEP]")
    assert found.special == (True, False, False, False, True)
    assert found.offsets == ((0, 0), (0, 3), (4, 9), (10, 13), (0, 0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cat 😀 sat", ["cat", "😀", "sat"]),  # beyond the basic plane: one code point, two of UTF-16, four of UTF-8
        ("👩‍👩‍👧 cat", ["👩‍👩‍👧", "cat"]),  # five code points that are drawn as one
        ("the cafe\u0301 sat", ["the", "cafe", "sat"]),  # the accent was dropped, and is no token's
        ("the café sat", ["the", "café", "sat"]),
        ("猫 cat", ["猫", "cat"]),
    ],
)
def test_offsets_count_code_points(text, words):
    """Bytes or halves of UTF-16 would highlight the wrong characters from the first emoji on."""
    found = tokenizer().encode(text)

    assert [text[start:end] for start, end in found.offsets[1:-1]] == words


def test_bytes_of_a_character_share_its_place():
    text = "a😀b"

    found = Tokenizer(bytes_tokenizer(), 256).encode(text)

    assert len(found.ids) == 6
    assert [text[start:end] for start, end in found.offsets] == ["a", "😀", "😀", "😀", "😀", "b"]


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_text_is_its_special_tokens(text):
    assert tokenizer().encode(text).tokens == ("[CLS]", "[SEP]")


def test_a_text_without_any_token_is_refused():
    """An encoder needs one, and not every tokenizer adds some."""
    with pytest.raises(InvalidInput, match="the text has no tokens"):
        Tokenizer(bytes_tokenizer(), 256).encode("")


def test_a_token_beyond_the_embeddings_is_refused_by_name():
    """Its row would be another tensor's memory, or an error of the runtime that blames nobody."""
    short = Tokenizer(word_pieces(), VOCABULARY.index("cat"))

    assert short.encode("the").tokens == ("[CLS]", "the", "[SEP]")
    with pytest.raises(InvalidInput, match="token 'cat' has id 5, but the encoder ends at 4"):
        short.encode("the cat")


def test_half_a_character_is_refused():
    """JSON can hold one."""
    with pytest.raises(InvalidInput, match="character 4 of the text is half of one"):
        tokenizer().encode("cat \ud83d sat")


def test_a_word_that_has_no_token_is_refused():
    with pytest.raises(InvalidInput, match=r"the tokenizer cannot read the text: .*UNK"):
        tokenizer(unknown="[NONE]").encode("dog")


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\xff\xfe", b'{"model": {"type": "Magic"}}'])
def test_what_is_no_tokenizer_is_said_to_be_none(content):
    with pytest.raises(InvalidModel, match=r"tokenizer\.json: "):
        Tokenizer(content, 10)
