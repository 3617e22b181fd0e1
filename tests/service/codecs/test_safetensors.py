"""safetensors in and out, against the format's own library."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from wire import bits, decode_safetensors, safetensors_file, safetensors_of

from models.errors import AttentionError, NonFinite, ShapeMismatch
from service.backends.base import BackendInfo
from service.codecs.requests import MOST_SEQUENCES
from service.codecs.safetensors import MAX_HEADER, SafetensorsCodec
from service.errors import ConflictingFields, InvalidOption, TooLarge, UnknownField, Unparsable, WrongType
from service.messages import AttentionInput, AttentionOutput, TopK
from service.problems import problem

LAW = settings(deadline=None, max_examples=150, derandomize=True)
CODEC = SafetensorsCodec()

sizes = st.integers(1, 4)
finite: Any = {"allow_nan": False, "allow_infinity": False}
matrices = hnp.arrays(np.float32, st.tuples(sizes, sizes), elements=finite)


def decode(tensors: Any, query: str = "") -> AttentionInput:
    return CODEC.decode(tensors if isinstance(tensors, bytes) else safetensors_file(tensors), query)


# ---- round trips


@LAW
@given(st.sampled_from(["float16", "float32", "float64"]), st.data())
def test_tensors_arrive_bit_by_bit_or_rounded_once(dtype: str, data: st.DataObject):
    """float32 is untouched, float16 is exact, float64 is rounded to nearest."""
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=3, max_side=4))
    x = data.draw(hnp.arrays(dtype, shape, elements=finite))
    x = np.clip(x, -3e38, 3e38) if dtype == "float64" else x

    found = decode({"inputs": x})

    assert found.form == ("one" if x.ndim == 2 else "stack")
    wanted = [x] if x.ndim == 2 else list(x)
    assert [bits(s.inputs) for s in found.sequences] == [bits(w.astype(np.float32)) for w in wanted]


@LAW
@given(st.lists(matrices, min_size=1, max_size=12))
def test_numbered_tensors_are_a_list_in_the_order_of_their_numbers(sequences: list[np.ndarray]):
    """`inputs.10` follows `inputs.9`, wherever it stands in the file."""
    found = decode({f"inputs.{i}": x for i, x in reversed(list(enumerate(sequences)))})

    assert found.form == "list"
    assert [bits(s.inputs) for s in found.sequences] == [bits(x) for x in sequences]


def test_masks_biases_and_projections_come_by_name():
    """Every tensor of the contract."""
    x, mask, bias = np.ones((2, 3), np.float32), np.eye(2, dtype=bool), np.full((2, 2, 2), 7, np.float16)
    own = {f"projections.{name}": np.full((3, 2), i, np.float64) for i, name in enumerate(("query", "key", "value"))}

    found = decode({"inputs": x, "attn_mask": mask, "attn_bias": bias} | own, "is_causal=true&return=key")

    (sequence,) = found.sequences
    assert sequence.attn_mask.tolist() == mask.tolist()
    assert sequence.attn_bias.tolist() == bias.tolist()
    assert sequence.attn_bias.dtype == np.float32
    assert found.projections.value.tolist() == own["projections.value"].tolist()
    assert found.options.is_causal
    assert found.options.wanted == ("key",)


def test_a_stack_has_stacked_masks_and_biases():
    """One array of sequences, one array of masks."""
    x, mask = np.ones((2, 3, 4), np.float32), np.arange(18).reshape(2, 3, 3) % 2 == 0
    bias = np.arange(18, dtype=np.float32).reshape(2, 3, 3)

    found = decode({"inputs": x, "attn_mask": mask, "attn_bias": bias})

    assert [s.attn_mask.tolist() for s in found.sequences] == mask.tolist()
    assert [s.attn_bias.tolist() for s in found.sequences] == bias.tolist()


def test_of_a_list_some_sequences_may_have_a_mask():
    """A tensor that is not there is no mask."""
    tensors = {f"inputs.{i}": np.ones((2, 1), np.float32) for i in range(3)}
    found = decode(tensors | {"attn_mask.1": np.eye(2, dtype=bool), "attn_bias.2": np.ones((2, 2), np.float32)})

    assert [s.attn_mask is None for s in found.sequences] == [True, False, True]
    assert [s.attn_bias is None for s in found.sequences] == [True, True, False]


def test_float32_tensors_are_views_of_the_body():
    """A copy of every body is what the format is meant to save."""
    body = safetensors_file({
        "inputs": np.ones((4, 4), np.float32), "attn_mask": np.eye(4, dtype=bool),
        "projections.query": np.ones((4, 2), np.float32), "projections.key": np.ones((4, 2), np.float32),
        "projections.value": np.ones((4, 2), np.float32),
    })  # fmt: skip
    raw = np.frombuffer(body, np.uint8)

    found = decode(body)

    assert np.shares_memory(found.sequences[0].inputs, raw)
    assert np.shares_memory(found.sequences[0].attn_mask, raw)
    assert np.shares_memory(found.projections.value, raw)


def test_an_unaligned_tensor_is_read_right():
    """The format asks for aligned data, but not every writer pads its header."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    header = json.dumps({"inputs": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()

    for pad in range(8):
        found = decode(safetensors_of(header + b" " * pad, x.tobytes()))
        assert found.sequences[0].inputs.flags.aligned
        assert bits(found.sequences[0].inputs) == bits(x)


