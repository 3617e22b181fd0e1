import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.tutor.chance import Chance


def test_the_words_are_those_of_the_digests():
    """The rule as the docstring has it, written down a second time."""
    chance = Chance("seed")
    blocks = b"".join(hashlib.sha256(b"seed\x00" + i.to_bytes(8, "big")).digest() for i in range(2))

    drawn = [chance.below(2**64) for _ in range(8)]

    assert drawn == [int.from_bytes(blocks[at : at + 8], "big") for at in range(0, 64, 8)]


def test_a_text_draws_the_same_for_ever():
    """Literals: should they change, every exercise ever handed out would."""
    chance = Chance("qkv/1 7")

    assert [chance.below(10) for _ in range(12)] == [0, 8, 5, 2, 4, 2, 9, 8, 4, 0, 8, 8]
    assert chance.shuffled(range(8)) == [7, 6, 0, 4, 1, 5, 3, 2]


@given(seed=st.text(max_size=20), n=st.one_of(st.integers(1, 50), st.just(2**64), st.just(2**63 + 1)))
def test_every_draw_is_in_range(seed, n):
    chance = Chance(seed)

    assert all(0 <= chance.below(n) < n for _ in range(8))
    assert -3 <= chance.between(-3, 3) <= 3


@given(seed=st.text(max_size=20), items=st.lists(st.integers(), max_size=12))
def test_shuffling_keeps_every_item(seed, items):
    given_items = tuple(items)

    assert sorted(Chance(seed).shuffled(given_items)) == sorted(items)


def test_every_number_and_every_order_comes_up_about_as_often():
    chance = Chance("fair")
    numbers = [chance.below(6) for _ in range(6000)]
    orders = [tuple(chance.shuffled("abc")) for _ in range(6000)]

    assert all(850 < numbers.count(number) < 1150 for number in range(6))
    assert all(850 < orders.count(order) < 1150 for order in set(orders))
    assert len(set(orders)) == 6


@pytest.mark.parametrize("n", [0, -1, 2**64 + 1])
def test_nothing_can_be_drawn_from_nothing(n):
    with pytest.raises(ValueError, match="no number below"):
        Chance("").below(n)


def test_a_choice_from_nothing_is_refused():
    with pytest.raises(ValueError, match="no number below 0"):
        Chance("").choice([])
