"""JSON bodies whose arrays are cut out: whatever is found must be what reading to the letter finds, and never more."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from wire import bits, tensor_object

from models.errors import AttentionError
from service.codecs import cut_json, v2_rest
from service.codecs.json import JsonCodec, _request
from service.codecs.strict_json import json_object
from service.codecs.v2 import InferRequest
from service.lane import ALONE, Team, in_turn
from service.messages import AttentionInput

LAW = settings(deadline=None, max_examples=200, derandomize=True)
CODEC = JsonCodec()

sizes = st.integers(1, 6)
floats = st.integers(-31, 31).map(lambda quarters: quarters / 4)  # so short that no row is longer than two pieces
matrices = hnp.arrays(np.float32, st.tuples(sizes, sizes), elements=floats)


@pytest.fixture(autouse=True)
def tiny_pieces() -> Iterator[None]:
    """So that a body of a few bytes has many of them, and every array is cut out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_json, "PART", 16)
        patch.setattr(cut_json, "SHORT_STRING", 16)
        patch.setattr(cut_json, "SHORT_ROW", 4)
        yield


THREE = Team(in_turn, 3)


def plain(body: bytes, query: str = "") -> AttentionInput | None:
    """What cutting finds, as one and in three parts."""
    alone = CODEC.decode_plain(body, query, ALONE)
    together = CODEC.decode_plain(body, query, THREE)
    assert (alone is None) == (together is None)
    if alone is not None and together is not None:
        assert_same(alone, together)
    return alone