def test_what_is_remembered_of_a_body_holds_for_no_other():
    """What is known of one that was right says nothing of the numbers, the rest or the options of the next."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    body, broken = safetensors_file({"inputs": x}), safetensors_file({"inputs": np.where(x == 4, np.nan, x)})

    for _ in range(2):
        assert bits(decode(body).sequences[0].inputs) == bits(x)
        assert bits(decode({"inputs": x + 1}).sequences[0].inputs) == bits(x + 1)
        assert decode(body, "is_causal=true").options.is_causal
        assert not decode(body).options.is_causal
        with pytest.raises(NonFinite) as caught:
            decode(broken)
        assert [field.pointer for field in caught.value.fields] == ["/inputs/1/1"]
        with pytest.raises(UnknownField):
            decode(body, "causal=true")
        with pytest.raises(ConflictingFields):
            decode(body, "format=bertviz&top_k=1")
        for other in (body[:-4], body + b"more", body[:-24], body[:9], body[:7]):
            with pytest.raises(Unparsable):
                decode(other)


# ---- refusals


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ONE = np.ones((1, 1), np.float32)
TRUE = np.ones((1, 1), bool)
OWN = {f"projections.{name}": ONE for name in ("query", "key", "value")}
Z = bytes

REFUSED: list[tuple[Any, type[AttentionError], str | None, str]] = [
    # not safetensors
    (b"", Unparsable, None, "0 bytes"),
    (b"1234567", Unparsable, None, "7 bytes"),
    (b"\xff" * 16, Unparsable, None, "18446744073709551615 bytes"),
    ((MAX_HEADER + 1).to_bytes(8, "little") + b" " * (MAX_HEADER + 1), Unparsable, None, "1048576 are allowed"),
    ((100).to_bytes(8, "little") + b"{}", Unparsable, None, "100 bytes; 2 follow"),
    (safetensors_of(b""), Unparsable, None, "not JSON"),
    (safetensors_of(b"{"), Unparsable, None, "not JSON"),
    (safetensors_of(b"\xff\xff"), Unparsable, None, "not JSON"),
    (safetensors_of(b"[" * 5000), Unparsable, None, "not JSON"),
    (safetensors_of([]), Unparsable, None, "not a JSON object"),
    (safetensors_of("inputs"), Unparsable, None, "not a JSON object"),
    # entries
    (safetensors_of({"inputs": None}), Unparsable, None, "not described"),
    (safetensors_of({"inputs": [1]}), Unparsable, None, "not described"),
    (safetensors_of({"inputs": {}}), Unparsable, None, "not described"),
    (safetensors_of({"inputs": {"dtype": "F32", "shape": [1, 1]}}, Z(4)), Unparsable, None, "not described"),
    (safetensors_of({"inputs": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4]}}, Z(4)), Unparsable, None, "not"),
    (safetensors_of({"inputs": entry(5, 0, 4)}, Z(4)), Unparsable, None, "not described"),
    (safetensors_of({"inputs": entry("11", 0, 4)}, Z(4)), Unparsable, None, "not sizes"),
    (safetensors_of({"inputs": entry([1.0, 1], 0, 4)}, Z(4)), Unparsable, None, "not sizes"),
    (safetensors_of({"inputs": entry([True, 1], 0, 4)}, Z(4)), Unparsable, None, "not sizes"),
    (safetensors_of({"inputs": entry([-1, -1], 0, 4)}, Z(4)), Unparsable, None, "not sizes"),
    (safetensors_of({"inputs": entry([2**48, 1], 0, 4)}, Z(4)), Unparsable, None, "not sizes"),
    (safetensors_of({"inputs": entry([1] * 9, 0, 4)}, Z(4)), Unparsable, None, "not sizes"),
    (safetensors_of({"inputs": entry([1, 1], 0, "4")}, Z(4)), Unparsable, None, "not sizes"),
    (safetensors_of({"inputs": entry([0, 2**47, 2**47], 0, 0)}), ShapeMismatch, "/inputs", "no array has the shape"),
    (safetensors_of({"inputs": entry([1, 1], 0, 4, "BF16")}, Z(4)), WrongType, "/inputs", "F16, F32, F64, BOOL are"),
    (safetensors_of({"inputs": entry([1, 1], 0, 4, "I32")}, Z(4)), WrongType, "/inputs", "'I32'"),
    (safetensors_of({"inputs": entry([1, 1], 0, 4, ["F32"])}, Z(4)), WrongType, "/inputs", "are read"),
    (safetensors_of({"inputs": entry([1, 1], 0, 4, {})}, Z(4)), WrongType, "/inputs", "are read"),
    (safetensors_of({"inputs": entry([1, 1], 0, 4, None)}, Z(4)), WrongType, "/inputs", "are read"),
    (safetensors_of({"inputs.0": entry([1, 1], 0, 4, "I8")}, Z(4)), WrongType, "/inputs/0", "are read"),
    # offsets
    (safetensors_of({"inputs": entry([1, 1], 0, 4)}), Unparsable, None, "bytes 0 to 4 of 0"),
    (safetensors_of({"inputs": entry([1, 1], 0, 8)}, Z(8)), Unparsable, None, "takes 4"),
    (safetensors_of({"inputs": entry([1, 1], 4, 0)}, Z(4)), Unparsable, None, "bytes 4 to 0"),
    (safetensors_of({"inputs": entry([1, 1], 4, 8)}, Z(8)), Unparsable, None, "hole or overlap at byte 0"),
    (safetensors_of({"inputs.0": entry([1, 1], 0, 4), "inputs.1": entry([1, 1], 8, 12)}, Z(12)), Unparsable, None,
     "hole or overlap at byte 4"),
    (safetensors_of({"inputs.0": entry([1, 2], 0, 8), "inputs.1": entry([1, 2], 4, 12)}, Z(12)), Unparsable, None,
     "hole or overlap at byte 8"),
    (safetensors_of({"inputs.0": entry([1, 1], 0, 4), "inputs.1": entry([1, 1], 0, 4)}, Z(4)), Unparsable, None,
     "hole or overlap"),
    (safetensors_of({"inputs": entry([1, 1], 0, 4)}, Z(5)), Unparsable, None, "1 bytes follow"),
    (safetensors_of({"inputs": entry([2**24, 2**24], 0, 2**47)}, Z(4)), Unparsable, None, "takes 1125899906842624"),
    # names
    (safetensors_of({}), UnknownField, "/inputs", "no tensor `inputs`"),
    ({"attn_mask": TRUE}, UnknownField, "/inputs", "no tensor `inputs`"),
    ({"input": ONE}, UnknownField, "/input", "did you mean 'inputs'?"),
    ({"inputs": ONE, "attn_msk": TRUE}, UnknownField, "/attn_msk", "did you mean 'attn_mask'?"),
    ({"inputs": ONE, "projections.q": ONE}, UnknownField, "/projections.q", "no such tensor"),
    ({"inputs": ONE, "inputs.0": ONE}, UnknownField, "/inputs", "not both"),
    ({"inputs.00": ONE}, UnknownField, "/inputs.00", "no such tensor"),
    ({"inputs.0": ONE, "inputs.2": ONE}, UnknownField, "/inputs/1", "missing between"),
    ({"inputs.1": ONE}, UnknownField, "/inputs/0", "missing between"),
    ({"inputs.0": ONE, "attn_mask": TRUE}, UnknownField, "/attn_mask", "`attn_mask.0`"),
    ({"inputs.0": ONE, "attn_mask.1": TRUE}, UnknownField, "/attn_mask/1", "no `inputs.1`"),
    ({"inputs": ONE, "attn_mask.0": TRUE}, UnknownField, "/attn_mask", "with one `inputs`"),
    ({"inputs": ONE, "projections.query": ONE}, UnknownField, "/projections/key", "missing"),
    # tensors
    ({"inputs": TRUE}, WrongType, "/inputs", "got BOOL"),
    ({"inputs": ONE, "attn_mask": ONE}, WrongType, "/attn_mask", "numbers to be added belong in attn_bias"),
    ({"inputs.0": ONE, "inputs.1": ONE, "attn_mask.1": ONE}, WrongType, "/attn_mask/1", "attn_bias"),
    ({"inputs": ONE, "attn_bias": TRUE}, WrongType, "/attn_bias", "got BOOL"),
    ({"inputs": ONE} | OWN | {"projections.key": TRUE}, WrongType, "/projections/key", "got BOOL"),
    (safetensors_of({"inputs": entry([1, 1], 0, 4), "attn_mask": entry([1, 1], 4, 5, "BOOL")}, Z(4) + b"\2"),
     WrongType, "/attn_mask", "a byte 0 or 1"),
    ({"inputs": np.full((1, 2), np.nan, np.float32)}, NonFinite, "/inputs/0/0", "nan"),
    ({"inputs": np.array([[1], [-np.inf]], np.float16)}, NonFinite, "/inputs/1/0", "-inf"),
    ({"inputs": np.array([[1, 1e39]])}, NonFinite, "/inputs/0/1", "too large for float32"),
    ({"inputs": np.array([[[1]], [[np.nan]]], np.float32)}, NonFinite, "/inputs/1/0/0", "nan"),
    ({"inputs.0": ONE, "inputs.1": ONE * np.nan}, NonFinite, "/inputs/1/0/0", "nan"),
    ({"inputs": ONE, "attn_bias": ONE * -np.inf}, NonFinite, "/attn_bias/0/0", "-inf"),
    ({"inputs": ONE} | OWN | {"projections.value": ONE * np.inf}, NonFinite, "/projections/value/0/0", "inf"),
    ({"inputs": np.ones(3, np.float32)}, ShapeMismatch, "/inputs", "[3]"),
    ({"inputs": np.ones((), np.float32)}, ShapeMismatch, "/inputs", "[]"),
    ({"inputs": np.ones((1, 1, 1, 1), np.float32)}, ShapeMismatch, "/inputs", "[1, 1, 1, 1]"),
    ({"inputs": np.ones((0, 3), np.float32)}, ShapeMismatch, "/inputs", "no tokens"),
    ({"inputs": np.ones((3, 0), np.float32)}, ShapeMismatch, "/inputs/0", "no numbers"),
    ({"inputs": np.ones((0, 3, 3), np.float32)}, ShapeMismatch, "/inputs", "no sequences"),
    ({"inputs": np.ones((MOST_SEQUENCES + 1, 1, 1), np.float32)}, TooLarge, "/inputs", "16384"),
    ({"inputs.0": np.ones((1, 1, 1), np.float32)}, ShapeMismatch, "/inputs/0", "[1, 1, 1]"),
    ({"inputs": ONE, "attn_mask": np.ones((1, 2), bool)}, ShapeMismatch, "/attn_mask", "[1, 2], expected [1, 1]"),
    ({"inputs": ONE, "attn_mask": np.ones((), bool)}, ShapeMismatch, "/attn_mask", "[], expected [1, 1]"),
    ({"inputs": ONE, "attn_bias": np.ones((0, 1, 1), np.float32)}, ShapeMismatch, "/attn_bias", "[0, 1, 1]"),
    ({"inputs": ONE[None], "attn_mask": np.ones((), bool)}, ShapeMismatch, "/attn_mask", "one for each sequence"),
    ({"inputs": ONE[None], "attn_mask": TRUE}, ShapeMismatch, "/attn_mask", "one for each sequence"),
    ({"inputs": ONE[None], "attn_mask": np.ones((0, 1, 1), bool)}, ShapeMismatch, "/attn_mask", "0 of them for 1"),
    ({"inputs": ONE[None], "attn_mask": np.ones((2, 1, 1), bool)}, ShapeMismatch, "/attn_mask", "2 of them for 1"),
    ({"inputs": ONE[None], "attn_bias": np.ones((1, 1, 2), np.float32)}, ShapeMismatch, "/attn_bias/0", "[1, 2]"),
    ({"inputs": ONE} | OWN | {"projections.key": np.ones((2, 1))}, ShapeMismatch, "/projections/key", "2 rows"),
    ({"inputs": ONE} | OWN | {"projections.key": np.ones((1, 2))}, ShapeMismatch, "/projections/key", "query's"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "error", "pointer", "part"), REFUSED, ids=[f"{i}-{case[3][:24]}" for i, case in enumerate(REFUSED)]
)
def test_a_refusal_names_the_tensor_and_what_would_be_right(
    body: Any, error: type[AttentionError], pointer: str | None, part: str
):
    """Overlaps, holes, overflowing sizes and huge headers included: the library's own rules, and ours."""
    with pytest.raises(AttentionError) as caught:
        decode(body)

    assert type(caught.value) is error
    assert part in caught.value.detail
    assert [field.pointer for field in caught.value.fields] == ([] if pointer is None else [pointer])
    problem(caught.value, "id")


