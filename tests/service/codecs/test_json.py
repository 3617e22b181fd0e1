"""JSON in and out: what is accepted, what is refused and where, and that both ways of reading agree."""

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from wire import bits, decode_json, from_tensor_object, tensor_object

from models.errors import AttentionError, InvalidInput, NonFinite, ShapeMismatch
from service.backends.base import BackendInfo
from service.codecs.cut_json import plain_fields
from service.codecs.json import JsonCodec, _request
from service.codecs.requests import FLOATS, MOST_SEQUENCES
from service.codecs.strict_json import json_object
from service.errors import ConflictingFields, InvalidOption, TooLarge, UnknownField, Unparsable, WrongType
from service.messages import AttentionInput, AttentionOutput, TopK
from service.problems import problem

LAW = settings(deadline=None, max_examples=150, derandomize=True)
CODEC = JsonCodec()
BACKEND = BackendInfo("onnx", "cpu", "CPUExecutionProvider", "float32")

sizes = st.integers(1, 4)
float32s = st.floats(width=32, allow_nan=False, allow_infinity=False)
matrices = hnp.arrays(np.float32, st.tuples(sizes, sizes), elements=float32s)


def decode(document: Any, query: str = "") -> AttentionInput:
    body = document if isinstance(document, bytes) else orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return CODEC.decode(body, query)


# ---- round trips


@LAW
@given(matrices)
def test_float32_numbers_arrive_bit_by_bit(x: np.ndarray):
    """A client that writes the shortest digits of a float32 must get the answer for exactly that float32."""
    found = decode({"inputs": x})

    assert found.form == "one"
    assert bits(found.sequences[0].inputs) == bits(x)


@LAW
@given(st.lists(matrices, min_size=1, max_size=4))
def test_sequences_of_any_lengths_arrive_as_a_list(sequences: list[np.ndarray]):
    """Ragged batches are the reason why the contract has lists."""
    found = decode({"inputs": sequences})

    assert found.form == "list"
    assert [bits(s.inputs) for s in found.sequences] == [bits(x) for x in sequences]
    assert [found.pointer(i) for i in range(len(sequences))] == [f"/inputs/{i}" for i in range(len(sequences))]


@LAW
@given(hnp.arrays(np.float64, st.tuples(sizes, sizes), elements=st.floats(-3e38, 3e38)))
def test_decimal_numbers_are_rounded_once(x: np.ndarray):
    """JSON numbers are doubles; the nearest float32 is the only right one."""
    found = decode({"inputs": x.tolist()})

    assert bits(found.sequences[0].inputs) == bits(x.astype(np.float32))


@LAW
@given(st.sampled_from(["float16", "float32", "float64"]), st.data())
def test_tensor_objects_arrive_bit_by_bit_or_rounded_once(dtype: str, data: st.DataObject):
    """Base64 must not cost precision: float32 is untouched, float16 is exact, float64 is rounded to nearest."""
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=3, max_side=4))
    finite: Any = {"allow_nan": False, "allow_infinity": False}
    x = data.draw(hnp.arrays(dtype, shape, elements=finite | ({"max_value": 3e38} if dtype == "float64" else {})))
    x = np.maximum(x, -3e38) if dtype == "float64" else x

    found = decode({"inputs": tensor_object(x)})

    assert found.form == ("one" if x.ndim == 2 else "stack")
    wanted = [x] if x.ndim == 2 else list(x)
    assert [bits(s.inputs) for s in found.sequences] == [bits(w.astype(np.float32)) for w in wanted]


def test_a_tensor_object_may_stand_wherever_numbers_may():
    """The contract says so of every numeric array."""
    x, square = np.eye(2, dtype=np.float32), np.ones((2, 2), np.float32)
    matrices = {name: tensor_object(square) for name in ("query", "key", "value")}

    whole = decode({"inputs": tensor_object(x), "projections": matrices, "attn_bias": tensor_object(square)})
    listed = decode({"inputs": [x, tensor_object(x)], "attn_bias": [tensor_object(square), None]})
    heads = decode({"inputs": x, "attn_bias": tensor_object(np.ones((3, 2, 2)))})

    assert bits(whole.projections.query) == bits(square)
    assert bits(whole.sequences[0].attn_bias) == bits(square)
    assert [bits(s.inputs) for s in listed.sequences] == [bits(x), bits(x)]
    assert bits(listed.sequences[0].attn_bias) == bits(square)
    assert listed.sequences[1].attn_bias is None
    assert heads.sequences[0].attn_bias.shape == (3, 2, 2)


def test_one_tensor_object_may_hold_the_masks_and_biases_of_all_sequences():
    """Whoever sends the sequences as one array has the masks as one array too."""
    x = np.ones((2, 3, 4), np.float32)
    masks = np.arange(18).reshape(2, 3, 3) % 2 == 0
    biases = np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3)

    for inputs in (tensor_object(x), list(x)):
        found = decode({"inputs": inputs, "attn_mask": tensor_object(masks), "attn_bias": tensor_object(biases)})
        assert [s.attn_mask.tolist() for s in found.sequences] == masks.tolist()
        assert [s.attn_bias.tolist() for s in found.sequences] == biases.tolist()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attn_mask", [[[True, False], [False, True]], None]),
        ("attn_mask", [None, [[True]]]),
        ("attn_bias", [[[1, 2], [3, 4]], None]),
        ("attn_bias", [None, [[5]]]),
        ("attn_bias", [[[[1, 2], [3, 4]], [[1, 2], [3, 4]]], [[5]]]),
    ],
)
def test_each_sequence_has_its_own_mask_or_none(field: str, value: list[Any]):
    """Null stands for a sequence that has none."""
    found = decode({"inputs": [[[1], [2]], [[3]]], field: value})

    for sequence, given_value in zip(found.sequences, value, strict=True):
        tensor = getattr(sequence, field)
        assert (None if tensor is None else tensor.tolist()) == given_value


