import json
import os
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.errors import InvalidModel
from models.spec import AttentionSpec
from models.tensor_file import MAX_HEADER_BYTES
from models.weights import checked, load, save, seeded, shapes

SPEC = AttentionSpec(name="m", embed_dim=6, num_heads=4, num_kv_heads=2, head_dim=3, value_dim=5)


def tensors(**changes):
    """Every tensor a file for SPEC may hold, some of them replaced or, with None, left out."""
    random = np.random.default_rng(0)
    every = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes(SPEC).items()} | changes
    return {name: tensor for name, tensor in every.items() if tensor is not None}


def test_shapes_follow_the_sizes_of_the_spec():
    """Keys and values have their own number of heads, and values a width of their own."""
    assert shapes(SPEC) == {
        "query": (6, 12),
        "key": (6, 6),
        "value": (6, 10),
        "query_bias": (12,),
        "key_bias": (6,),
        "value_bias": (10,),
        "output": (20, 6),
        "output_bias": (6,),
    }


def test_a_seed_gives_the_same_numbers_everywhere():
    """Written down, so that a change of numpy cannot change a served model unnoticed."""
    weights = seeded(SPEC, 7)

    np.testing.assert_array_equal(weights.query[0, :3], np.float32([0.69015425, -0.19021814, 0.013398776]))
    assert {name: (t.shape, t.dtype) for name, t in weights.tensors().items()} == {
        name: (shapes(SPEC)[name], np.float32) for name in ("query", "key", "value")
    }


def test_seeded_weights_keep_the_size_of_what_they_multiply():
    """Variance 1/embed_dim: queries of unit embeddings have unit numbers, and softmax stays soft."""
    weights = seeded(AttentionSpec(name="m", embed_dim=256, head_dim=256), 0)

    for tensor in weights.tensors().values():
        assert abs(tensor.std() * 16 - 1) < 0.02
        assert abs(tensor.mean()) < 1e-3


