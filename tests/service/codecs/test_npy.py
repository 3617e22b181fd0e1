""".npy in and .npz out, against NumPy."""

import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from wire import bits, decode_npz, npy, npy_of

from models.errors import AttentionError, NonFinite, ShapeMismatch
from service.backends.base import BackendInfo
from service.codecs.npy import NpyCodec, NpzCodec
from service.codecs.requests import MOST_SEQUENCES
from service.errors import TooLarge, UnknownField, Unparsable, WrongType
from service.messages import AttentionInput, AttentionOutput, TopK
from service.problems import problem

LAW = settings(deadline=None, max_examples=150, derandomize=True)
CODEC = NpyCodec()
finite: Any = {"allow_nan": False, "allow_infinity": False}

# NumPy warns of headers as Python 2 wrote them, and the parser of literals of odd escapes in damaged ones.
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::SyntaxWarning"),
              pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # fmt: skip


def decode(body: Any, query: str = "") -> AttentionInput:
    return CODEC.decode(body if isinstance(body, bytes) else npy(body), query)


def header(shape: str = "(1, 1)", descr: str = "'<f4'", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}"


# ---- round trips


@LAW
@given(st.sampled_from(["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"]), st.booleans(), st.data())
def test_arrays_arrive_bit_by_bit_or_rounded_once(dtype: str, fortran: bool, data: st.DataObject):
    """In any byte order and memory order: the values are what counts."""
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=3, max_side=4))
    x = data.draw(hnp.arrays(dtype, shape, elements=finite))
    x = np.clip(x, -3e38, 3e38).astype(dtype) if dtype.endswith("8") else x

    found = decode(np.asfortranarray(x) if fortran else x)

    assert found.form == ("one" if x.ndim == 2 else "stack")
    wanted = [x] if x.ndim == 2 else list(x)
    assert [bits(s.inputs) for s in found.sequences] == [bits(w.astype("<f4")) for w in wanted]


def test_the_second_version_of_the_format_is_read():
    """Its header may be longer; some writers always use it."""
    data = np.arange(4, dtype="<f4")

    found = decode(npy_of(header("(2, 2)"), data.tobytes(), (2, 0)))

    assert found.sequences[0].inputs.tolist() == [[0, 1], [2, 3]]


def test_a_header_of_python_2_is_read():
    """Files of those years still go round."""
    assert decode(npy_of(header("(1L, 1L)"), bytes(4))).sequences[0].inputs.tolist() == [[0]]


def test_float32_in_row_order_is_a_view_of_the_body():
    """No copy of what need not be copied; of a stack neither."""
    for array in (np.ones((4, 4), np.float32), np.ones((2, 4, 4), np.float32)):
        body = npy(array)
        raw = np.frombuffer(body, np.uint8)
        assert all(np.shares_memory(s.inputs, raw) for s in decode(body).sequences)


# ---- refusals

OBJECTS = np.array([[1, "x"]], object)


