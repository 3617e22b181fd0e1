"""The Open Inference Protocol's bodies: what is read, and every way in which one can be wrong."""

import contextlib
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from wire import bits

from models.errors import AttentionError, NonFinite, ShapeMismatch
from service.backends.base import BackendInfo
from service.codecs import cut_json, v2, v2_rest
from service.codecs.requests import MOST_SEQUENCES
from service.codecs.v2_tensors import from_bytes, to_bytes
from service.errors import (
    ConflictingFields,
    InvalidOption,
    TooLarge,
    UnknownField,
    Unparsable,
    WrongType,
)
from service.messages import AttentionOutput, TextInput, TopK
from service.problems import OPEN_INFERENCE, problem

LAW = settings(deadline=None, max_examples=150, derandomize=True)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
NAMES = {
    "float16": "FP16", "float32": "FP32", "float64": "FP64", "bool": "BOOL", "int32": "INT32", "int64": "INT64",
}  # fmt: skip

finite: Any = {"allow_nan": False, "allow_infinity": False}


def tensor(array: np.ndarray, name: str = "inputs", **fields: Any) -> dict[str, Any]:
    """A tensor in JSON; `None` leaves a field out."""
    entry = {"name": name, "shape": list(array.shape), "datatype": NAMES[str(array.dtype)], "data": array.tolist()}
    return {key: value for key, value in (entry | fields).items() if value is not None}


def document(*inputs: Any, **fields: Any) -> bytes:
    return json.dumps({"inputs": list(inputs) or [tensor(X)], **fields}).encode()


def decode(body: bytes, length: str = "", model: str = "lesson") -> v2.InferRequest:
    return v2_rest.decode(body, length, model)


def with_binary(*arrays: tuple[str, np.ndarray], tail: bytes = b"", **fields: Any) -> tuple[bytes, str]:
    """A body with binary tensors, and the length of its JSON part."""
    entries = [tensor(a, name, data=None, parameters={"binary_data_size": a.nbytes}) for name, a in arrays]
    text = document(*entries, **fields)
    return text + b"".join(bits(a) for _, a in arrays) + tail, str(len(text))


def raises(
    kind: type[AttentionError], pointer: str | None, body: bytes, length: str = "", match: str | None = None
) -> None:
    with pytest.raises(kind, match=match) as caught:
        decode(body, length)
    assert type(caught.value) is kind
    if pointer is not None:
        assert [field.pointer for field in caught.value.fields] == [pointer]
    problem(caught.value, "id", OPEN_INFERENCE)


# ---- what is read


arrays = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=3, max_side=5), elements=st.floats(width=32, **finite)
)


@LAW
@given(arrays, st.booleans(), st.integers(0, 3000))
def test_numbers_in_json_arrive_bit_by_bit_nested_or_flat(x: np.ndarray, flat: bool, padding: int):
    """On the fast way, which long documents take, and on the other."""
    data = x.reshape(-1).tolist() if flat else x.tolist()

    found = decode(document(tensor(x, data=data)) + b" " * padding)

    sequences = [x] if x.ndim == 2 else list(x)
    assert found.attention.form == ("one" if x.ndim == 2 else "stack")
    assert [bits(s.inputs) for s in found.attention.sequences] == [bits(s) for s in sequences]


@LAW
@given(st.sampled_from(["float16", "float32", "float64"]), st.data())
def test_binary_tensors_arrive_bit_by_bit_or_rounded_once(dtype: str, data: st.DataObject):
    """Wherever they begin: the JSON part has any length."""
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=3, max_side=4))
    x = data.draw(hnp.arrays(dtype, shape, elements=finite))
    x = np.clip(x, -3e38, 3e38) if dtype == "float64" else x
    id = data.draw(st.text("x", max_size=9))

    found = decode(*with_binary(("inputs", x), id=id))

    sequences = [x] if x.ndim == 2 else list(x)
    assert [bits(s.inputs) for s in found.attention.sequences] == [bits(s.astype(np.float32)) for s in sequences]
    assert found.id == id


@pytest.mark.parametrize("binary", [True, False])
def test_masks_and_biases_go_with_their_sequences(binary: bool):
    """One for each sequence, or a matrix for all of them."""
    x = np.ones((2, 3, 4), np.float32)
    masks, mask = np.arange(18).reshape(2, 3, 3) % 4 == 0, np.tri(3, dtype=bool)
    biases, bias = np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3), np.ones((3, 3), np.float32)

    def read(mask: np.ndarray, bias: np.ndarray, x: np.ndarray = x) -> Any:
        given = (("inputs", x), ("attn_bias", bias), ("attn_mask", mask))
        if binary:
            return decode(*with_binary(*given)).attention.sequences
        return decode(document(*(tensor(array, name) for name, array in given))).attention.sequences

    for i, sequence in enumerate(read(masks, biases)):
        assert sequence.attn_mask.tolist() == masks[i].tolist()
        assert sequence.attn_bias.tolist() == biases[i].tolist()
    for sequence in read(mask, bias):
        assert sequence.attn_mask.tolist() == mask.tolist()
        assert sequence.attn_bias.tolist() == bias.tolist()
    (alone,) = read(mask, biases[0], x[0])
    assert alone.attn_mask.tolist() == mask.tolist()
    assert alone.attn_bias.tolist() == biases[0].tolist()