@pytest.mark.parametrize(
    ("tensors", "query", "error"),
    [
        ({"inputs": ONE}, "topk=1", UnknownField),
        ({"inputs": ONE}, "top_k=0", InvalidOption),
        ({"inputs": ONE} | OWN, "model=lesson", ConflictingFields),
    ],
)
def test_options_come_by_the_query_string_and_are_checked(tensors: Any, query: str, error: type[AttentionError]):
    """A binary body has no other place for them."""
    with pytest.raises(error):
        decode(tensors, query)


# ---- rubbish

VALID = [
    safetensors_file({"inputs": np.ones((2, 2), np.float32), "attn_mask": np.eye(2, dtype=bool)}),
    safetensors_file({"inputs.0": np.ones((2, 2), np.float16), "inputs.1": np.ones((1, 2), np.float16)}),
    safetensors_file({"inputs": np.ones((1, 2, 2)), "attn_bias": np.ones((1, 2, 2))}),
    safetensors_file({"inputs": ONE} | OWN),
]


@settings(LAW, max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_name(body: bytes):
    """Nothing that a caller sends may raise anything but an error of ours."""
    with pytest.raises(AttentionError):
        decode(body)


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 5), st.integers(2**40, 2**70), st.floats(), st.text(max_size=3)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=5,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from(["F32", "BOOL", "F16"]), json_values),
        "shape": st.one_of(st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(), max_size=3), json_values),
        "data_offsets": st.one_of(st.tuples(st.just(0), st.integers(0, 8)), st.lists(st.integers()), json_values),
    },
)


