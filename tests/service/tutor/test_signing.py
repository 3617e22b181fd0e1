import base64
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import exercise

from models.errors import InvalidInput
from service.tutor.signing import PUBLISHED_KEY, Signer

TERMS = exercise("two-heads", 12, mode="whiteboard").terms
TOKEN = Signer("secret").token(TERMS)


def refused(token, signer=None):
    with pytest.raises(InvalidInput) as caught:
        (signer or Signer("secret")).terms(token)
    (field,) = caught.value.fields
    assert field.pointer == "/exercise"
    return field.detail


def signed(fields, signer=None):
    """A token of anything, rightly signed."""
    signer = signer or Signer("secret")
    text = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
    return f"{text}.{signer._signature(text)}"


def test_a_token_holds_the_terms():
    assert Signer("secret").terms(TOKEN) == TERMS
    assert Signer("secret").terms(Signer("secret").token(replace(TERMS, part=2))).part == 2


def test_a_token_is_letters_that_need_no_escaping():
    """It stands in forms, addresses and print."""
    assert set(TOKEN) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
    assert len(TOKEN) < 500


def test_another_key_signs_otherwise():
    assert "not one of this service" in refused(Signer().token(TERMS))
    assert Signer().forgeable
    assert Signer(PUBLISHED_KEY).token(TERMS) == Signer().token(TERMS)
    assert not Signer("secret").forgeable


@pytest.mark.parametrize("place", range(0, len(TOKEN), 7))
def test_a_changed_token_is_none(place):
    other = "A" if TOKEN[place] != "A" else "B"

    refused(TOKEN[:place] + other + TOKEN[place + 1 :])


@settings(deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=40).map(lambda content: base64.urlsafe_b64encode(content).decode()))
def test_whatever_else_is_sent_is_none(text):
    refused(text)
    refused(f"{text}.{TOKEN.rpartition('.')[2]}")


def test_a_token_is_not_too_long():
    refused(TOKEN + "A" * 5_000)
    refused("\ud800")


@pytest.mark.parametrize(
    "change",
    [
        {"seed": -1}, {"seed": "1"}, {"draw": 60}, {"draw": -1}, {"draw": True}, {"part": 3}, {"part": "1"},
        {"level": "x"}, {"mode": 1}, {"tokens": 10**9}, {"tokens": None}, {"tokens": 17}, {"num_heads": 3},
        {"is_causal": False}, {"ask": []}, {"more": 1},
        {"decimals": 99}, {"decimals": None}, {"mode": "guided", "ask": ["x"]}, {"mode": "guided", "ask": 7},
        {"mode": "guided", "ask": [[]]},
    ],
)  # fmt: skip
def test_what_was_never_issued_is_refused_though_it_is_signed(change):
    """With the published key anybody can sign."""
    assert "holds no exercise" in refused(signed(asdict(TERMS) | change))


def test_an_unknown_generator_is_told():
    """A token of a later version, met by an older one."""
    assert "'qkv/9', which this version does not have" in refused(signed(asdict(TERMS) | {"generator": "qkv/9"}))
    refused(signed(asdict(TERMS) | {"generator": []}))
    refused(signed([]))
    refused(signed({}))