def test_json_and_binary_tensors_may_be_mixed():
    mask = np.tri(2, dtype=bool)
    entry = tensor(mask, "attn_mask", data=None, parameters={"binary_data_size": 4})
    text = document(tensor(X), entry)

    (sequence,) = decode(text + bits(mask), str(len(text))).attention.sequences

    assert bits(sequence.inputs) == bits(X)
    assert sequence.attn_mask.tolist() == mask.tolist()


def test_parameters_are_the_options_of_the_main_endpoint():
    parameters = {
        "is_causal": True, "scale": 2, "average_heads": True, "backend": "eager", "timeout": 1500, "priority": 3,
    }  # fmt: skip
    found = decode(document(parameters=parameters, id="seven"))

    options = found.attention.options
    assert (options.model, options.is_causal, options.scale) == ("lesson", True, 2.0)
    assert (options.average_heads, options.backend) == (True, "eager")
    assert found.timeout_s == 0.0015
    assert found.id == "seven"


def test_without_parameters_everything_has_its_default():
    found = decode(document())

    assert found.outputs == ("outputs", "weights")
    assert not found.binary
    assert found.id == ""
    assert found.timeout_s == decode(document(parameters={"timeout": 0})).timeout_s == math.inf


# ---- sequences of different lengths


BATCH = np.arange(24, dtype=np.float32).reshape(2, 4, 3)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_what_is_beyond_a_sequence_is_not_looked_at(binary: bool, dtype: Any):
    """Nor is it checked: callers leave there what they like."""
    x, lengths = BATCH.copy(), np.array([4, 2], dtype)
    masks, biases = np.arange(32).reshape(2, 4, 4) % 3 > 0, np.ones((2, 2, 4, 4), np.float32)
    if binary:
        x[1, 2:], biases[1, :, 2:] = np.nan, np.inf
    given = (("inputs", x), ("lengths", lengths), ("attn_mask", masks), ("attn_bias", biases))
    if binary:
        found = decode(*with_binary(*given)).attention
    else:
        found = decode(document(*(tensor(array, name) for name, array in given))).attention

    assert (found.form, found.padded_to) == ("list", 4)
    for i, (sequence, n) in enumerate(zip(found.sequences, lengths, strict=True)):
        assert bits(sequence.inputs) == bits(x[i, :n])
        assert sequence.attn_mask is not None
        assert sequence.attn_mask.tolist() == masks[i, :n, :n].tolist()
        assert sequence.attn_mask.flags.c_contiguous
        assert bits(sequence.attn_bias) == bits(biases[i, :, :n, :n])


def test_a_matrix_alone_is_cut_for_every_sequence():
    mask = np.tri(4, dtype=bool)

    found = decode(*with_binary(("inputs", BATCH), ("attn_mask", mask), ("lengths", np.array([1, 3])))).attention

    assert [s.attn_mask.tolist() for s in found.sequences] == [mask[:n, :n].tolist() for n in (1, 3)]


@pytest.mark.parametrize(
    ("x", "more", "pointer"),
    [
        (X, {"lengths": np.array([2])}, "/lengths"),
        (BATCH, {"lengths": np.array([2])}, "/lengths"),
        (BATCH, {"lengths": np.array([[2, 2]])}, "/lengths"),
        (BATCH, {"lengths": np.array([2, 0])}, "/lengths/1"),
        (BATCH, {"lengths": np.array([5, 1])}, "/lengths/0"),
        (BATCH, {"lengths": np.array([-1, 1])}, "/lengths/0"),
        (BATCH, {"lengths": np.array([4, 2]), "attn_mask": np.ones((2, 5, 5), bool)}, "/attn_mask"),
        (BATCH, {"lengths": np.array([4, 2]), "attn_mask": np.ones((3, 4, 4), bool)}, "/attn_mask"),
        (BATCH, {"lengths": np.array([4, 2]), "attn_mask": np.ones(4, bool)}, "/attn_mask"),
        (BATCH, {"lengths": np.array([4, 2]), "attn_bias": np.ones((2, 2, 4, 3), np.float32)}, "/attn_bias"),
    ],
)
def test_lengths_must_fit_the_batch(x: np.ndarray, more: dict[str, np.ndarray], pointer: str):
    raises(ShapeMismatch, pointer, *with_binary(("inputs", x), *more.items()))


@pytest.mark.parametrize("data", [[1.5, 2], [1, 10**400]])
def test_a_length_is_a_whole_number(data: list[Any]):
    """JSON has one kind of numbers."""
    lengths = tensor(np.array([1, 2]), "lengths", data=data)

    with pytest.raises(ShapeMismatch, match="expected a whole number from 1 to 4"):
        decode(document(tensor(BATCH), lengths))


def test_a_number_that_is_not_finite_is_named_by_its_sequence():
    x = BATCH.copy()
    x[1, 1, 2] = np.nan

    raises(NonFinite, "/inputs/1/1/2", *with_binary(("inputs", x), ("lengths", np.array([4, 2]))))