def assert_same(one: AttentionInput, other: AttentionInput) -> None:
    assert (one.form, one.options) == (other.form, other.options)
    assert len(one.sequences) == len(other.sequences)
    pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(one.sequences, other.sequences, strict=True)
             for name in ("inputs", "attn_mask", "attn_bias")]  # fmt: skip
    if one.projections is not None and other.projections is not None:
        pairs += [(getattr(one.projections, n), getattr(other.projections, n)) for n in ("query", "key", "value")]
    assert (one.projections is None) == (other.projections is None)
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.shape, a.dtype, bits(a)) == (b.shape, b.dtype, bits(b))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A request that is right."""
    count = draw(st.integers(0, 3))  # 0: one sequence, not a list
    inputs = [draw(matrices) for _ in range(max(1, count))]
    square = [hnp.arrays(np.float32, (len(x), len(x)), elements=floats) for x in inputs]
    document: dict[str, Any] = {"inputs": [x.tolist() for x in inputs] if count else inputs[0].tolist()}
    if draw(st.booleans()):
        masks = [draw(hnp.arrays(np.bool_, (len(x), len(x)))).tolist() for x in inputs]
        document["attn_mask"] = masks if count else masks[0]
    if draw(st.booleans()):
        biases = [draw(each).tolist() for each in square]
        document["attn_bias"] = biases if count else [biases[0], biases[0]]
    if draw(st.booleans()):
        document["model"] = draw(st.sampled_from(["lesson", "cut:0", "[1, 2]", "naïve"]))
    elif draw(st.booleans()):
        document["projections"] = {name: draw(matrices).tolist() for name in ("query", "key", "value")}
    if draw(st.booleans()):
        document["return"] = ["outputs", "scores"]
    return {name: document[name] for name in draw(st.permutations(list(document)))}


def whole(body: bytes, query: str = "") -> AttentionInput | None:
    """What reading to the letter finds, None where something is wrong."""
    try:
        return _request(json_object(body, "inputs"), query)
    except AttentionError:
        return None


@LAW
@given(documents(), st.sampled_from([None, 1]), st.sampled_from(["", "is_causal=true"]))
def test_a_body_in_pieces_is_the_body(document: dict[str, Any], indent: int | None, query: str):
    """Bit by bit, however it is spelled; what may be wrong about it, such as projections of odd shapes, is left out."""
    body = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    wanted = whole(body, query)

    got = plain(body, query)

    if wanted is None:
        assert got is None
    elif got is not None or '"cut:' not in body.decode():
        assert_same(got, wanted)


DAMAGE = [b"", b"[", b"]", b"]]", b",", b'"', b"{", b"}", b":", b"1", b"-", b" ", b"e9", b"null", b"true", b"NaN",
          b"[]", b"{}", b"],[", b"\\", b"\xff", b"\0"]  # fmt: skip


@LAW
@given(documents(), st.data())
def test_a_damaged_body_is_never_taken_for_another(document: dict[str, Any], data: st.DataObject):
    """What is found in steps is what the whole says; what the whole refuses is never found."""
    body = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        piece = data.draw(st.sampled_from(DAMAGE))
        body[at : at + data.draw(st.integers(0, 2))] = piece
    wanted = whole(bytes(body))

    got = plain(bytes(body))

    if got is not None:
        assert wanted is not None
        assert_same(got, wanted)


ROWS = "[1.25, 2.5, 3.75], [4.25, 5.5, 6.75], [7.25, 8.5, 9.75]"


@pytest.mark.parametrize(
    "text",
    [
        f'{{"inputs": [{ROWS}], "inputs": [{ROWS}]}}',  # twice
        f'{{"inputs": [{ROWS}, [1, 2]]}}',
        f'{{"inputs": [{ROWS}, [1, 2, [3]]]}}',
        f'{{"inputs": [{ROWS}, [1, 2, true]]}}',
        f'{{"inputs": [{ROWS}, [1, 2, "3"]]}}',
        f'{{"inputs": [{ROWS}, [1, 2, NaN]]}}',
        f'{{"inputs": [{ROWS}, [1, 2, 1e39]]}}',
        f'{{"inputs": [{ROWS}, [1, 2, null]]}}',
        f'{{"inputs": [{ROWS}, [1, 2, {{}}]]}}',
        f'{{"inputs": [{ROWS}, 1]}}',
        f'{{"inputs": [{ROWS}, []]}}',
        f'{{"inputs": [{ROWS},]}}',
        f'{{"inputs": [{ROWS}]]}}',
        f'{{"inputs": [{ROWS}]',
        f'{{"inputs": [{ROWS}]}} [1]',
        f'{{"inputs": {ROWS}}}',
        f'{{"model": [{ROWS}], "inputs": [[1]]}}',
        f'{{"model": {ROWS}, "inputs": [[1]]}}',
        f'{{"inputs": [[1]], [{ROWS}]: 1}}',
        f'{{"inputs": [{ROWS}], "attn_mask": [{ROWS}]}}',
        f'{{"inputs": [{ROWS}], "attn_bias": [[true, true, true], [true, true, true], [true, true, true]]}}',
        '{"inputs": [[true, false, true, false], [true, false, true, false]]}',
        '{"inputs": [1.25, 2.5, 3.75, 4.25, 5.5, 6.75, 7.25, 8.5, 9.75, 1.25, 2.5, 3.75]}',
        f'{{"inputs": ["cut:0", {ROWS}]}}',
        f'{{"inputs": [{ROWS}], "attn_mask": ["cut:0"]}}',
        f'{{"inputs": [{ROWS}], "return": [{ROWS}]}}',
        f'{{"inputs": {{"shape": [{ROWS}], "dtype": "float32", "data": ""}}}}',
        f'[{{"inputs": [{ROWS}]}}]',
        f"[{ROWS}]",
        '{"inputs": [' + "[" * 9_999 + "1" + "]" * 9_999 + "]}",
        '{"inputs": {"shape": [3, 4], "dtype": "float32", "data": "' + "AAAA" * 7 + 'AA==" }}',  # too short
        '{"inputs": {"shape": [2, 4], "dtype": "float32", "data": "' + "AAA=" * 16 + '"}}',  # padding within
        '{"inputs": {"shape": [2, 4], "dtype": "float32", "data": "' + "AA-A" * 16 + '"}}',
    ],
)
def test_what_is_wrong_is_left_to_reading_the_whole(text: str):
    """That knows the place and the words; see `test_json.py` for them."""
    assert plain(text.encode()) is None
    with pytest.raises(AttentionError):
        CODEC.decode(text.encode(), "")


@LAW
@given(st.sampled_from(["float16", "float32", "float64"]), hnp.array_shapes(min_dims=2, max_dims=3, max_side=5))
def test_tensor_objects_are_the_same_in_pieces(dtype: str, shape: tuple[int, ...]):
    """A megabyte of base64 is no less in the way than one of numbers."""
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    body = orjson.dumps({"inputs": tensor_object(x), "model": "lesson"})

    got = plain(body)

    assert got is not None
    assert_same(got, whole(body))


def test_a_mask_of_bytes_is_the_same_in_pieces():
    x, keep = np.ones((5, 2), np.float32), np.arange(25).reshape(5, 5) % 3 == 0
    body = orjson.dumps({"inputs": tensor_object(x), "attn_mask": tensor_object(keep)})

    got = plain(body)

    assert got is not None
    assert_same(got, whole(body))


@LAW
@given(hnp.arrays(np.float32, st.tuples(sizes, sizes), elements=st.floats(width=32, allow_nan=False)))
def test_numbers_of_any_length_are_the_same_in_pieces(x: np.ndarray):
    """Also where only some of the rows are longer than two pieces; such a body may have to be read as a whole."""
    body = json.dumps({"inputs": x.tolist()}).encode()

    got = plain(body)

    if got is not None:
        assert_same(got, whole(body))


@pytest.mark.parametrize("limit", ["MOST_MARKS", "REST"])
def test_a_body_of_too_many_parts_is_read_as_a_whole(monkeypatch: pytest.MonkeyPatch, limit: str):
    """Each of them costs something beside its bytes."""
    monkeypatch.setattr(cut_json, limit, 1)

    assert plain(f'{{"model": "a longer name", "inputs": [{ROWS}, [1, 2], {ROWS}]}}'.encode()) is None


@LAW
@given(matrices, st.booleans(), st.booleans())
def test_the_protocol_of_v2_is_read_in_pieces_too(x: np.ndarray, flat: bool, masked: bool):
    """There an array may be flat, and is cut within."""
    n = len(x)
    keep = np.arange(n * n).reshape(n, n) % 2 == 0
    tensors = [{"name": "inputs", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1) if flat else x}]
    if masked:
        data = (keep.reshape(-1) if flat else keep).tolist()
        tensors.append({"name": "attn_mask", "shape": [n, n], "datatype": "BOOL", "data": data})
    body = orjson.dumps({"id": "7", "inputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)

    got: InferRequest | None = v2_rest.decode_plain(body, "", "lesson", THREE)

    wanted = v2_rest._request(v2_rest._outline(json_object(body, "inputs"), "lesson", 0), memoryview(b""))
    assert got is not None
    assert (got.id, got.outputs, got.binary, got.timeout_s) == (
        wanted.id,
        wanted.outputs,
        wanted.binary,
        wanted.timeout_s,
    )
    assert_same(got.attention, wanted.attention)


@pytest.mark.parametrize(
    "entry",
    [
        {"datatype": "FP32", "data": "AAAA" * 16},
        {"datatype": "FP32", "data": [True, False] * 8},
        {"datatype": "BOOL", "data": [1.25, 2.5] * 8},
        {"datatype": "FP32", "data": [1.25, 2.5] * 7},
        {"datatype": "FP16", "data": [1.25, 2.5] * 8},
    ],
)
def test_what_is_wrong_by_the_protocol_is_left_to_reading_the_whole(entry: dict[str, Any]):
    body = orjson.dumps({"inputs": [{"name": "inputs", "shape": [4, 4]} | entry]})

    assert v2_rest.decode_plain(body, "", "lesson", THREE) is None
    with pytest.raises(AttentionError):
        v2_rest.decode(body, "", "lesson")
