"""Numbers as text: what is read is what Python reads, what is written is what orjson writes."""

import decimal
import struct
from typing import Any

import numba
import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service import digits

LAW = settings(deadline=None, max_examples=500, derandomize=True)

words = st.integers(0, 2**32 - 1).map(lambda word: struct.unpack("f", struct.pack("I", word))[0])
"""Every float32 there is."""

SIGNIFICANT = [
    *(0.0, -0.0, 1.0, -1.5, 9.999999, 1e-6, 1.2345679e-6, 1.25e-7, 1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38),
    *(1e12, 1e13, 16777216.0, 8388608.5, 33554432.0, 123456790.0, float("inf"), float("-inf"), float("nan")),
]


def written(array: np.ndarray, parts: int = 1) -> bytes:
    """An array with up to three axes, in so many parts; none writes beyond its room."""
    group = array.shape[-2] if array.ndim > 1 else 1
    rows = array.reshape(-1, array.shape[-1])
    found, first = b"", 0
    for some in np.array_split(rows, min(parts, len(rows))):
        room = digits.room(some)
        out = np.full(room + 64, 7, np.uint8)
        end = digits.write(np.ascontiguousarray(some), array.ndim, first, len(rows), group, out[:room])
        assert (out[room:] == 7).all()
        assert end <= room
        found += out[:end].tobytes()
        first += len(some)
    return found


def by_orjson(array: np.ndarray) -> bytes:
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)


@LAW
@given(st.lists(words, min_size=1, max_size=40))
@example(SIGNIFICANT)
def test_numbers_are_written_as_orjson_writes_them(numbers: list[float]):
    array = np.array(numbers, np.float32)

    assert written(array) == by_orjson(array)


def test_a_million_floats_of_all_sizes_are_written_as_orjson_writes_them():
    """With the powers of two and of ten, where the distance to the next number changes, and all small integers."""
    bits = np.random.default_rng(7).integers(0, 2**32, 1_000_000, np.uint32).view(np.float32)
    special = [2.0 ** np.arange(-149, 128), 10.0 ** np.arange(-45, 39), np.arange(100_000), np.arange(8_000) / 1_000]
    with np.errstate(over="ignore"):
        array = np.concatenate([bits, *(each.astype(np.float32) for each in special)])

    assert written(array[None]) == by_orjson(array[None])


def test_the_longest_numbers_have_room():
    array = np.full((3, 50), -0.0000043347263, np.float32)
    assert len(by_orjson(array[0, :1])) == len(b"[]") + digits.WIDEST - len(b",")

    assert written(array) == by_orjson(array)


@LAW
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(1, 4))
def test_brackets_are_those_of_the_array_however_it_is_cut(shape: list[int], parts: int):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 4

    assert written(array, parts) == by_orjson(array)


