"""Rotations, slopes and buckets, against literal numbers and formulas written out once more."""

import math

import numpy as np
import pytest

from models.positions import (
    alibi_slopes,
    distances,
    relative_bias,
    relative_buckets,
    rope_frequencies,
    rope_growth,
    rotate,
)
from models.spec import Relative, Rope


def rope(**fields) -> Rope:
    return Rope(scheme="rope", **fields)


@pytest.mark.parametrize(
    ("pairing", "turned"),
    [("half", [-1.9841, 1.9599, 2.4624, 4.0198]), ("interleaved", [-1.1426, 1.9221, 2.9599, 4.0298])],
)
def test_position_1_of_1_2_3_4_turns_as_published(pairing, turned):
    """The two pairings are mixed up all the time (transformers#25199, torchtitan#335, flash-attention#288)."""
    x = np.tile([1.0, 2.0, 3.0, 4.0], (1, 2, 1))

    found = rotate(x, rope(pairing=pairing))

    np.testing.assert_array_equal(found[0, 0], x[0, 0])  # position 0 does not turn
    np.testing.assert_allclose(found[0, 1], turned, atol=5e-5)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_of_rotated_tokens_depend_on_their_distance_only(pairing):
    """That is what rotary positions are for."""
    query, key = np.random.default_rng(0).standard_normal((2, 8))

    turned = [rotate(np.tile(x, (1, 9, 1)), rope(pairing=pairing))[0] for x in (query, key)]
    scores = turned[0] @ turned[1].T

    for gap in range(-8, 9):
        diagonal = np.diagonal(scores, gap)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(turned[0], axis=-1), np.linalg.norm(query))


def test_numbers_beyond_rotary_dim_stand_still():
    """GPT-J and others turn a part of each head only."""
    x = np.random.default_rng(0).standard_normal((2, 5, 8))

    found = rotate(x, rope(rotary_dim=4))

    np.testing.assert_array_equal(found[..., 4:], x[..., 4:])
    np.testing.assert_allclose(found[..., :4], rotate(x[..., :4], rope()))


def test_linear_scaling_divides_positions():
    """Position 8 of a layer scaled by 4 turns like position 2 of one that is not."""
    x = np.random.default_rng(0).standard_normal((1, 1, 6)).repeat(9, axis=1)

    scaled = rotate(x, rope(scaling={"type": "linear", "factor": 4}))

    np.testing.assert_allclose(scaled[:, 8], rotate(x, rope())[:, 2])


def test_llama3_scaling_slows_long_waves_only():
    """Written out pair by pair, by wavelength, as the model's own code has it."""
    factor, low, high, original = 8.0, 1.0, 4.0, 8192
    scaling = {
        "type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_positions": original,
    }
    expected = []
    for i in range(0, 64, 2):
        frequency = 500_000.0 ** (-i / 64)
        wavelength = 2 * math.pi / frequency
        if wavelength > original / low:
            frequency /= factor
        elif wavelength >= original / high:
            smooth = (original / wavelength - low) / (high - low)
            frequency = (1 - smooth) * frequency / factor + smooth * frequency
        expected.append(frequency)

    scheme = rope(base=500_000.0, scaling=scaling)
    found, growth = rope_frequencies(scheme, 64, 1), rope_growth(scheme)

    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert growth == 1


def test_yarn_leaves_fast_pairs_slows_slow_ones_and_grows():
    """The ends of the ramp, and the growth of the paper's equation 22."""
    scheme = rope(scaling={"type": "yarn", "factor": 16, "original_max_positions": 4096})
    found, growth = rope_frequencies(scheme, 128, 1), rope_growth(scheme)
    plain = rope_frequencies(rope(), 128, 1)

    assert growth == pytest.approx(0.1 * math.log(16) + 1)
    np.testing.assert_allclose(found[:10], plain[:10])
    np.testing.assert_allclose(found[-10:], plain[-10:] / 16)
    ratio = plain / found
    assert (np.diff(ratio) >= -1e-12).all()


def test_slopes_of_a_power_of_two_are_a_geometric_sequence():
    """The paper's own example: 1/2, 1/4, … 1/256 for eight heads."""
    np.testing.assert_array_equal(alibi_slopes(8), [2.0**-i for i in range(1, 9)])
    np.testing.assert_array_equal(alibi_slopes(1), [2.0**-8])


def test_slopes_of_other_numbers_of_heads_are_filled_up_from_the_next_power():
    """Twelve heads: eight slopes, then every other one of sixteen's."""
    more = [2.0 ** (-0.5 * i) for i in (1, 3, 5, 7)]

    np.testing.assert_allclose(alibi_slopes(12), [*(2.0**-i for i in range(1, 9)), *more])


def test_buckets_of_near_distances_are_their_own_and_far_ones_shared():
    """T5's encoder: 32 buckets, 16 each way, 8 of those exact, the last from distance 128 on."""
    buckets = dict(zip(range(-128, 129), relative_buckets(Relative(scheme="relative")).tolist(), strict=True))

    assert [buckets[-i] for i in range(8)] == list(range(8))
    assert [buckets[i] for i in range(1, 8)] == [16 + i for i in range(1, 8)]
    assert (buckets[-8], buckets[-11], buckets[-12], buckets[-16]) == (8, 8, 9, 10)
    assert (buckets[-127], buckets[-128], buckets[128]) == (15, 15, 31)
    assert sorted(set(buckets.values())) == [*range(16), *range(17, 32)]


def test_one_way_buckets_know_no_later_token():
    """T5's decoder: all buckets for what came before; what comes after counts as here."""
    buckets = relative_buckets(Relative(scheme="relative", bidirectional=False))

    assert (buckets[129:] == 0).all()
    assert buckets[:129].max() == 31
    assert (np.diff(buckets[:129]) <= 0).all()


def test_the_bias_of_a_distance_is_its_bucket_s():
    """(2 * max_distance + 1, heads), nearest first in the middle."""
    relative = Relative(scheme="relative", num_buckets=8, max_distance=9)
    table = np.arange(16, dtype=np.float32).reshape(8, 2)

    bias = relative_bias(relative, table)

    assert bias.shape == (19, 2)
    np.testing.assert_array_equal(bias[9], table[0])
    np.testing.assert_array_equal(bias[8], table[1])
    np.testing.assert_array_equal(bias[10], table[5])


def test_distances_are_column_minus_row():
    np.testing.assert_array_equal(distances(3), [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]])