@pytest.mark.parametrize("nothing", [{}, {"attn_mask": None, "attn_bias": None, "projections": None, "model": None}])
def test_null_is_the_same_as_absent(nothing: dict[str, None]):
    """Generated clients write every optional field."""
    found = decode({"inputs": [[1]]} | nothing)

    assert found.sequences[0].attn_mask is None
    assert found.sequences[0].attn_bias is None
    assert found.projections is None
    assert found.options.model is None


@pytest.mark.parametrize(
    "body", [b'\xef\xbb\xbf{"inputs": [[1]]}', b'\r\n\t {"inputs" : [ [ 1 ] ] } \n', b'{"inp\\u0075ts":[[1]]}']
)
def test_unusual_spellings_of_json_are_read(body: bytes):
    """A byte order mark, white space and escapes in names are what some clients send."""
    assert decode(body).sequences[0].inputs.tolist() == [[1]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-0.0", -0.0),
        ("1E2", 100.0),
        ("18446744073709551615", 2.0**64),
        ("18446744073709551616", 2.0**64),
        ("-9223372036854775809", -(2.0**63)),
        ("1" + "0" * 38, 1e38),
        ("1e-400", 0.0),
        ("3.4028235677973366e38", None),  # halfway between the largest float32 and infinity: rounds to infinity
        ("3.4028235677973362e38", 3.4028234663852886e38),
    ],
)
def test_numbers_at_the_edges_are_rounded_or_refused(text: str, value: float | None):
    """Integers beyond 64 bits and numbers next to the largest float32 come from real exporters."""
    body = f'{{"inputs": [[{text}]]}}'.encode()

    if value is None:
        with pytest.raises(NonFinite):
            decode(body)
    else:
        assert bits(decode(body).sequences[0].inputs) == bits(np.array([[value]], np.float32))


def test_every_option_is_read_from_the_body():
    """The names of the contract."""
    found = decode({
        "inputs": [[1]], "model": "lesson@1", "return": ["scores", "outputs", "scores"], "is_causal": True,
        "scale": 2, "average_heads": True, "top_k": 3, "backend": "eager", "encoding": "base64",
    }).options  # fmt: skip

    assert found.wanted == ("outputs", "scores")
    assert (found.model, found.is_causal, found.scale, found.average_heads) == ("lesson@1", True, 2.0, True)
    assert (found.top_k, found.backend, found.encoding) == (3, "eager", "base64")


def test_options_may_stand_in_the_query_string_too():
    """With any body; given twice and equal is fine."""
    found = decode({"inputs": [[1]], "top_k": 3}, "top_k=3&return=outputs,key&is_causal=true&scale=0.5").options

    assert (found.top_k, found.is_causal, found.scale, found.wanted) == (3, True, 0.5, ("outputs", "key"))


# ---- refusals

T = {"shape": [1, 1], "dtype": "float32", "data": "AAAAAA=="}
NAN = {"shape": [1, 1], "dtype": "float32", "data": "AADAfw=="}
P = {"query": [[1]], "key": [[1]], "value": [[1]]}