def test_an_answer_is_padded_with_zeros_as_its_inputs_are():
    """Also indices, and scores, which are -inf where they are masked only."""
    outputs = [{"name": name} for name in ("weights.indices", "weights.values", "scores", "query")]
    asked = decode(
        document(tensor(BATCH), tensor(np.array([1, 3]), "lengths"), parameters={"top_k": 2}, outputs=outputs)
    )
    answers: Any = [
        {
            "weights": TopK(np.full((n, min(n, 2)), n, np.int32), np.full((n, min(n, 2)), 0.5, np.float32)),
            "scores": np.full((n, n), -np.inf, np.float32),
            "query": np.ones((7, n, 2), np.float32),
        }
        for n in (1, 3)
    ]
    info = BackendInfo("onnx", "cpu", "CPU", "float32")
    whole = AttentionOutput(answers, [[], []], "list", "json", ("lesson", "1"), info)

    found = v2.tensors(asked, whole)

    assert {name: (array.shape, array.dtype.name) for name, array in found.items()} == {
        "weights.indices": ((2, 4, 2), "int32"), "weights.values": ((2, 4, 2), "float32"),
        "scores": ((2, 4, 4), "float32"), "query": ((2, 7, 4, 2), "float32"),
    }  # fmt: skip
    assert found["weights.indices"].tolist() == [[[1, 0]] + [[0, 0]] * 3, [[3, 3]] * 3 + [[0, 0]]]
    assert np.isneginf(found["scores"]).sum(axis=(1, 2)).tolist() == [1, 9]
    assert found["query"].sum(axis=(1, 2, 3)).tolist() == [14, 42]
    body, _ = v2_rest.encode(asked, whole)
    assert [entry["datatype"] for entry in json.loads(body)["outputs"]] == ["INT32", "FP32", "FP32", "FP32"]


# ---- texts


@LAW
@given(st.lists(st.text(max_size=8), min_size=1, max_size=5))
def test_strings_come_back_as_they_went(texts: list[str]):
    """An empty one, too, and any that Unicode has."""
    array = np.array(texts, object)

    again = from_bytes("BYTES", [len(texts)], to_bytes(array), "/text")

    assert again.tolist() == texts


@LAW
@given(st.binary(max_size=20), st.lists(st.integers(0, 3), max_size=3))
@example(b"\0\0\0\0" * (MOST_SEQUENCES + 1), [MOST_SEQUENCES + 1])
def test_nothing_but_errors_of_ours_comes_out_of_strange_strings(content: bytes, shape: list[int]):
    with contextlib.suppress(AttentionError):
        assert from_bytes("BYTES", shape, memoryview(content), "/text").shape == tuple(shape)


def text_tensor(*texts: str) -> dict[str, Any]:
    return {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}


def test_layers_and_tensors_of_an_encoder_are_asked_for_by_name():
    """What is answered is what was asked for, though every tensor is computed of each of those layers."""
    outputs = [{"name": name} for name in ("layers.10.weights", "lengths", "layers.2.outputs")]

    found = v2_rest.decode(document(text_tensor("a", "b"), outputs=outputs), "", "tiny", 12)

    assert isinstance(found.attention, TextInput)
    assert found.outputs == ("layers.10.weights", "lengths", "layers.2.outputs")
    assert (found.attention.texts, found.attention.padded, found.padded) == (("a", "b"), True, True)
    assert sorted(found.attention.options.layers) == [2, 10]
    assert found.attention.options.wanted == ("outputs", "weights")


@pytest.mark.parametrize(
    "name", ["layers.12.weights", "layers.01.weights", "layers.-1.weights", "layers.1.logits", "layers.1.key.values",
             "layers.1", "weights", "layers.1.weights.indices", "layers.99999.weights"],
)  # fmt: skip
def test_an_encoder_has_no_other_outputs(name: str):
    body = document(text_tensor("a"), outputs=[{"name": name}])

    with pytest.raises((UnknownField, InvalidOption)):
        v2_rest.decode(body, "", "tiny", 12)


def test_a_document_that_came_before_asks_for_what_its_model_now_has():
    """Documents before binary tensors are remembered, but not beyond the model that they were for."""
    entry = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}
    text = document(entry)
    body, length = text + b"\x01\0\0\0a", str(len(text))

    for layers in (1, 2, 1):
        found = v2_rest.decode(body, length, "tiny", layers)
        assert found.outputs == ("tokens", "lengths", *(f"layers.{i}.weights" for i in range(layers)))
        assert isinstance(found.attention, TextInput)
        assert found.attention.texts == ("a",)
    with pytest.raises(UnknownField):
        v2_rest.decode(body, length, "tiny")


@pytest.mark.parametrize(("shape", "form", "fault"), [((2, 3), "one", "/1/1"), ((1, 2, 3), "stack", "/0/1/1")])
def test_what_is_remembered_of_a_body_holds_for_no_other(shape: tuple[int, ...], form: str, fault: str):
    """What is known of one that was right says nothing of the numbers, the rest or the model of the next."""
    x = X.reshape(shape)
    body, length = with_binary(("inputs", x), id="a" * 5)
    broken, _ = with_binary(("inputs", np.where(x == 4, np.nan, x).astype(np.float32)), id="a" * 5)
    longer, _ = with_binary(("inputs", x), id="a" * 5, tail=b"more")

    for model in ("lesson", "other", "lesson"):
        found, (more, _) = decode(body, length, model), with_binary(("inputs", x + 1), id="a" * 5)
        assert (found.attention.form, found.id, found.attention.options.model) == (form, "a" * 5, model)
        assert [bits(sequence.inputs) for sequence in found.attention.sequences] == [bits(x)]
        assert bits(decode(more, length, model).attention.sequences[0].inputs) == bits(x + 1)
        raises(NonFinite, f"/inputs{fault}", broken, length)
        raises(Unparsable, None, longer, length)
        raises(Unparsable, None, body[:-4], length)
        raises(Unparsable, None, body, str(int(length) - 1))
    with pytest.raises(UnknownField):
        v2_rest.decode(body, length, "tiny", 2)