@settings(LAW, max_examples=600)
@given(
    st.dictionaries(
        st.sampled_from(["inputs", "inputs.0", "attn_mask", "attn_bias.0", "projections.key", "__metadata__"]),
        st.one_of(entries, json_values),
        max_size=3,
    ),
    st.binary(max_size=16),
)
def test_any_header_is_read_or_refused_by_name(header: dict[str, Any], data: bytes):
    """A header that is JSON but nonsense, of every type in every place."""
    try:
        decode(safetensors_of(header, data))
    except AttentionError as error:
        problem(error, "id")


@settings(LAW, max_examples=600)
@given(st.sampled_from(VALID), st.data())
def test_a_damaged_body_is_read_or_refused_by_name(body: bytes, data: st.DataObject):
    """Truncated anywhere, or with bits flipped in its length, its header or its numbers."""
    if data.draw(st.booleans()):
        body = body[: data.draw(st.integers(0, len(body)))]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        if body:
            body = body[:at] + bytes([body[at] ^ 1 << data.draw(st.integers(0, 7))]) + body[at + 1 :]
    try:
        decode(body)
    except AttentionError as error:
        problem(error, "id")


# ---- answers

BACKEND = BackendInfo("eager", "cpu", "torch", "float32")


def encode(answers: list[dict[str, Any]], form: Any, dead: list[list[int]] | None = None) -> bytes:
    rows = dead or [[] for _ in answers]
    return CODEC.encode(AttentionOutput(answers, rows, form, "json", ("lesson", "1"), BACKEND))