REFUSED: list[tuple[Any, type[AttentionError], str | None, str]] = [
    # not JSON
    (b"", Unparsable, None, "empty"),
    (b" \n", Unparsable, None, "empty"),
    (b"\xef\xbb\xbf", Unparsable, None, "not JSON"),
    (b'{"inputs": [[NaN]]}', Unparsable, None, "NaN is no JSON number"),
    (b'{"inputs": [[Infinity]]}', Unparsable, None, "Infinity is no JSON number"),
    (b'{"inputs": [[-Infinity]]}', Unparsable, None, "-Infinity is no JSON number"),
    (b'{"inputs": [[1]], "scale": NaN}', Unparsable, None, "NaN"),
    (b'{"inputs": [[1]]} x', Unparsable, None, "line 1, column 19"),
    (b'{"inputs": [[1],]}', Unparsable, None, "line 1, column 17"),
    (b'{"inputs": [[01]]}', Unparsable, None, "not JSON"),
    (b'{"inputs": [[+1]]}', Unparsable, None, "not JSON"),
    (b'{"inputs": [[1]', Unparsable, None, "not JSON"),
    (b"{'inputs': [[1]]}", Unparsable, None, "not JSON"),
    (b'\xff{"inputs": [[1]]}', Unparsable, None, "byte 0 is 0xff"),
    ('{"inputs": [[1]]}'.encode("utf-16"), Unparsable, None, "UTF-8"),
    (b'{"inputs": [[1]], "model": "\xff"}', Unparsable, None, "byte 28 is 0xff"),
    (b"[" * 200_000, Unparsable, None, "nested too deeply"),
    (b'{"a":' * 200_000, Unparsable, None, "nested too deeply"),
    (b'{"inputs": [[1' + b"0" * 5000 + b"]]}", Unparsable, None, "limit"),
    # not an object
    (b"[]", WrongType, "", "an array"),
    (b"[[1, 2]]", WrongType, "", "an array"),
    (b'"text"', WrongType, "", "a string"),
    (b"1", WrongType, "", "a number"),
    (b"true", WrongType, "", "a boolean"),
    (b"null", WrongType, "", "null"),
    # not finite
    (b'{"inputs": [[0, 1e400]]}', NonFinite, "/inputs/0/1", "inf"),
    (b'{"inputs": [[0], [-1e400]]}', NonFinite, "/inputs/1/0", "-inf"),
    ({"inputs": [[0], [1e39]]}, NonFinite, "/inputs/1/0", "too large for float32"),
    (b'{"inputs": [[0, 1' + b"0" * 400 + b"]]}", NonFinite, "/inputs/0/1", "inf"),
    (b'{"inputs": [[0, -1' + b"0" * 400 + b"]]}", NonFinite, "/inputs/0/1", "-inf"),
    ({"inputs": NAN}, NonFinite, "/inputs/0/0", "nan is not a finite number"),
    ({"inputs": [T, NAN]}, NonFinite, "/inputs/1/0/0", "nan"),
    ({"inputs": [[1]], "attn_bias": [[1e39]]}, NonFinite, "/attn_bias/0/0", "too large"),
    ({"inputs": [[[1]], [[1]]], "attn_bias": [None, [[1e39]]]}, NonFinite, "/attn_bias/1/0/0", "too large"),
    ({"inputs": [[1]], "projections": P | {"key": [[1e39]]}}, NonFinite, "/projections/key/0/0", "too large"),
    # elements of the wrong type
    ({"inputs": [[1, None]]}, WrongType, "/inputs/0/1", "expected a number, got null"),
    ({"inputs": [[True, 1]]}, WrongType, "/inputs/0/0", "got a boolean"),
    ({"inputs": [[1], ["1"]]}, WrongType, "/inputs/1/0", "got a string"),
    ({"inputs": [[1], [{}]]}, WrongType, "/inputs/1/0", "got an object"),
    ({"inputs": [1, [2]]}, WrongType, "/inputs/0", "expected a row, got a number"),
    ({"inputs": [[1], 2]}, WrongType, "/inputs/1", "expected a row, got a number"),
    ({"inputs": [[1], [[2]]]}, WrongType, "/inputs/1/0", "got an array"),
    ({"inputs": [[1, [2]], [3, 4]]}, WrongType, "/inputs/0/1", "got an array"),
    ({"inputs": [[1, [2, 3]], [4, 5, 6]]}, ShapeMismatch, "/inputs/1", "3 elements, but row 0 has 2"),
    ({"inputs": [[1], 2, [[3]]]}, WrongType, "/inputs/1", "expected a row, got a number"),
    ({"inputs": [[1], 2], "model": "["}, WrongType, "/inputs/1", "expected a row, got a number"),
    ({"inputs": [[[1]], [2]]}, WrongType, "/inputs/1/0", "expected a row, got a number"),
    ({"inputs": [[[1]], None]}, WrongType, "/inputs/1", "expected rows, got null"),
    ({"inputs": None}, WrongType, "/inputs", "got null"),
    ({"inputs": 1}, WrongType, "/inputs", "got a number"),
    ({"inputs": "[[1]]"}, WrongType, "/inputs", "got a string"),
    ({"inputs": True}, WrongType, "/inputs", "got a boolean"),
    # shapes
    ({}, ShapeMismatch, "/inputs", "missing"),
    ({"model": "lesson"}, ShapeMismatch, "/inputs", "missing"),
    ({"inputs": []}, ShapeMismatch, "/inputs", "no tokens"),
    ({"inputs": [[]]}, ShapeMismatch, "/inputs/0", "no numbers"),
    ({"inputs": [[[]]]}, ShapeMismatch, "/inputs/0/0", "no numbers"),
    ({"inputs": [[[1]], []]}, ShapeMismatch, "/inputs/1", "no rows"),
    ({"inputs": [[1, 2], [1]]}, ShapeMismatch, "/inputs/1", "1 elements, but row 0 has 2"),
    ({"inputs": [[[1]], [[1], [1, 2]]]}, ShapeMismatch, "/inputs/1/1", "2 elements, but row 0 has 1"),
    ({"inputs": T | {"shape": [1]}}, ShapeMismatch, "/inputs", "[1]"),
    ({"inputs": T | {"shape": []}}, ShapeMismatch, "/inputs", "[]"),
    ({"inputs": T | {"shape": [1, 1, 1, 1]}}, ShapeMismatch, "/inputs", "[1, 1, 1, 1]"),
    ({"inputs": T | {"shape": [0, 1, 1], "data": ""}}, ShapeMismatch, "/inputs", "no sequences"),
    ({"inputs": T | {"shape": [0, 1], "data": ""}}, ShapeMismatch, "/inputs", "no tokens"),
    ({"inputs": T | {"shape": [1, 0], "data": ""}}, ShapeMismatch, "/inputs/0", "no numbers"),
    ({"inputs": [T | {"shape": [1]}]}, ShapeMismatch, "/inputs/0", "[1]"),
    ({"inputs": [[[1]]] * (MOST_SEQUENCES + 1)}, TooLarge, "/inputs", "16384"),
    ({"inputs": [[1]], "attn_bias": [[[1]]] * (MOST_SEQUENCES + 1)}, TooLarge, "/attn_bias", "16384"),
    # masks and biases
    ({"inputs": [[1]], "attn_mask": [[1]]}, WrongType, "/attn_mask/0/0", "numbers to be added belong in attn_bias"),
    ({"inputs": [[1], [2]], "attn_mask": [[True, True], [True, 0]]}, WrongType, "/attn_mask/1/1", "attn_bias"),
    ({"inputs": [[1]], "attn_mask": [[0.0]]}, WrongType, "/attn_mask/0/0", "attn_bias"),
    ({"inputs": [[1]], "attn_mask": [["true"]]}, WrongType, "/attn_mask/0/0", "got a string"),
    ({"inputs": [[1]], "attn_mask": [[None]]}, WrongType, "/attn_mask/0/0", "got null"),
    ({"inputs": [[1]], "attn_mask": [True]}, WrongType, "/attn_mask/0", "expected a row"),
    ({"inputs": [[1]], "attn_mask": True}, WrongType, "/attn_mask", "expected rows"),
    ({"inputs": [[1]], "attn_mask": []}, ShapeMismatch, "/attn_mask", "no rows"),
    ({"inputs": [[1]], "attn_mask": [[]]}, ShapeMismatch, "/attn_mask", "expected [1, 1]"),
    ({"inputs": [[1]], "attn_mask": [[True, True]]}, ShapeMismatch, "/attn_mask", "[1, 2], expected [1, 1]"),
    ({"inputs": [[1], [2]], "attn_mask": [[True, True], [True]]}, ShapeMismatch, "/attn_mask/1", "1 elements"),
    ({"inputs": [[1]], "attn_mask": T}, WrongType, "/attn_mask/dtype", "expected bool"),
    ({"inputs": [[1]], "attn_mask": {"shape": [1, 1], "dtype": "bool", "data": "Ag=="}}, InvalidInput,
     "/attn_mask/data", "a byte 0 or 1"),
    ({"inputs": [[[1]]], "attn_mask": [[[True]], [[True]]]}, ShapeMismatch, "/attn_mask", "2 of them for 1"),
    ({"inputs": [[[1]], [[1]]], "attn_mask": []}, ShapeMismatch, "/attn_mask", "0 of them for 2"),
    ({"inputs": [[[1]], [[1]]], "attn_mask": [[True]]}, WrongType, "/attn_mask/0/0", "expected a row"),
    ({"inputs": [[[1]], [[1]]], "attn_mask": True}, WrongType, "/attn_mask", "one entry per sequence"),
    ({"inputs": [[[1]], [[1]]], "attn_mask": [None, [[1]]]}, WrongType, "/attn_mask/1/0/0", "attn_bias"),
    ({"inputs": [[[1]], [[1]]], "attn_mask": [None, [[True, True]]]}, ShapeMismatch, "/attn_mask/1", "[1, 2]"),
    ({"inputs": [[1]], "attn_bias": [[True]]}, WrongType, "/attn_bias/0/0", "got a boolean"),
    ({"inputs": [[1]], "attn_bias": [[1, 2]]}, ShapeMismatch, "/attn_bias", "[1, 2], expected [1, 1] or [heads, 1, 1]"),
    ({"inputs": [[1]], "attn_bias": []}, ShapeMismatch, "/attn_bias", "no rows"),
    ({"inputs": [[1]], "attn_bias": 1}, WrongType, "/attn_bias", "expected rows"),
    ({"inputs": [[1]], "attn_bias": [[[1]], [[1, 2]]]}, ShapeMismatch, "/attn_bias", "different shapes"),
    ({"inputs": [[1]], "attn_bias": [[[[1]]]]}, WrongType, "/attn_bias/0/0/0", "got an array"),
    ({"inputs": [[1]], "attn_bias": T | {"shape": [0, 1, 1], "data": ""}}, ShapeMismatch, "/attn_bias", "[0, 1, 1]"),
    ({"inputs": [[1]], "attn_bias": T | {"shape": [1]}}, ShapeMismatch, "/attn_bias", "[1]"),
    ({"inputs": [[[1]], [[1]]], "attn_bias": [[1, 1], [1, 1]]}, WrongType, "/attn_bias/0/0", "expected a row"),
    ({"inputs": [[[1]]], "attn_bias": [[1]]}, WrongType, "/attn_bias/0/0", "expected a row"),
    ({"inputs": [[[1]]], "attn_bias": T}, ShapeMismatch, "/attn_bias", "[1, 1], expected one for each sequence"),
    ({"inputs": [[[1]]], "attn_bias": T | {"shape": []}}, ShapeMismatch, "/attn_bias", "one for each sequence"),
    # projections
    ({"inputs": [[1]], "projections": []}, WrongType, "/projections", "got an array"),
    ({"inputs": [[1]], "projections": {}}, ShapeMismatch, "/projections/query", "missing"),
    ({"inputs": [[1]], "projections": {"query": [[1]], "key": [[1]]}}, ShapeMismatch, "/projections/value", "missing"),
    ({"inputs": [[1]], "projections": P | {"keys": [[1]]}}, UnknownField, "/projections/keys", "did you mean 'key'?"),
    ({"inputs": [[1]], "projections": P | {"value": 5}}, WrongType, "/projections/value", "expected rows"),
    ({"inputs": [[1]], "projections": P | {"value": None}}, WrongType, "/projections/value", "got null"),
    ({"inputs": [[1]], "projections": P | {"value": [[]]}}, ShapeMismatch, "/projections/value", "[1, 0]"),
    ({"inputs": [[1]], "projections": P | {"value": [[[1]]]}}, WrongType, "/projections/value/0/0", "got an array"),
    ({"inputs": [[1]], "projections": P | {"value": [[1], [2]]}}, ShapeMismatch, "/projections/value", "2 rows"),
    ({"inputs": [[1]], "projections": P | {"key": [[1, 2]]}}, ShapeMismatch, "/projections/key", "query's is [1, 1]"),
    ({"inputs": [[1]], "projections": P, "model": "lesson"}, ConflictingFields, "/projections", "not both"),
    # tensor objects
    ({"inputs": {"dtype": "float32", "data": ""}}, WrongType, "/inputs/shape", "lacks this field"),
    ({"inputs": {"shape": [1, 1], "data": ""}}, WrongType, "/inputs/dtype", "lacks"),
    ({"inputs": {"shape": [1, 1], "dtype": "float32"}}, WrongType, "/inputs/data", "lacks"),
    ({"inputs": T | {"shap": [1]}}, UnknownField, "/inputs/shap", "did you mean 'shape'?"),
    ({"inputs": T | {"shape": [1.0, 1]}}, WrongType, "/inputs/shape", "sizes"),
    ({"inputs": T | {"shape": [True, 1]}}, WrongType, "/inputs/shape", "sizes"),
    ({"inputs": T | {"shape": [-1, -1]}}, WrongType, "/inputs/shape", "sizes"),
    ({"inputs": T | {"shape": "11"}}, WrongType, "/inputs/shape", "sizes"),
    ({"inputs": T | {"shape": [2**40, 1]}}, WrongType, "/inputs/shape", "sizes"),
    ({"inputs": T | {"shape": [1] * 100}}, ShapeMismatch, "/inputs/shape", "no array has the shape"),
    ({"inputs": T | {"shape": [0, 2**39, 2**39], "data": ""}}, ShapeMismatch, "/inputs/shape", "no array"),
    ({"inputs": T | {"shape": [1, 2]}}, ShapeMismatch, "/inputs/data", "4 bytes; [1, 2] of float32 takes 8"),
    ({"inputs": T | {"dtype": "float8"}}, WrongType, "/inputs/dtype", "float16 or float32 or float64"),
    ({"inputs": T | {"dtype": "bool"}}, WrongType, "/inputs/dtype", "got 'bool'"),
    ({"inputs": T | {"dtype": 32}}, WrongType, "/inputs/dtype", "got 32"),
    ({"inputs": T | {"data": 1}}, WrongType, "/inputs/data", "expected a base64 string, got a number"),
    ({"inputs": T | {"data": "AAAAAA"}}, InvalidInput, "/inputs/data", "not base64"),
    ({"inputs": T | {"data": "AAAA AA=="}}, InvalidInput, "/inputs/data", "not base64"),
    ({"inputs": T | {"data": "AAAA-A=="}}, InvalidInput, "/inputs/data", "not base64"),
    ({"inputs": T | {"data": "é"}}, InvalidInput, "/inputs/data", "not base64"),
    (b'{"inputs": {"shape": [1, 1], "dtype": "float32", "data": "\\ud800"}}', InvalidInput, "/inputs/data", "base64"),
    # names
    (b'{"inputs": [[1]], "inputs": [[2]]}', ConflictingFields, "/inputs", "twice"),
    (b'{"inputs": [[1]], "top_k": 1, "top_k": 1}', ConflictingFields, "/top_k", "twice"),
    ({"inputs": [[1]], "is_casual": True}, UnknownField, "/is_casual", "did you mean 'is_causal'?"),
    ({"inputs": [[1]], "returns": ["outputs"]}, UnknownField, "/returns", "did you mean 'return'?"),
    ({"input": [[1]]}, UnknownField, "/input", "did you mean 'inputs'?"),
    ({"inputs": [[1]], "zzz": 1}, UnknownField, "/zzz", "known are inputs, attn_mask"),
    ({"inputs": [[1]], "a/b~c": 1}, UnknownField, "/a~1b~0c", "no such field"),
    ({"inputs": [[1]], "": 1}, UnknownField, "/", "no such field"),
    (b'{"inputs": [[1]], "\\ud800": 1}', UnknownField, "/\ud800", "no such field"),
    # options
    ({"inputs": [[1]], "return": "outputs"}, WrongType, "/return", "a list of tensor names, got a string"),
    ({"inputs": [[1]], "return": None}, WrongType, "/return", "got null"),
    ({"inputs": [[1]], "return": []}, InvalidOption, "/return", "at least 1"),
    ({"inputs": [[1]], "return": ["attention"]}, InvalidOption, "/return/0", "'outputs', 'weights'"),
    ({"inputs": [[1]], "return": ["outputs", 1]}, InvalidOption, "/return/1", "'outputs'"),
    ({"inputs": [[1]], "return": ["key"] * 65}, InvalidOption, "/return", "at most 64"),
    ({"inputs": [[1]], "is_causal": 1}, InvalidOption, "/is_causal", "boolean"),
    ({"inputs": [[1]], "is_causal": "true"}, InvalidOption, "/is_causal", "boolean"),
    ({"inputs": [[1]], "is_causal": None}, InvalidOption, "/is_causal", "boolean"),
    ({"inputs": [[1]], "average_heads": 0}, InvalidOption, "/average_heads", "boolean"),
    ({"inputs": [[1]], "scale": 0}, InvalidOption, "/scale", "greater than 0"),
    ({"inputs": [[1]], "scale": -1}, InvalidOption, "/scale", "greater than 0"),
    ({"inputs": [[1]], "scale": "1"}, InvalidOption, "/scale", "number"),
    ({"inputs": [[1]], "scale": True}, InvalidOption, "/scale", "number"),
    (b'{"inputs": [[1]], "scale": 1e400}', InvalidOption, "/scale", "finite"),
    (b'{"inputs": [[1]], "scale": 1' + b"0" * 400 + b"}", InvalidOption, "/scale", "number"),
    ({"inputs": [[1]], "top_k": 0}, InvalidOption, "/top_k", "greater than or equal to 1"),
    ({"inputs": [[1]], "top_k": 1.0}, InvalidOption, "/top_k", "integer"),
    ({"inputs": [[1]], "top_k": True}, InvalidOption, "/top_k", "integer"),
    ({"inputs": [[1]], "backend": "tensorrt"}, InvalidOption, "/backend", "'onnx', 'eager'"),
    ({"inputs": [[1]], "encoding": "hex"}, InvalidOption, "/encoding", "'json' or 'base64'"),
    ({"inputs": [[1]], "dtype": "float64"}, InvalidOption, "/dtype", "'float32' or 'float16'"),
    ({"inputs": [[1]], "decimals": 10}, InvalidOption, "/decimals", "less than or equal to 9"),
    ({"inputs": [[1]], "decimals": True}, InvalidOption, "/decimals", "valid integer"),
    ({"inputs": [[1]], "decimals": 2, "encoding": "base64"}, ConflictingFields, "/decimals", "leave out"),
    ({"inputs": [[1]], "decimals": 0, "dtype": "float16"}, ConflictingFields, "/decimals", "float16 rounds already"),
    ({"inputs": [[1]], "model": 1}, InvalidOption, "/model", "string"),
    ({"inputs": [[1]], "model": ["lesson"]}, InvalidOption, "/model", "string"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "error", "pointer", "part"), REFUSED, ids=[f"{i}-{case[3][:24]}" for i, case in enumerate(REFUSED)]
)
def test_a_refusal_names_the_place_and_what_would_be_right(
    body: Any, error: type[AttentionError], pointer: str | None, part: str
):
    """A caller must not have to guess; and the refusal itself must be one that can be sent."""
    with pytest.raises(AttentionError) as caught:
        decode(body)

    assert type(caught.value) is error
    assert part in caught.value.detail
    assert [field.pointer for field in caught.value.fields] == ([] if pointer is None else [pointer])
    status, sent, _ = problem(caught.value, "id")
    assert status == {Unparsable: 400, TooLarge: 413}.get(error, 422)
    assert json.loads(sent)["status"] == status


