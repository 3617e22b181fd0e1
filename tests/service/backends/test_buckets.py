import numpy as np
import pytest
import torch

from service.backends.buckets import LAST, STEP, bucket, cut, fill, rung


def test_the_ladder_has_powers_of_two_and_halves_between():
    """Few enough to record each, close enough to waste little."""
    rungs = sorted({bucket(n) for n in range(1, LAST + 1)})

    assert rungs == [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert all(n % STEP == 0 for n in rungs)


def test_every_length_fits_its_bucket_and_no_lower_one():
    """A third at most is padding, from where the steps of 8 no longer bind."""
    rungs = sorted({bucket(n) for n in range(1, LAST + 1)})
    for n in range(1, LAST + 1):
        assert bucket(n) == min(rung for rung in rungs if rung >= n)
        assert n <= 16 or bucket(n) < 1.5 * n


@pytest.mark.parametrize("n", [LAST + 1, 1_500, 16_384])
def test_long_sequences_are_not_padded(n):
    """They fill a GPU alone."""
    assert bucket(n) == n


def test_counts_go_up_in_powers_of_two():
    """Each count is a graph of its own."""
    assert [rung(count) for count in (1, 2, 3, 4, 5, 63, 64)] == [1, 2, 4, 4, 8, 64, 64]


@pytest.mark.parametrize("shapes", [[(3, 2), (5, 2)], [(2, 2), (4, 4)], [(3, 2, 2), (3, 4, 4)], [(5, 5), (5, 5)]])
def test_what_is_not_filled_is_zero(shapes):
    """Pinned memory is used again: whatever somebody else's batch left there must be gone."""
    arrays = [np.full(shape, i + 1, np.float32) for i, shape in enumerate(shapes)]
    size = tuple(max(sizes) + (axis > 0) for axis, sizes in enumerate(zip(*shapes, strict=True)))
    out = np.full((4, *size), np.nan, np.float32)

    fill(out, arrays)

    for row, array in zip(out, arrays, strict=False):
        corner = tuple(slice(size) for size in array.shape)
        np.testing.assert_array_equal(row[corner], array)
        assert row.sum() == array.sum()
    assert (out[len(arrays) :] == 0).all()


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
@pytest.mark.parametrize("axes", [(), (3,)], ids=["alone", "stacked"])
@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("weights", (2, 8, 8), (2, 5, 5)),
        ("layers.3.scores", (2, 8, 8), (2, 5, 5)),
        ("query", (2, 8, 4), (2, 5, 4)),
        ("outputs", (8, 6), (5, 6)),
        ("layers.0.projected", (8, 6), (5, 6)),
    ],
)
def test_a_tensor_is_cut_to_its_tokens(kind, axes, name, shape, expected):
    """Its columns too, where they are tokens."""
    assert tuple(cut(name, kind((*axes, *shape)), 5).shape) == (*axes, *expected)
