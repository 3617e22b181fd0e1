"""Requests with text: what is read, and that nothing that anybody may send breaks the reader."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import AttentionError
from service.codecs import TEXT_DECODERS
from service.codecs.texts import MOST_CHARACTERS
from service.errors import TooLarge
from service.messages import TextInput
from service.problems import problem

(DECODER,) = TEXT_DECODERS.values()
LAW = settings(deadline=None, derandomize=True, max_examples=200)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.just("all"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)
fields = st.sampled_from(
    ["text", "layers", "return", "top_k", "average_heads", "model", "format", "encoding", "inputs"]
)


def decode(document: object, query: str = "") -> TextInput:
    return DECODER.decode(json.dumps(document).encode(), query)


def test_one_text_and_a_list_are_told_apart():
    """The answer is nested as the request is."""
    one, several = decode({"text": "a"}), decode({"text": ["a"]})

    assert (one.texts, one.form, one.pointer(0)) == (("a",), "one", "/text")
    assert (several.texts, several.form, several.pointer(0)) == (("a",), "list", "/text/0")


def test_weights_of_all_layers_are_what_is_asked_for_by_default():
    """Whoever sends a text wants to see who looks at whom."""
    options = decode({"text": "a"}).options

    assert (options.wanted, options.layers) == (("weights",), "all")


@pytest.mark.parametrize("query", ["layers=0,2", "layers=%200%20,2"])
def test_layers_are_numbers_in_the_body_and_commas_in_the_query(query: str):
    """Both ways mean the same, and may say the same twice."""
    want = (0, 2)

    assert decode({"text": "a", "layers": [0, 2]}).options.layers == want
    assert decode({"text": "a"}, query).options.layers == want
    assert decode({"text": "a", "layers": [0, 2]}, query).options.layers == want


def test_characters_are_counted_over_all_texts():
    """Two halves that fit, and one character more."""
    half = "a" * (MOST_CHARACTERS // 2)

    assert len(decode({"text": [half, half]}).texts) == 2
    with pytest.raises(TooLarge) as caught:
        decode({"text": [half, half, "a"]})
    assert caught.value.fields[0].pointer == "/text/2"


@LAW
@given(st.dictionaries(fields, values, max_size=4), st.text(max_size=12))
def test_whatever_is_sent_is_read_or_refused(document: dict[str, object], query: str):
    """With an error that can be told to the caller."""
    try:
        decode(document, query)
    except AttentionError as error:
        problem(error, "id")


@LAW
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body: bytes):
    """Likewise."""
    try:
        DECODER.decode(body, "")
    except AttentionError as error:
        problem(error, "id")