@pytest.mark.parametrize(
    ("query", "error", "pointer", "part"),
    [
        ("top_k=3", ConflictingFields, "/top_k", "the body says 2, the query string 3"),
        ("return=key", ConflictingFields, "/return", "the body says"),
        ("topk=2", UnknownField, "/topk", "did you mean 'top_k'?"),
        ("inputs=1", UnknownField, "/inputs", "no such parameter"),
        ("top_k=2&top_k=3", ConflictingFields, "/top_k", "given twice in the query string: '2' and '3'"),
        ("scale=nan", InvalidOption, "/scale", "finite"),
        ("scale=inf", InvalidOption, "/scale", "finite"),
        ("scale=1e400", InvalidOption, "/scale", "finite"),
        ("scale=", InvalidOption, "/scale", "number"),
        ("top_k=" + "1" * 5000, InvalidOption, "/top_k", ""),
        ("top_k=1.5", InvalidOption, "/top_k", "integer"),
        ("is_causal=maybe", InvalidOption, "/is_causal", "boolean"),
        ("return=", InvalidOption, "/return/0", "'outputs'"),
        ("return=outputs,,weights", InvalidOption, "/return/1", "'outputs'"),
        ("return=" + "key," * 64 + "key", InvalidOption, "/return", "at most 64"),
        ("is_causal", Unparsable, None, "query string"),
        ("model=%ff", Unparsable, None, "query string"),
    ],
)
def test_a_refused_query_string_names_the_parameter(
    query: str, error: type[AttentionError], pointer: str | None, part: str
):
    """Options in the query string are checked as strictly as in the body, and against it."""
    with pytest.raises(error) as caught:
        decode({"inputs": [[1]], "top_k": 2, "return": ["outputs"]}, query)

    assert part in caught.value.detail
    assert [field.pointer for field in caught.value.fields] == ([] if pointer is None else [pointer])