@LAW
@given(st.lists(matrices, min_size=1, max_size=3))
def test_the_library_reads_what_is_written_bit_by_bit(arrays: list[np.ndarray]):
    """For every nesting; shapes such as (0,) or headers of any length included."""
    one = decode_safetensors(encode([{"outputs": arrays[0], "key": arrays[-1]}], "one"))
    several = decode_safetensors(encode([{"outputs": x} for x in arrays], "list"), len(arrays))
    stack = decode_safetensors(encode([{"outputs": arrays[0]}] * 3, "stack"), 3)

    assert bits(one.tensors["outputs"][0]) == bits(arrays[0])
    assert bits(one.tensors["key"][0]) == bits(arrays[-1])
    assert [bits(x) for x in several.tensors["outputs"]] == [bits(x) for x in arrays]
    assert [bits(x) for x in stack.tensors["outputs"]] == [bits(arrays[0])] * 3


def test_tensors_of_an_answer_are_aligned():
    """The format asks for it, and readers that map files rely on it."""
    body = encode([{"outputs": ONE}], "one")

    assert int.from_bytes(body[:8], "little") % 8 == 0


@pytest.mark.parametrize("form", ["one", "list", "stack"])
def test_sparse_weights_and_masked_scores_keep_their_dtypes(form: str):
    """Indices are int32, a masked score is minus infinity."""
    sparse = TopK(np.array([[1, 0]], np.int32), np.array([[0.75, 0.25]], np.float32))
    answers = [{"weights": sparse, "scores": np.array([[-np.inf, 1]], np.float32)}] * (1 if form == "one" else 2)

    found = decode_safetensors(encode(answers, form), None if form == "one" else 2)

    for indices, values in found.tensors["weights"]:
        assert (indices.dtype, values.dtype) == (np.int32, np.float32)
        assert indices.tolist() == [[1, 0]]
        assert values.tolist() == [[0.75, 0.25]]
    assert all(scores.tolist() == [[-np.inf, 1]] for scores in found.tensors["scores"])