def test_aligned_numbers_are_not_copied():
    """A copy of every body is what binary tensors are meant to save; those that are not aligned have to be."""
    for padding in range(4):
        body, length = with_binary(("inputs", X), id="a" * padding)
        inputs = decode(body, length).attention.sequences[0].inputs

        assert inputs.flags.aligned
        assert np.shares_memory(inputs, np.frombuffer(body, np.uint8)) == (int(length) % 4 == 0)


# ---- the caller's own matrices


OWN = [(f"projections.{name}", np.full((3, 2), i, np.float32)) for i, name in enumerate(("query", "key", "value"))]


def test_a_caller_may_bring_the_matrices():
    found = decode(*with_binary(("inputs", X), *OWN), model="projections").attention

    assert found.options.model is None
    assert found.projections is not None
    for name, matrix in OWN:
        assert bits(getattr(found.projections, name.removeprefix("projections."))) == bits(matrix)


@pytest.mark.parametrize(
    ("model", "given", "kind", "pointer"),
    [
        ("lesson", OWN, ConflictingFields, "/projections"),
        ("lesson", OWN[:1], ShapeMismatch, "/projections/key"),
        ("projections", [], ShapeMismatch, "/projections/query"),
        ("projections", OWN[:2], ShapeMismatch, "/projections/value"),
        ("projections", [*OWN[:2], ("projections.value", np.ones(3, np.float32))], ShapeMismatch, "/projections/value"),
        ("projections", [*OWN[:2], ("projections.value", np.full((3, 2), np.nan))], NonFinite,
         "/projections/value/0/0"),
    ],
)  # fmt: skip
def test_matrices_come_together_or_not_at_all(
    model: str, given: list[tuple[str, np.ndarray]], kind: type[AttentionError], pointer: str
):
    body, length = with_binary(("inputs", X), *given)

    with pytest.raises(kind) as caught:
        decode(body, length, model)

    assert [field.pointer for field in caught.value.fields] == [pointer]


# ---- what is asked for


def test_sparse_weights_are_two_tensors():
    """The default ones, where none are named; either of them alone, too."""
    found = decode(document(parameters={"top_k": 2}))
    alone = decode(document(parameters={"top_k": 2}, outputs=[{"name": "weights.values"}, {"name": "key"}]))

    assert found.outputs == ("outputs", "weights.indices", "weights.values")
    assert found.attention.options.wanted == ("outputs", "weights")
    assert found.attention.options.top_k == 2
    assert alone.outputs == ("weights.values", "key")
    assert alone.attention.options.wanted == ("weights", "key")


@pytest.mark.parametrize(
    ("outputs", "default", "names", "binary"),
    [
        ([], True, ("outputs", "weights"), {"outputs", "weights"}),
        ([], False, ("outputs", "weights"), set()),
        ([("weights", None), ("key", None)], True, ("weights", "key"), {"weights", "key"}),
        ([("weights", False), ("key", None)], True, ("weights", "key"), {"key"}),
        ([("weights", True), ("key", None)], False, ("weights", "key"), {"weights"}),
    ],
)
def test_an_output_is_binary_if_it_or_else_the_request_says_so(
    outputs: list[Any], default: bool, names: tuple[str, ...], binary: set[str]
):
    asked = [
        {"name": name} if flag is None else {"name": name, "parameters": {"binary_data": flag}}
        for name, flag in outputs
    ]

    found = decode(document(parameters={"binary_data_output": default}, outputs=asked))

    assert found.outputs == names
    assert found.binary == binary
    assert set(found.attention.options.wanted) == set(names)


# ---- what is refused: the binary extension


BINARY, LENGTH = with_binary(("inputs", X))


@pytest.mark.parametrize(
    ("body", "length", "match"),
    [
        (BINARY + b"x", LENGTH, "1 bytes follow the last binary tensor"),
        (BINARY[:-1], LENGTH, "its binary_data_size is 24, but 23 bytes are left"),
        (BINARY[: int(LENGTH)], LENGTH, "but 0 bytes are left"),
        (BINARY[: int(LENGTH)], "", "but 0 bytes are left"),
        (document(), "10000", "is 10000, but the body has"),
        (document(), "0", "announces one tensor without a JSON part"),
        (b"", "0", "announces one tensor without a JSON part"),
        (document(), "-1", "expected a number of bytes"),
        (document(), "1.5", "expected a number of bytes"),
        (document(), "9" * 13, "expected a number of bytes"),
        (document(), "²", "expected a number of bytes"),
        (BINARY, str(int(LENGTH) - 1), "not JSON"),
        (BINARY, str(int(LENGTH) + 1), "not JSON|not UTF-8"),
        (BINARY, "", "not JSON|not UTF-8"),
        (document() + b"12", str(len(document())), "2 bytes follow"),
    ],
)
def test_bytes_must_add_up(body: bytes, length: str, match: str):
    """Never half a tensor, and never another's bytes."""
    raises(Unparsable, None, body, length, match)