def test_a_body_of_many_names_is_refused_without_looking_each_of_them_up():
    """A parser that searches an object for a name took 100,000² / 2 steps of them, minutes for a megabyte."""
    body = b"{" + b",".join(b'"%d":1' % i for i in range(100_000)) + b"}"

    for text in (body, b'{"inputs":[[1]],"projections":' + body + b"}"):
        with pytest.raises(UnknownField):
            decode(text)


# ---- the fast way and the slow way

numbers = st.one_of(st.integers(-3, 3), st.floats(-1e3, 1e3), st.sampled_from([1e39, 2**63, 2**64, -0.0, 1e-320]))
scalars = st.one_of(numbers, st.booleans(), st.none(), st.sampled_from(["", "[", "]", "a[[", "key"]))
rows = st.lists(st.one_of(numbers, numbers, numbers, scalars, st.lists(numbers, max_size=2)), max_size=3)
squares = st.integers(1, 3).flatmap(
    lambda n: st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=1, max_size=3)
)
objects = st.fixed_dictionaries(
    {"shape": st.just([1, 1]), "dtype": st.sampled_from(["float32", "bool"])}, optional={"data": st.just("AAAAAA==")}
)
anything = st.recursive(
    st.one_of(scalars, rows, squares, objects, st.lists(st.one_of(rows, squares, numbers), max_size=3)),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)