@pytest.mark.parametrize("form", ["one", "list", "stack"])
def test_views_of_a_larger_result_are_written_right(form: str):
    """Backends answer with views of what they computed: heads of one product, in any memory order."""
    tensor = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)[::2]
    count = 1 if form == "one" else 2

    found = decode_safetensors(encode([{"query": tensor}] * count, form), None if form == "one" else 2)

    assert [x.tolist() for x in found.tensors["query"]] == [tensor.tolist()] * count


def test_what_is_not_a_tensor_stands_in_the_metadata():
    """As JSON in strings: the format allows nothing else."""
    found = decode_safetensors(encode([{"outputs": ONE}, {"outputs": ONE}], "list", [[], [0]]), 2)

    assert found.metadata == {
        "model": {"name": "lesson", "version": "1"},
        "backend": {"name": "eager", "device": "cpu", "provider": "torch", "dtype": "float32"},
        "fully_masked_rows": [[], [0]],
    }


@LAW
@given(hnp.arrays(np.float16, hnp.array_shapes(max_dims=3, max_side=4)))
def test_float16_are_written_bit_by_bit(x: np.ndarray):
    """By the format's own library; half the bytes."""
    x = np.where(np.isnan(x), np.float16(-np.inf), x)
    body = encode([{"outputs": x}, {"outputs": x[:1]}], "list")

    found = decode_safetensors(body, 2)

    assert [part.dtype for part in found.tensors["outputs"]] == [np.float16] * 2
    assert [bits(part) for part in found.tensors["outputs"]] == [bits(x), bits(x[:1])]


def test_tensors_of_two_widths_are_aligned():
    """An odd number of float16 must not come before the int32 of indices."""
    sparse = TopK(np.array([[1, 0, 2]], np.int32), np.array([[3, 2, 1]], np.float16))
    body = encode([{"outputs": np.ones((1, 3), np.float16), "weights": sparse}], "one")

    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])

    assert all(header[name]["data_offsets"][0] % 4 == 0 for name in ("weights.indices",))
    ((indices, values),) = decode_safetensors(body).tensors["weights"]
    assert (indices.tolist(), values.tolist()) == ([[1, 0, 2]], [[3, 2, 1]])