class Harmful:
    """Its unpickling would be noticed."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([[Harmful()]], object), allow_pickle=True)
    return file.getvalue()


REFUSED: list[tuple[Any, type[AttentionError], str | None, str]] = [
    (pickled(), WrongType, "/inputs", "pickles are refused"),
    (pickle.dumps([1]), Unparsable, None, "not an .npy file"),
    (npy_of(header(descr="[('a', '|O')]"), bytes(8)), WrongType, "/inputs", "pickles are refused"),
    (b"", Unparsable, None, "not an .npy file"),
    (b"\x93NUMP", Unparsable, None, "not an .npy file"),
    (b"\x93NUMPY", Unparsable, None, "not an .npy file"),
    (b"\x93NUMPY\x01\x00", Unparsable, None, "not an .npy file"),
    (b"\x93NUMPY\x01\x00\xff\xff{", Unparsable, None, "not an .npy file"),
    (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", Unparsable, None, "not an .npy file"),
    (b"\x93NUMPY\x03\x00\x00\x00\x00\x00", Unparsable, None, "version 3.0"),
    (b"\x93NUMPY\xff\xff\x00\x00", Unparsable, None, "version 255.255"),
    (b"PK\x03\x04" + bytes(30), Unparsable, None, "not an .npy file"),
    (npy_of(""), Unparsable, None, "not an .npy file"),
    (npy_of("{"), Unparsable, None, "not an .npy file"),
    (npy_of("{'descr': ("), Unparsable, None, "not an .npy file"),
    (npy_of("(" * 300), Unparsable, None, "not an .npy file"),
    (npy_of("[" * 9_000), Unparsable, None, "not an .npy file"),
    (npy_of("{}"), Unparsable, None, "not an .npy file"),
    (npy_of("[]"), Unparsable, None, "not an .npy file"),
    (npy_of("{[]: 1}"), Unparsable, None, "not an .npy file"),
    (npy_of("__import__('os').system('true')"), Unparsable, None, "not an .npy file"),
    (npy_of(header() + " " * 20_000, bytes(4)), Unparsable, None, "not an .npy file"),
    (npy_of(header(fortran="1"), bytes(4)), Unparsable, None, "fortran_order"),
    (npy_of(header(descr="()"), bytes(4)), Unparsable, None, "not an .npy file"),
    (npy_of(header(descr="[()]"), bytes(4)), Unparsable, None, "not an .npy file"),
    (npy_of(header(descr="[(1, 2)]"), bytes(4)), Unparsable, None, "not an .npy file"),
    (npy_of(header(descr="None"), bytes(4)), Unparsable, None, "not an .npy file"),
    (npy_of(header(descr="('<f4', 1000000000000000000000)"), bytes(4)), Unparsable, None, "not an .npy file"),
    (npy_of(header(descr="'<f9'"), bytes(4)), Unparsable, None, "not an .npy file"),
    (npy_of(header("(-1, -1)"), bytes(4)), Unparsable, None, "shape (-1, -1)"),
    (npy_of(header("(True, 1)"), bytes(4)), Unparsable, None, "shape (True, 1)"),
    (npy_of(header("(1.0, 1)"), bytes(4)), Unparsable, None, "not an .npy file"),
    (npy_of(header("1"), bytes(4)), Unparsable, None, "not an .npy file"),
    (npy_of(header("(1, 2)"), bytes(4)), Unparsable, None, "4 bytes follow the header; (1, 2) of float32 takes 8"),
    (npy_of(header(), bytes(5)), Unparsable, None, "5 bytes follow"),
    (npy_of(header(f"({2**40}, {2**40})"), bytes(4)), Unparsable, None, "4 bytes follow"),
    (npy_of(header(f"(0, {2**62}, {2**62})")), ShapeMismatch, "/inputs", "no array has the shape"),
    (npy_of(header(f"(0, {2**70})")), ShapeMismatch, "/inputs", "no array has the shape"),
    (npy_of(header("(" + "1, " * 100 + ")"), bytes(4)), ShapeMismatch, "/inputs", "no array has the shape"),
    (npy_of(header("(" + "1, " * 100 + ")", fortran="True"), bytes(4)), ShapeMismatch, "/inputs", "no array"),
    (np.ones((1, 1), np.int32), WrongType, "/inputs", "float16, float32, float64 are read"),
    (np.ones((1, 1), bool), WrongType, "/inputs", "dtype bool"),
    (np.ones((1, 1), np.complex64), WrongType, "/inputs", "complex64"),
    (np.ones((1, 1), "U3"), WrongType, "/inputs", "<U3"),
    (np.ones((1, 1), [("a", "<f4")]), WrongType, "/inputs", "float32"),
    (np.ones((1, 1), "M8[s]"), WrongType, "/inputs", "datetime64"),
    (np.ones((1, 1), np.longdouble), WrongType, "/inputs", "float16, float32, float64 are read"),
    (np.ones(3, np.float32), ShapeMismatch, "/inputs", "[3]"),
    (np.float32(1), ShapeMismatch, "/inputs", "[]"),
    (np.ones((1, 1, 1, 1), np.float32), ShapeMismatch, "/inputs", "[1, 1, 1, 1]"),
    (np.ones((0, 3), np.float32), ShapeMismatch, "/inputs", "no tokens"),
    (np.ones((3, 0), np.float32), ShapeMismatch, "/inputs/0", "no numbers"),
    (np.ones((0, 3, 3), np.float32), ShapeMismatch, "/inputs", "no sequences"),
    (np.ones((MOST_SEQUENCES + 1, 1, 1), np.float32), TooLarge, "/inputs", "16384"),
    (np.array([[1, np.nan]], np.float32), NonFinite, "/inputs/0/1", "nan"),
    (np.array([[1], [-np.inf]], ">f8"), NonFinite, "/inputs/1/0", "-inf"),
    (np.asfortranarray([[0, 1e39], [0, 0]]), NonFinite, "/inputs/0/1", "1e+39 is too large for float32"),
    (np.array([[[1]], [[np.inf]]], np.float16), NonFinite, "/inputs/1/0/0", "inf"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "error", "pointer", "part"), REFUSED, ids=[f"{i}-{case[3][:24]}" for i, case in enumerate(REFUSED)]
)
def test_a_refusal_names_the_place_and_what_would_be_right(
    body: Any, error: type[AttentionError], pointer: str | None, part: str
):
    """Pickles above all: they are programs."""
    with pytest.raises(AttentionError) as caught:
        decode(body)

    assert type(caught.value) is error
    assert part in caught.value.detail
    assert [field.pointer for field in caught.value.fields] == ([] if pointer is None else [pointer])
    problem(caught.value, "id")


def test_options_come_by_the_query_string():
    """The format has no other place for them."""
    assert decode(np.ones((1, 1), np.float32), "top_k=2").options.top_k == 2
    with pytest.raises(UnknownField):
        decode(np.ones((1, 1), np.float32), "k=2")


# ---- rubbish


@settings(LAW, max_examples=300)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda rest: b"\x93NUMPY\x01\x00" + rest)))
def test_any_bytes_are_refused_by_name(body: bytes):
    """Nothing that a caller sends may raise anything but an error of ours."""
    with pytest.raises(AttentionError):
        decode(body)


words = st.sampled_from([
    "'descr'", "'fortran_order'", "'shape'", "'<f4'", "'|O'", "False", "True", "None", "(", ")", "[", "]", "{", "}",
    ",", ":", "1", "0", "-1", "9" * 20, "1L", "'", "\\", "\n", "()", "(1,1)", "b'x'", "*", ".", "f''", "  ", "#", "é",
])  # fmt: skip


@settings(LAW, max_examples=600)
@given(st.lists(words, max_size=14).map(" ".join), st.binary(max_size=8))
def test_any_header_is_read_or_refused_by_name(text: str, data: bytes):
    """NumPy's parser of headers is Python's, with all its exceptions."""
    for whole in (text, header(shape=text or "()"), header(descr=text or "()")):
        try:
            decode(npy_of(whole, data))
        except AttentionError as error:
            problem(error, "id")


VALID = [npy(np.ones((2, 2), np.float32)), npy(np.asfortranarray(np.ones((2, 3)))), npy(np.ones((2, 1, 2), ">f2"))]


@settings(LAW, max_examples=600)
@given(st.sampled_from(VALID), st.data())
def test_a_damaged_body_is_read_or_refused_by_name(body: bytes, data: st.DataObject):
    """Truncated anywhere, or with bits flipped in its magic, its header or its numbers."""
    if data.draw(st.booleans()):
        body = body[: data.draw(st.integers(0, len(body)))]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, max(0, min(80, len(body) - 1))))
        if body:
            body = body[:at] + bytes([body[at] ^ 1 << data.draw(st.integers(0, 7))]) + body[at + 1 :]
    try:
        decode(body)
    except AttentionError as error:
        problem(error, "id")


# ---- answers

BACKEND = BackendInfo("onnx", "cpu", "CPUExecutionProvider", "float32")


def encode(answers: list[dict[str, Any]], form: Any, dead: list[list[int]] | None = None) -> bytes:
    rows = dead or [[] for _ in answers]
    return NpzCodec().encode(AttentionOutput(answers, rows, form, "json", ("lesson", "1"), BACKEND))


@LAW
@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4), elements=finite))
def test_numpy_reads_what_is_written_bit_by_bit(x: np.ndarray):
    """Without pickle, in every nesting."""
    one = decode_npz(encode([{"outputs": x}], "one"))
    several = decode_npz(encode([{"outputs": x}, {"outputs": x[:1]}], "list"), 2)
    stack = decode_npz(encode([{"outputs": x}] * 2, "stack"), 2)

    assert bits(one.tensors["outputs"][0]) == bits(x)
    assert [bits(part) for part in several.tensors["outputs"]] == [bits(x), bits(x[:1])]
    assert [bits(part) for part in stack.tensors["outputs"]] == [bits(x)] * 2


@pytest.mark.parametrize("form", ["one", "list", "stack"])
def test_sparse_weights_masked_scores_and_metadata_are_there(form: str):
    """All that the JSON answer says, without its NaN-free compromises."""
    sparse = TopK(np.array([[1, 0]], np.int32), np.array([[0.75, 0.25]], np.float32))
    count = 1 if form == "one" else 2
    answers = [{"weights": sparse, "scores": np.array([[-np.inf, 1]], np.float32)}] * count

    found = decode_npz(encode(answers, form, [[0]] * count), None if form == "one" else 2)

    assert [(i.tolist(), v.tolist()) for i, v in found.tensors["weights"]] == [([[1, 0]], [[0.75, 0.25]])] * count
    assert all(scores.tolist() == [[-np.inf, 1]] for scores in found.tensors["scores"])
    assert found.metadata["fully_masked_rows"] == ([0] if form == "one" else [[0], [0]])
    assert found.metadata["model"] == {"name": "lesson", "version": "1"}
    assert found.metadata["backend"]["name"] == "onnx"


@LAW
@given(hnp.arrays(np.float16, hnp.array_shapes(max_dims=3, max_side=4)))
def test_float16_are_written_bit_by_bit(x: np.ndarray):
    """As the arrays they are."""
    x = np.where(np.isnan(x), np.float16(-np.inf), x)

    found = decode_npz(encode([{"outputs": x}], "one"))

    assert found.tensors["outputs"][0].dtype == np.float16
    assert bits(found.tensors["outputs"][0]) == bits(x)