documents = st.fixed_dictionaries(
    {"inputs": anything},
    optional={
        "attn_mask": st.one_of(anything, st.lists(st.lists(st.booleans(), max_size=2), max_size=2)),
        "attn_bias": anything,
        "projections": st.one_of(
            anything,
            st.fixed_dictionaries({"query": squares, "key": squares, "value": anything}),
            st.dictionaries(st.sampled_from(["query", "key", "value", "x"]), anything, max_size=4),
        ),
        "return": st.one_of(anything, st.lists(st.sampled_from(["outputs", "key"]), max_size=3)),
        "top_k": scalars,
        "scale": scalars,
        "is_causal": scalars,
        "model": scalars,
        "other": anything,
    },
)


def outcome(fields: dict[str, Any]) -> Any:
    """A request in comparable form, or the error that it is and where."""
    try:
        found = _request(fields, "")
    except AttentionError as error:
        return type(error), [field.pointer for field in error.fields]
    tensors = [
        None if tensor is None else (tensor.dtype.str, tensor.shape, bits(tensor))
        for sequence in found.sequences
        for tensor in (sequence.inputs, sequence.attn_mask, sequence.attn_bias)
    ]
    own = found.projections
    matrices = None if own is None else [(m.shape, bits(m)) for m in (own.query, own.key, own.value)]
    return found.form, found.options, tensors, matrices


@settings(LAW, max_examples=1000)
@given(documents, st.sampled_from([None, 1]), st.booleans())
@example({"inputs": [[1], 2, [[3]]]}, None, True)
@example({"inputs": [[1], 2], "model": "["}, None, True)
@example({"inputs": [[1, [2]], [3, 4]]}, None, True)
@example({"inputs": [[[1]]], "attn_bias": [[1]]}, None, True)
@example({"inputs": [[[1], [2]], [[3]]], "attn_bias": [[[1, 2], [3, 4]], [[1]]]}, None, True)
def test_the_fast_way_and_the_slow_way_are_one_format(document: dict[str, Any], indent: int | None, ascii_only: bool):
    """The fast way may give up, but what it reads must be what the standard library reads."""
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()

    fast = plain_fields(body, "inputs")

    found = None if fast is None else outcome(fast)
    if found is not None and isinstance(found[0], str):  # an error is looked for again, to the letter
        assert found == outcome(json_object(body, "inputs"))