def read(text: bytes, short_row: int = 0, hard: int = 64) -> tuple[bytes | None, np.ndarray, np.ndarray]:
    """What is left of a text, None where it is odd; its numbers, those that take more care among them; and those."""
    rest, numbers = np.empty(len(text) + 32, np.uint8), np.empty(len(text) // 2 + 1, np.float32)
    marks, careful = np.empty((64, 4), np.int64), np.empty((hard, 3), np.int64)
    at, k, n, _, h = digits.cut(
        np.frombuffer(text, np.uint8), 0, len(text), 0, 1_024, short_row, rest, numbers, marks, careful
    )
    if at == digits.ODD:
        return None, numbers[:0], careful[:0]
    for i, begin, end in careful[:h]:
        with np.errstate(over="ignore"):
            numbers[i] = float(text[begin:end])
    return rest[:k].tobytes(), numbers[:n], careful[:h]


def nearest(text: str) -> np.float32:
    """What a number means: the nearest float64, and the float32 that is nearest to that."""
    with np.errstate(over="ignore"):
        return np.float64(text).astype(np.float32)


whole_parts = st.one_of(st.just("0"), st.integers(1, 10**22).map(str))
fractions = st.one_of(st.just(""), st.text("0123456789", min_size=1, max_size=24).map(lambda figures: f".{figures}"))
exponents = st.one_of(st.just(""), st.builds("{}{}".format, st.sampled_from(["e", "E+", "e-"]), st.integers(0, 80)))
decimals = st.builds("{}{}{}{}".format, st.sampled_from(["", "-"]), whole_parts, fractions, exponents)


@LAW
@given(st.lists(decimals, min_size=1, max_size=8))
@example(["0.00000000000000000000", "-0", "0e99", "0.1e+2", "16777217", "16777219.0", "0.000012345678901234567"])
def test_numbers_are_read_as_python_reads_them(texts: list[str]):
    """Bit by bit; what is infinite in float32 is not read."""
    wanted = np.array([nearest(text) for text in texts])

    rest, numbers, _ = read(f"[[{', '.join(texts)}]]".encode())

    if rest is None:
        assert np.isinf(wanted).any()
    else:
        assert numbers.tobytes() == wanted.tobytes()


@LAW
@given(st.lists(words.filter(np.isfinite), min_size=1, max_size=8), st.integers(-12, 12))
def test_numbers_beside_the_middle_of_two_are_read_right(floats: list[float], nudge: int):
    """As many digits as it takes: there, one digit more decides."""
    below = np.array(floats, np.float32)
    with np.errstate(over="ignore"):
        middles = (below.astype(np.float64) + np.nextafter(below, np.float32(np.inf)).astype(np.float64)) / 2
    with decimal.localcontext(prec=40):
        texts = [str(decimal.Decimal(repr(float(m))) * (1 + decimal.Decimal(nudge).scaleb(-18))) for m in middles]
    wanted = np.array([nearest(text) for text in texts])

    rest, numbers, _ = read(f"[[{','.join(texts)}]]".encode())

    assert rest is not None or np.isinf(wanted).any()
    assert rest is None or numbers.tobytes() == wanted.tobytes()


def test_what_clients_send_is_never_hard():
    """Numbers of float32 with the digits of float64, which is what `tolist` gives, and of float64."""
    rng = np.random.default_rng(3)
    singles = (rng.standard_normal(20_000) * 10.0 ** rng.integers(-20, 20, 20_000)).astype(np.float32)
    doubles = rng.standard_normal(20_000)

    for array in (singles.astype(np.float64), doubles):
        rest, numbers, careful = read(orjson.dumps([array.tolist()]))
        assert (rest, len(careful)) == (b'["cut:0"]', 0)
        assert numbers.tobytes() == array.astype(np.float32).tobytes()


def test_too_many_hard_numbers_are_odd():
    text = orjson.dumps([[1e-40] * 5])

    assert read(text, hard=5)[0] == b'["cut:0"]'
    assert read(text, hard=4)[0] is None


@pytest.mark.parametrize(
    "number",
    ["01", "-", "-a", ".5", "1.", "1.e5", "1e", "1e+", "+1", "1_0", "0x1", "1 2", "Infinity", "NaN", "-Infinity",
     "1e39", "--1", "1..2", "1.2.3", "tru", "true1", "truefalse", "True", "fals", "nul", "1.2345678.9", "00.1", "-01"],
)  # fmt: skip
def test_what_is_no_number_is_odd(number: str):
    assert read(f"[[1, {number}]]".encode())[0] is None
    assert read(f"[[{number}, 2]]".encode())[0] in (None, f"[[{number}, 2]]".encode())  # left for others to refuse


def test_a_text_may_end_anywhere():
    """Nothing behind its end is looked at, and no beginning of it is taken for more than it is."""
    text = b'{"a": [[1.25, -2.5e-3], [0.123456789, 1]], "b": [[true, false]], "c": "text", "d": [1, 2, 3]}'

    whole, *_ = read(text)
    assert whole == b'{"a": ["cut:0"], "b": ["cut:1"], "c": "text", "d": "cut:2"}'
    for end in range(len(text)):
        rest, *_ = read(text[:end])
        assert rest is None or len(rest) < len(whole)


def test_short_arrays_of_a_field_stay():
    assert read(b'{"a": [1, 2, 3], "b": [ [1, 2, 3] ]}', short_row=3)[0] == b'{"a": [1, 2, 3], "b": [ "cut:0" ]}'


def test_rows_of_one_length_and_kind_are_one():
    assert read(b"[[1, 2] , [3, 4],[5],[true],[false],[1]]")[0] == b'["cut:0","cut:1","cut:2","cut:3"]'


def test_code_is_compiled_where_it_cannot_be_kept(monkeypatch: pytest.MonkeyPatch):
    """As in a container whose file system is read-only."""

    def njit(signature: str, *, cache: bool = False, **how: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return numba.njit(signature, **how)

    monkeypatch.setattr(digits, "njit", njit)

    assert digits.compiled("int64(int64)")(lambda n: 2 * n)(21) == 42