@pytest.mark.parametrize(
    ("fields", "kind", "pointer"),
    [
        ({"parameters": {"binary_data_size": 20}}, ShapeMismatch, "/inputs/0/parameters/binary_data_size"),
        ({"parameters": {"binary_data_size": -24}}, WrongType, "/inputs/0/parameters/binary_data_size"),
        ({"parameters": {"binary_data_size": 24.0}}, WrongType, "/inputs/0/parameters/binary_data_size"),
        ({"parameters": {"binary_data_size": True}}, WrongType, "/inputs/0/parameters/binary_data_size"),
        ({"parameters": {"binary_data_size": "24"}}, WrongType, "/inputs/0/parameters/binary_data_size"),
        ({"parameters": {"binary_size": 24}}, UnknownField, "/inputs/0/parameters/binary_size"),
        ({"parameters": {"shared_memory_region": "x"}}, UnknownField, "/inputs/0/parameters/shared_memory_region"),
        ({"parameters": [24]}, WrongType, "/inputs/0/parameters"),
        ({"parameters": {}}, ShapeMismatch, "/inputs/0"),
        ({"parameters": None}, ShapeMismatch, "/inputs/0"),
        ({"data": X.tolist()}, ConflictingFields, "/inputs/0/data"),
        ({"shape": [2, -3]}, WrongType, "/inputs/0/shape"),
        ({"shape": [2, 2**63]}, WrongType, "/inputs/0/shape"),
        ({"shape": [2, 2**64]}, WrongType, "/inputs/0/shape"),
        ({"shape": [2**39, 2**39]}, ShapeMismatch, "/inputs/0/parameters/binary_data_size"),
        ({"shape": [2, 3.0]}, WrongType, "/inputs/0/shape"),
        ({"shape": [True, 6]}, WrongType, "/inputs/0/shape"),
        ({"shape": "2,3"}, WrongType, "/inputs/0/shape"),
        ({"shape": 6}, WrongType, "/inputs/0/shape"),
        ({"shape": None}, WrongType, "/inputs/0/shape"),
        ({"shape": [1] * 9}, ShapeMismatch, "/inputs/0/shape"),
        ({"datatype": "FP64"}, ShapeMismatch, "/inputs/0/parameters/binary_data_size"),
        ({"datatype": "BF16"}, WrongType, "/inputs/0/datatype"),
        ({"datatype": "INT32"}, WrongType, "/inputs/0/datatype"),
        ({"datatype": "BYTES"}, WrongType, "/inputs/0/datatype"),
        ({"datatype": None}, WrongType, "/inputs/0/datatype"),
        ({"datatype": 1}, WrongType, "/inputs/0/datatype"),
        ({"name": "input"}, UnknownField, "/inputs/0/name"),
        ({"name": None}, UnknownField, "/inputs/0/name"),
        ({"name": 3}, UnknownField, "/inputs/0/name"),
        ({"name": "attn_bias"}, ShapeMismatch, "/inputs"),
        ({"strides": [1]}, UnknownField, "/inputs/0/strides"),
    ],
)  # fmt: skip
def test_a_binary_tensor_must_be_what_it_says(fields: dict[str, Any], kind: type[AttentionError], pointer: str):
    entry = tensor(X, data=None, parameters={"binary_data_size": 24}) | fields
    text = document({key: value for key, value in entry.items() if value is not None})

    raises(kind, pointer, text + bits(X), str(len(text)))


def test_a_boolean_is_a_byte_0_or_1():
    entries = (("inputs", X), ("attn_mask", np.tri(2, dtype=bool)))
    body, length = with_binary(*entries)

    raises(WrongType, "/attn_mask", body[:-1] + b"\x02", length, "a byte 0 or 1")


def test_a_tensor_must_have_the_type_of_its_meaning():
    """A 0/1 mask of floats that is silently added is a classic bug."""
    numbers = np.zeros((2, 2), np.float32)
    for name, wrong, hint in (
        ("attn_mask", numbers, "expected BOOL, true = may attend; numbers to be added belong in attn_bias, got 'FP32'"),
        ("attn_bias", numbers.astype(bool), "attn_bias: expected FP32 or FP16 or FP64, got 'BOOL'"),
        ("lengths", numbers, "lengths: expected INT64 or INT32, got 'FP32'"),
        ("projections.key", numbers.astype(np.int32), "expected FP32 or FP16 or FP64, got 'INT32'"),
    ):
        raises(WrongType, "/inputs/1/datatype", *with_binary(("inputs", X), (name, wrong)), match=hint)
    raises(WrongType, "/inputs/0/datatype", *with_binary(("inputs", np.zeros((2, 2), bool))))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
def test_a_number_that_is_not_finite_is_named_by_its_place(value: float):
    x = np.ones((2, 3))
    x[1, 2] = value

    raises(NonFinite, "/inputs/1/2", *with_binary(("inputs", x)))
    raises(NonFinite, "/inputs/1/1/2", *with_binary(("inputs", np.stack([np.ones((2, 3)), x]))))