@LAW
@given(matrices, st.lists(matrices, min_size=1, max_size=3))
def test_plain_numbers_take_the_fast_way(x: np.ndarray, sequences: list[np.ndarray]):
    """A fast way that always gives up would pass the law above."""
    for inputs in (x, sequences):
        body = orjson.dumps({"inputs": inputs, "model": "m", "top_k": 3}, option=orjson.OPT_SERIALIZE_NUMPY)
        fields = plain_fields(body, "inputs")
        assert fields is not None
        found = fields["inputs"] if isinstance(inputs, list) else [fields["inputs"]]
        assert all(isinstance(array, np.ndarray) for array in found)


# ---- rubbish


@settings(LAW, max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_name(body: bytes):
    """Nothing that a caller sends may raise anything but an error of ours, and each of them can be sent."""
    with pytest.raises(AttentionError) as caught:
        decode(body)
    problem(caught.value, "id")


VALID = [
    b'{"inputs":[[1.5,-2e3],[3,4]],"attn_mask":[[true,false],[true,true]],"top_k":1,"return":["outputs"]}',
    b'{"inputs":[[[1,2]],[[3,4]]],"attn_bias":[[[1]],null],"model":"lesson","scale":0.5}',
    b'{"inputs":{"shape":[1,1],"dtype":"float32","data":"AAAAAA=="},"attn_bias":{"shape":[1,1],"dtype":"float16","data":"AAA="}}',
    b'{"inputs":[[1]],"projections":{"query":[[1]],"key":[[1]],"value":[[1]]},"encoding":"base64"}',
]


@settings(LAW, max_examples=600)
@given(st.sampled_from(VALID), st.data())
def test_a_damaged_body_is_read_or_refused_by_name(body: bytes, data: st.DataObject):
    """Truncated, flipped, cut and doubled: close to valid is where parsers break."""
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        body = data.draw(
            st.sampled_from([
                body[:at],
                body[:at] + body[at + 1 :],
                body[:at] + body[at : at + 9] * 2 + body[at + 9 :],
                body[:at] + bytes([body[at] ^ 1 << data.draw(st.integers(0, 7))]) + body[at + 1 :] if body else b"",
                body[:at] + data.draw(st.sampled_from([b"[", b"]", b'"', b",", b"1e999", b"null", b"\\ud800", b"{}"]))
                + body[at:],
            ])
        )  # fmt: skip
    try:
        decode(body)
    except AttentionError as error:
        problem(error, "id")


# ---- answers


def output(
    answers: list[dict[str, Any]], form: str, encoding: str = "json", dead: list[list[int]] | None = None, **fields: Any
):
    return AttentionOutput(
        answers, dead or [[] for _ in answers], form, encoding, ("lesson", "1"), BACKEND, **fields  # type: ignore[arg-type]
    )  # fmt: skip


@LAW
@given(matrices)
def test_written_float32_read_back_bit_by_bit(x: np.ndarray):
    """The fewest digits that keep the number."""
    document = json.loads(CODEC.encode(output([{"outputs": x}], "one")))

    assert bits(np.array(document["outputs"], np.float64).astype(np.float32)) == bits(x)


def test_a_masked_score_is_null_in_json_and_minus_infinity_in_base64():
    """JSON has no infinity."""
    scores = np.array([[1, -np.inf]], np.float32)

    numbers = json.loads(CODEC.encode(output([{"scores": scores}], "one")))
    base64 = json.loads(CODEC.encode(output([{"scores": scores}], "one", "base64")))

    assert numbers["scores"] == [[1, None]]
    assert from_tensor_object(base64["scores"]).tolist() == [[1, -math.inf]]


@pytest.mark.parametrize("encoding", ["json", "base64"])
def test_answers_are_nested_as_the_request_was(encoding: str):
    """One in, one out; a list in, a list out; one array in, one array out."""
    x, y = np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)

    one = json.loads(CODEC.encode(output([{"outputs": x}], "one", encoding)))
    several = json.loads(CODEC.encode(output([{"outputs": x}, {"outputs": y}], "list", encoding)))
    stack = json.loads(CODEC.encode(output([{"outputs": x}, {"outputs": x}], "stack", encoding)))

    if encoding == "json":
        assert one["outputs"] == x.tolist()
        assert several["outputs"] == [x.tolist(), y.tolist()]
        assert stack["outputs"] == [x.tolist(), x.tolist()]
    else:
        assert from_tensor_object(one["outputs"]).tolist() == x.tolist()
        assert [from_tensor_object(part).tolist() for part in several["outputs"]] == [x.tolist(), y.tolist()]
        assert from_tensor_object(stack["outputs"]).tolist() == [x.tolist(), x.tolist()]


@pytest.mark.parametrize("encoding", ["json", "base64"])
@pytest.mark.parametrize("form", ["one", "list", "stack"])
def test_sparse_weights_are_indices_and_values(encoding: str, form: str):
    """In every nesting and encoding."""
    indices, values = np.array([[[1, 0]]], np.int32), np.array([[[0.75, 0.25]]], np.float32)
    answers = [{"weights": TopK(indices, values)}] * (1 if form == "one" else 2)

    found = decode_json(CODEC.encode(output(answers, form, encoding)), None if form == "one" else 2)

    for got_indices, got_values in found.tensors["weights"]:
        assert got_indices.tolist() == indices.tolist()
        assert got_values.tolist() == values.tolist()
    assert len(found.tensors["weights"]) == len(answers)