def test_the_digest_sees_every_number_name_and_shape():
    """Whoever changes a weight gets a new graph."""
    weights = checked(SPEC, tensors(), "here")
    other = weights.query.copy()
    other[-1, -1] = np.nextafter(other[-1, -1], np.float32(9))
    changed = [
        replace(weights, query=other),
        replace(weights, query=weights.query.reshape(12, 6)),
        replace(weights, query_bias=None),
        replace(weights, query_bias=None, key_bias=weights.query_bias),
        seeded(SPEC, 0),
    ]

    digests = {w.digest() for w in (weights, *changed)}

    assert len(digests) == 1 + len(changed)
    assert replace(weights, query=np.asfortranarray(weights.query)).digest() == weights.digest()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"wq": np.zeros(1, np.float32)}, "unknown tensor 'wq'; known are query, key, value"),
        ({"key": None}, "tensor 'key' is missing"),
        ({"value": np.zeros((6, 6), np.float32)}, "value has shape (6, 6), but m@1 needs (6, 10)"),
        ({"query": np.zeros((12, 6), np.float32)}, "query has shape (12, 6), but m@1 needs (6, 12)"),
        ({"key_bias": np.zeros((1, 6), np.float32)}, "key_bias has shape (1, 6), but m@1 needs (6,)"),
        ({"key": np.zeros((6, 6), np.int32)}, "key has dtype int32; float16, float32 or float64 are served"),
        ({"key": np.zeros((6, 6), np.complex64)}, "key has dtype complex64"),
        ({"key": np.full((6, 6), np.nan, np.float32)}, "key holds NaN or infinity"),
        ({"output": np.full((20, 6), -np.inf, np.float32)}, "output holds NaN or infinity"),
        ({"key": np.full((6, 6), 1e300)}, "numbers too large for float32"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(change, says):
    """The message names the tensor and what would be right, and no warning goes before it."""
    with pytest.raises(InvalidModel) as caught:
        checked(SPEC, tensors(**change), "here")

    assert caught.value.detail.startswith("here: ")
    assert says in caught.value.detail


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_other_float_widths_become_float32(dtype):
    """Held as backends want them: float32, C-contiguous."""
    given = {name: np.asfortranarray(t.astype(dtype)) for name, t in tensors().items()}

    weights = checked(SPEC, given, "here")

    for name, tensor in weights.tensors().items():
        assert tensor.dtype == np.float32
        assert tensor.flags.c_contiguous
        np.testing.assert_array_equal(tensor, given[name].astype(np.float32))


def test_biases_and_the_output_projection_may_be_missing():
    """Three matrices are a layer."""
    weights = checked(SPEC, {name: tensors()[name] for name in ("query", "key", "value")}, "here")

    assert set(weights.tensors()) == {"query", "key", "value"}


def test_a_file_gives_back_the_bits_that_were_saved(tmp_path):
    """A digest, and with it a graph, outlives a trip through a file."""
    weights = checked(SPEC, tensors(), "here")
    save(weights, tmp_path / "w.safetensors")

    again = load(SPEC, tmp_path / "w.safetensors")

    assert again.digest() == weights.digest()
    assert set(again.tensors()) == set(shapes(SPEC))


@pytest.mark.parametrize("content", [b"", b"\x80\x04K*.", b"\xff" * 64, b"\x02\x00\x00\x00\x00\x00\x00\x00{}junk"])
def test_a_file_that_is_not_safetensors_is_refused(tmp_path, content):
    """A pickle, for one, is never opened as such."""
    file = tmp_path / "weights.safetensors"
    file.write_bytes(content)

    with pytest.raises(InvalidModel, match=r"^weights\.safetensors: "):
        load(SPEC, file)


def test_a_file_cut_short_is_refused(tmp_path):
    """The commonest broken download."""
    file = tmp_path / "weights.safetensors"
    save_file(tensors(), file)
    file.write_bytes(file.read_bytes()[:-5])

    with pytest.raises(InvalidModel, match="not readable as safetensors"):
        load(SPEC, file)


def test_a_file_that_is_not_there_is_refused_with_its_name(tmp_path):
    """An operating system's error is not ours to pass on bare."""
    with pytest.raises(InvalidModel, match=r"^gone\.safetensors: "):
        load(SPEC, tmp_path / "gone.safetensors")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"query": np.zeros((12, 6), np.float32)}, "query has shape (12, 6), but m@1 needs (6, 12)"),
        ({"key": np.zeros((6, 6), np.int32)}, "key has dtype I32; float16, float32 or float64 are served"),
        ({"wq": np.zeros(1, np.float32)}, "unknown tensor 'wq'"),
        ({"key": None}, "tensor 'key' is missing"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_its_header(tmp_path, monkeypatch, change, says):
    """Gigabytes of another model are not read to find that out."""
    file = tmp_path / "weights.safetensors"
    save_file(tensors(**change), file)
    monkeypatch.setattr(np, "fromfile", None)

    with pytest.raises(InvalidModel) as caught:
        load(SPEC, file)

    assert says in caught.value.detail


def test_a_file_that_is_cut_short_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """Somebody copies over it while the service loads it again; a mapped file would end the process."""
    file = tmp_path / "weights.safetensors"
    save_file(tensors(), file)
    read = np.fromfile

    def cut(*arguments):
        os.truncate(file, 0)
        return read(*arguments)

    monkeypatch.setattr(np, "fromfile", cut)

    with pytest.raises(
        InvalidModel, match=r"^weights\.safetensors: not readable as safetensors: the file was cut short"
    ):
        load(SPEC, file)


def offsets(begin, end):
    """A header whose first tensor lies there, and the others nowhere."""
    parts = {
        name: {"dtype": "F32", "shape": list(shapes(SPEC)[name]), "data_offsets": [begin, end]}
        for name in ("query", "key", "value")
    }
    return json.dumps(parts).encode()


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"", "a header of 0 bytes"),
        (b" " * (MAX_HEADER_BYTES + 1), "a header of 1048577 bytes"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "should be an object"),
        (b'{"query": {"dtype": "F32", "shape": [6, 12]}}', "data_offsets"),
        (b'{"query": {"dtype": "F32", "shape": ["six"], "data_offsets": [0, 288]}}', "shape"),
        (offsets(0, 284), "288 bytes of numbers do not lie between 0 and 284"),
        (offsets(-8, 280), "288 bytes of numbers do not lie between -8 and 280"),
        (offsets(2**62, 2**62 + 288), "the file ends too early"),
        (offsets(2**70, 2**70 + 288), "the file ends too early"),
    ],
)
def test_a_header_that_cannot_be_is_refused(tmp_path, header, says):
    """Whatever it says, it is a broken entry and nothing worse."""
    file = tmp_path / "weights.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(1_000))

    with pytest.raises(InvalidModel, match=r"^weights\.safetensors: ") as caught:
        load(SPEC, file)

    assert says in caught.value.detail


def test_metadata_in_a_file_is_passed_over(tmp_path):
    """Most libraries write some."""
    save_file(tensors(), tmp_path / "w.safetensors", {"format": "pt"})

    assert set(load(SPEC, tmp_path / "w.safetensors").tensors()) == set(shapes(SPEC))