# ---- what is refused: the document


@pytest.mark.parametrize("short_row", [0, cut_json.SHORT_ROW])
@pytest.mark.parametrize(
    ("data", "kind", "pointer"),
    [
        ([1, 2, 3, 4, 5], ShapeMismatch, "/inputs"),
        ([1, 2, 3, 4, 5, 6, 7], ShapeMismatch, "/inputs"),
        ([[1, 2], [3, 4], [5, 6]], ShapeMismatch, "/inputs"),
        ([[1, 2, 3], [4, 5]], ShapeMismatch, "/inputs/1"),
        ([[1, 2, 3], 4], WrongType, "/inputs/1"),
        ([[1, 2, 3], [4, 5, [6]]], WrongType, "/inputs/1/2"),
        ([[[1, 2, 3]], [[4, 5, 6]]], ShapeMismatch, "/inputs/0"),
        ([1, 2, 3, 4, 5, [6]], WrongType, "/inputs/5"),
        ([1, 2, 3, 4, 5, "6"], WrongType, "/inputs/5"),
        ([1, 2, 3, 4, 5, None], WrongType, "/inputs/5"),
        ([1, 2, 3, 4, 5, True], WrongType, "/inputs/5"),
        ([True, 2, 3, 4, 5, 6], WrongType, "/inputs/0"),
        ([[1, 2, 3], [4, 5, {}]], WrongType, "/inputs/1/2"),
        ([1, 2, 3, 4, 5, 1e39], NonFinite, "/inputs/1/2"),
        ([1, 2, 3, 4, 5, 10**400], NonFinite, "/inputs/1/2"),
        ([], ShapeMismatch, "/inputs"),
        ([[], []], ShapeMismatch, "/inputs/0"),
        ("123456", WrongType, "/inputs"),
        ({}, WrongType, "/inputs"),
        (6, WrongType, "/inputs"),
    ],
)
def test_data_that_does_not_fit_is_refused_with_its_place(
    data: Any, kind: type[AttentionError], pointer: str, short_row: int, monkeypatch: pytest.MonkeyPatch
):
    """Also a row that a flattening reader would take."""
    monkeypatch.setattr(cut_json, "SHORT_ROW", short_row)
    body = document(tensor(X, data=data))
    with pytest.raises(kind) as caught:
        decode(body)
    # On the fast way a whole tensor is at fault; the place within it may be known no better.
    assert caught.value.fields[0].pointer in (pointer, "/inputs")


@pytest.mark.parametrize("data", [[1, 0, 1, 1], [True, False, True, 1], [[1.0, 0.0], [1.0, 1.0]], ["true"] * 4])
@pytest.mark.parametrize("short_row", [0, cut_json.SHORT_ROW])
def test_a_mask_is_of_booleans(data: Any, short_row: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cut_json, "SHORT_ROW", short_row)
    body = document(tensor(X), tensor(np.tri(2, dtype=bool), "attn_mask", data=data))

    with pytest.raises(WrongType, match="expected true"):
        decode(body)


def test_half_precision_has_no_form_in_json():
    """0.1 would be rounded by one reader and not by another."""
    raises(WrongType, "/inputs", document(tensor(X.astype(np.float16))), match="FP16 has no form in JSON")