@pytest.mark.parametrize("encoding", ["json", "base64"])
@pytest.mark.parametrize("form", ["one", "list", "stack"])
def test_views_of_a_larger_result_are_written_right(encoding: str, form: str):
    """Backends answer with views of what they computed: heads of one product, in any memory order."""
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensor = whole.transpose(2, 0, 1)[::2]
    sparse = TopK(tensor.astype(np.int32).transpose(2, 1, 0), tensor.transpose(2, 1, 0))
    count = 1 if form == "one" else 2

    document = CODEC.encode(output([{"query": tensor, "weights": sparse}] * count, form, encoding))

    found = decode_json(document, None if form == "one" else 2)
    assert [x.tolist() for x in found.tensors["query"]] == [tensor.tolist()] * count
    assert [values.tolist() for _, values in found.tensors["weights"]] == [sparse.values.tolist()] * count


def test_rows_that_see_nothing_are_listed_only_where_there_are_some():
    """Per sequence where there are several."""
    tensors = {"outputs": np.zeros((2, 1), np.float32)}

    none = json.loads(CODEC.encode(output([tensors], "one")))
    one = json.loads(CODEC.encode(output([tensors], "one", dead=[[1]])))
    several = json.loads(CODEC.encode(output([tensors, tensors], "list", dead=[[], [0, 1]])))

    assert "fully_masked_rows" not in none
    assert one["fully_masked_rows"] == [1]
    assert several["fully_masked_rows"] == [[], [0, 1]]


def test_an_answer_names_its_model_and_backend():
    """The fields of the contract, with their names."""
    document = json.loads(CODEC.encode(output([{"outputs": np.zeros((1, 1), np.float32)}], "one")))

    assert document["model"] == {"name": "lesson", "version": "1"}
    assert document["backend"] == {
        "name": "onnx", "device": "cpu", "provider": "CPUExecutionProvider", "dtype": "float32",
    }  # fmt: skip


def test_every_dtype_of_the_contract_is_read():
    """And little-endian, whatever this machine is."""
    assert {name: dtype.str for name, dtype in FLOATS.items()} == {"float16": "<f2", "float32": "<f4", "float64": "<f8"}


# ---- smaller answers

EVERY_FLOAT16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def test_every_float16_is_written_with_the_fewest_digits_that_keep_it():
    """All 63488 finite ones."""
    x = EVERY_FLOAT16[np.isfinite(EVERY_FLOAT16)]

    text = CODEC.encode(output([{"outputs": x[None]}], "one"))

    assert bits(np.array(json.loads(text)["outputs"][0]).astype(np.float16)) == bits(x)
    written = json.loads(text, parse_float=Decimal)["outputs"][0]
    assert written == [Decimal(str(number)) for number in x]


@LAW
@given(hnp.arrays(np.float16, st.tuples(sizes, sizes, sizes)), st.sampled_from(["json", "base64"]))
def test_float16_read_back_bit_by_bit(x: np.ndarray, encoding: str):
    """In numbers and in base64, whatever the memory order."""
    x = np.where(np.isfinite(x), x, np.float16(-np.inf)).T

    document = json.loads(CODEC.encode(output([{"scores": x}], "one", encoding)))

    if encoding == "json":
        numbers = np.array(document["scores"], np.float64)
        assert bits(np.where(np.isnan(numbers), -np.inf, numbers).astype(np.float16)) == bits(x)
    else:
        assert document["scores"]["dtype"] == "float16"
        assert bits(from_tensor_object(document["scores"])) == bits(x)


modest = st.floats(-1e6, 1e6, width=32) | st.floats(-1, 1, width=32) | st.just(-np.inf)


@LAW
@given(hnp.arrays(np.float32, st.tuples(sizes, sizes), elements=modest | float32s), st.integers(0, 9))
@example(np.array([[0.5, 1.5, -0.5, 2.5, -0.0]], np.float32), 0)
@example(np.array([[0.123000003, 0.0004999, 1, 8388607.5, 4194303.75]], np.float32), 3)
@example(np.array([[1e-9, 9e6, 4503599.5, 3e38, 0.1]], np.float32), 9)
def test_numbers_are_rounded_to_decimals_and_have_no_more(x: np.ndarray, decimals: int):
    """To the nearest, and exactly half way to the even one; zero has no sign, and no digit is noise."""
    text = CODEC.encode(output([{"scores": x}], "one", decimals=decimals))

    written = [n for row in json.loads(text, parse_float=Decimal)["scores"] for n in row]
    for number, exact in zip(written, x.ravel().tolist(), strict=True):
        if exact == -np.inf:
            assert number is None
            continue
        assert number == 0 or -number.normalize().as_tuple().exponent <= decimals
        if abs(exact) < 1e6:
            assert number == round(Decimal(exact), decimals)
        else:
            assert float(number) == pytest.approx(exact, rel=1e-15, abs=0.5 * 10**-decimals)
        assert not (number == 0 and number.is_signed())


@pytest.mark.parametrize("form", ["one", "list", "stack"])
def test_decimals_are_those_of_every_tensor_but_no_index(form: str):
    """In every nesting."""
    sparse = TopK(np.array([[2, 0]], np.int32), np.array([[2 / 3, 1 / 3]], np.float32))
    count = 1 if form == "one" else 2

    text = CODEC.encode(output([{"outputs": sparse.values, "weights": sparse}] * count, form, decimals=3))

    found = decode_json(text, None if form == "one" else 2)
    assert text.count(b"[0.667,0.333]") == 2 * count
    assert [indices.tolist() for indices, _ in found.tensors["weights"]] == [[[2, 0]]] * count


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("dtype", "decimals", "says"), [("<f4", 2, b"0.67,0.33"), ("<f2", None, b"0.6665,0.3333")])
def test_bertviz_gets_rounded_weights(heads: int, dtype: str, decimals: int | None, says: bytes):
    """Drawing needs no more."""
    weights = np.array([[[2 / 3, 1 / 3]] * 2] * heads, dtype)

    text = CODEC.encode(
        output([{"weights": weights[0] if heads == 1 else weights}], "one", format="bertviz", decimals=decimals)
    )

    assert text.count(b"[" + says + b"]") == 2 * heads
    assert np.shape(json.loads(text)["attention"]) == (1, 1, heads, 2, 2)