@pytest.mark.parametrize(
    ("body", "kind", "pointer"),
    [
        (b"", Unparsable, None),
        (b"{", Unparsable, None),
        (b"[]", WrongType, ""),
        (b"\xff\xfe", Unparsable, None),
        (b'{"inputs": [], "inputs": []}', ConflictingFields, "/inputs"),
        (b'{"inputs": [{"name": "inputs", "shape": [1, 1], "datatype": "FP32", "data": [NaN]}]}', Unparsable, None),
        (b"{}", WrongType, "/inputs"),
        (b'{"inputs": {}}', WrongType, "/inputs"),
        (b'{"inputs": []}', ShapeMismatch, "/inputs"),
        (b'{"inputs": [7]}', WrongType, "/inputs/0"),
        (document(model_name="lesson"), UnknownField, "/model_name"),
        (document(tensor(X), tensor(X)), ConflictingFields, "/inputs"),
        (document(id=7), WrongType, "/id"),
        (document(id="x" * 1025), WrongType, "/id"),
        (document(id="\ud800"), WrongType, "/id"),
        (document(parameters=[]), WrongType, "/parameters"),
        (document(parameters={"causal": True}), UnknownField, "/causal"),
        (document(parameters={"sequence_id": 1}), UnknownField, "/sequence_id"),
        (document(parameters={"top_k": 0}), InvalidOption, "/top_k"),
        (document(parameters={"top_k": 1.0}), InvalidOption, "/top_k"),
        (document(parameters={"top_k": True}), InvalidOption, "/top_k"),
        (document(parameters={"top_k": 1}, outputs=[{"name": "weights"}]), ConflictingFields, "/outputs/weights"),
        (document(outputs=[{"name": "weights.values"}]), InvalidOption, "/outputs/weights.values"),
        (document(parameters={"top_k": None}, outputs=[{"name": "weights.values"}]), InvalidOption,
         "/outputs/weights.values"),
        (document(parameters={"encoding": "base64"}), UnknownField, "/encoding"),
        (document(parameters={"model": "x"}), UnknownField, "/model"),
        (document(parameters={"is_causal": 1}), InvalidOption, "/is_causal"),
        (document(parameters={"is_causal": "true"}), InvalidOption, "/is_causal"),
        (document(parameters={"scale": 0}), InvalidOption, "/scale"),
        (document(parameters={"scale": "1"}), InvalidOption, "/scale"),
        (document(parameters={"backend": "triton"}), InvalidOption, "/backend"),
        (document(parameters={"timeout": -1}), InvalidOption, "/timeout"),
        (document(parameters={"timeout": 1.5}), InvalidOption, "/timeout"),
        (document(parameters={"timeout": True}), InvalidOption, "/timeout"),
        (document(parameters={"timeout": 2**63}), InvalidOption, "/timeout"),
        (document(parameters={"priority": "high"}), InvalidOption, "/priority"),
        (document(parameters={"binary_data_output": 1}), InvalidOption, "/binary_data_output"),
        (document(outputs={}), WrongType, "/outputs"),
        (document(outputs=["weights"]), WrongType, "/outputs/0"),
        (document(outputs=[{}]), WrongType, "/outputs/0/name"),
        (document(outputs=[{"name": "logits"}]), UnknownField, "/outputs/logits"),
        (document(outputs=[{"name": "key"}, {"name": "key"}]), ConflictingFields, "/outputs/1/name"),
        (document(outputs=[{"name": "key", "data": 1}]), UnknownField, "/outputs/0/data"),
        (document(outputs=[{"name": "key"}] * (v2.MOST_OUTPUTS + 1)), InvalidOption, "/outputs"),
        (document(outputs=[{"name": "key", "parameters": {"classification": 2}}]), UnknownField,
         "/outputs/0/parameters/classification"),
        (document(outputs=[{"name": "key", "parameters": {"binary_data": 1}}]), InvalidOption,
         "/outputs/0/parameters/binary_data"),
        (document(tensor(np.ones(3, np.float32))), ShapeMismatch, "/inputs"),
        (document(tensor(np.ones((), np.float32), data=[1])), ShapeMismatch, "/inputs"),
        (document(tensor(np.ones((), np.float32), data=[[1]])), WrongType, "/inputs/0"),
        (document(tensor(np.ones((0, 3), np.float32))), ShapeMismatch, "/inputs"),
        (document(tensor(np.ones((0, 2, 3), np.float32))), ShapeMismatch, "/inputs"),
        (document(tensor(np.ones((1, 1, 1, 1), np.float32))), ShapeMismatch, "/inputs"),
        (document(tensor(X, shape=[0, 2**39, 2**39], data=[])), ShapeMismatch, "/inputs"),
        (document(tensor(X), tensor(np.tri(3, dtype=bool), "attn_mask")), ShapeMismatch, "/attn_mask"),
        (document(tensor(X[None]), tensor(np.ones((2, 2, 2), bool), "attn_mask")), ShapeMismatch, "/attn_mask"),
        (document(tensor(X), tensor(np.ones((3, 3), np.float32), "attn_bias")), ShapeMismatch, "/attn_bias"),
    ],
)  # fmt: skip
def test_a_document_that_means_nothing_is_refused_with_its_place(
    body: bytes, kind: type[AttentionError], pointer: str | None
):
    """By name, where a name is at fault."""
    raises(kind, pointer, body)


def test_more_sequences_than_anyone_takes_apart_are_refused_at_once():
    raises(TooLarge, "/inputs", *with_binary(("inputs", np.zeros((MOST_SEQUENCES + 1, 1, 1), np.float32))))


@pytest.mark.parametrize("field", ["id", "parameters", "inputs", "outputs"])
@pytest.mark.parametrize("depth", [100, 100_000])
def test_deep_nesting_is_refused(field: str, depth: int):
    """It is what breaks readers that descend."""
    body = b'{"%s": %s%s}' % (field.encode(), b"[" * depth, b"]" * depth)
    with pytest.raises((WrongType, Unparsable)):
        decode(body)
    deep = b'{"inputs": [{"name": "inputs", "shape": [1, 1], "datatype": "FP32", "data": %s1%s}]}'
    with pytest.raises((WrongType, Unparsable, ShapeMismatch)):
        decode(deep % (b"[" * depth, b"]" * depth))


# ---- whatever comes


@pytest.fixture(params=[0, cut_json.SHORT_ROW], scope="module")
def short_row(request: pytest.FixtureRequest) -> Iterator[None]:
    """Arrays of all lengths are cut out, or long ones only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_json, "SHORT_ROW", request.param)
        yield


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(**finite) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(LAW, max_examples=600)
@given(
    st.sampled_from(["id", "parameters", "inputs", "outputs", "name", "shape", "datatype", "data", "x"]),
    json_values, st.sampled_from(["", "0", "5", "10", "200"]),
)  # fmt: skip
@example("id", [[1, 2], [3, 4]], "")
@example("name", [[True, False]], "")
@pytest.mark.usefixtures("short_row")
def test_nothing_but_errors_of_ours_comes_out_of_a_strange_document(field: str, value: Any, length: str):
    """Any value in any place."""
    whole: dict[str, Any] = json.loads(document(parameters={"scale": 1.0}, outputs=[{"name": "key"}], id="x"))
    (whole if field in whole or field == "x" else whole["inputs"][0])[field] = value
    body = json.dumps(whole).encode()
    with contextlib.suppress(AttentionError):
        decode(body, length)


@settings(LAW, max_examples=600)
@given(st.sampled_from([BINARY, document(), document(tensor(X), tensor(np.tri(2, dtype=bool), "attn_mask"))]),
       st.data())  # fmt: skip
@example(b"", None)
@pytest.mark.usefixtures("short_row")
def test_nothing_but_errors_of_ours_comes_out_of_a_damaged_body(body: bytes, data: Any):
    """Flipped bits, a cut end, a wrong length."""
    raw = bytearray(body)
    length = LENGTH if body == BINARY else ""
    if data is not None:
        for _ in range(data.draw(st.integers(0, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        raw = raw[: data.draw(st.integers(0, len(raw)))]
        length = data.draw(st.sampled_from([length, "0", "7", str(len(raw))]))
    try:
        decode(bytes(raw), length)
    except AttentionError as error:
        problem(error, "id", OPEN_INFERENCE)


@LAW
@given(st.lists(st.lists(st.one_of(st.integers(), st.lists(st.integers(), max_size=3)), max_size=3), max_size=3))
def test_both_ways_of_reading_say_the_same(data: Any):
    """A long document is never taken where a short one is refused, and never means something else."""
    body = document(tensor(X, data=data, shape=[2, 2]))

    def outcome(body: bytes) -> Any:
        try:
            return decode(body).attention.sequences[0].inputs.tolist()
        except AttentionError as error:
            return type(error)

    found = outcome(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_json, "SHORT_ROW", 0)
        assert outcome(body) == found


# ---- answers


def output(form: Any = "one", dead: list[list[int]] | None = None) -> AttentionOutput:
    count = 1 if form == "one" else 2
    answers: Any = [
        {"outputs": np.full((2, 3), i, np.float32), "weights": np.full((4, 2, 2), 0.5, np.float32),
         "scores": np.array([[0.1, -np.inf], [-0.0, 2]], np.float32)}
        for i in range(count)
    ]  # fmt: skip
    info = BackendInfo("onnx", "cpu", "CPU", "float32")
    return AttentionOutput(answers, dead or [[]] * count, form, "json", ("lesson", "1"), info)


def asked(outputs: list[str], binary: set[str], **fields: Any) -> v2.InferRequest:
    entries = [{"name": name, "parameters": {"binary_data": name in binary}} for name in outputs]
    return decode(document(outputs=entries, **fields))


def test_an_answer_in_json_is_flat_and_in_the_order_asked_for():
    """A masked score is null, as -Infinity is no JSON."""
    body, length = v2_rest.encode(asked(["scores", "outputs"], set(), id="me"), output())

    assert length is None
    assert json.loads(body) == {
        "model_name": "lesson", "model_version": "1", "id": "me",
        "parameters": {"backend": "onnx", "device": "cpu", "provider": "CPU", "dtype": "float32"},
        "outputs": [
            {"name": "scores", "datatype": "FP32", "shape": [2, 2], "data": [0.1, None, -0.0, 2.0]},
            {"name": "outputs", "datatype": "FP32", "shape": [2, 3], "data": [0.0] * 6},
        ],
    }  # fmt: skip


def test_binary_tensors_follow_the_document_in_its_order():
    """Mixed with one in JSON; a stack has its axis in front."""
    whole = output("stack")
    body, length = v2_rest.encode(asked(["weights", "outputs", "scores"], {"weights", "scores"}), whole)

    assert length is not None
    head = json.loads(body[:length])
    assert "id" not in head
    assert [entry["shape"] for entry in head["outputs"]] == [[2, 4, 2, 2], [2, 2, 3], [2, 2, 2]]
    assert [entry.get("parameters") for entry in head["outputs"]] == [
        {"binary_data_size": 128}, None, {"binary_data_size": 32},
    ]  # fmt: skip
    assert head["outputs"][1]["data"] == [0.0] * 6 + [1.0] * 6
    weights, scores = (np.stack([answer[name] for answer in whole.answers]) for name in ("weights", "scores"))
    assert body[length:] == bits(weights) + bits(scores)


def test_views_of_what_was_computed_are_packed():
    """Backends answer with transposed arrays."""
    whole = output()
    whole.answers[0]["outputs"] = np.arange(6, dtype=np.float32).reshape(3, 2).T

    body, length = v2_rest.encode(asked(["outputs"], {"outputs"}), whole)
    flat, _ = v2_rest.encode(asked(["outputs"], set()), whole)

    assert body[length:] == bits(np.arange(6, dtype=np.float32).reshape(3, 2).T)
    assert json.loads(flat)["outputs"][0]["data"] == [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]


def test_rows_that_see_nothing_are_named():
    """A parameter is no list, so it is the text of one."""
    one, _ = v2_rest.encode(asked(["outputs"], set()), output(dead=[[1]]))
    two, _ = v2_rest.encode(asked(["outputs"], set()), output("stack", dead=[[], [0, 1]]))

    assert json.loads(one)["parameters"]["fully_masked_rows"] == "[1]"
    assert json.loads(two)["parameters"]["fully_masked_rows"] == "[[],[0,1]]"
