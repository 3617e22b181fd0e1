"""Long answers in pieces: joined, they are the answer."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from models.tokenizer import Tokens
from models.types import Array
from service.backends.base import BackendInfo
from service.codecs import ENCODERS, answers, long_json, v2_rest
from service.codecs.answers import raw_pieces
from service.messages import AttentionOutput, TopK

LAW = settings(deadline=None, max_examples=100, derandomize=True)
BACKEND = BackendInfo("onnx", "cpu", "CPUExecutionProvider", "float32")

numbers = st.floats(width=32, allow_nan=False)  # -inf is a masked score


@pytest.fixture(autouse=True)
def tiny_pieces() -> Iterator[None]:
    """So that an answer of a few numbers has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_json, "LEAST", 3)
        patch.setattr(answers, "RAW", 8)
        yield


@st.composite
def outputs(draw: st.DrawFn) -> AttentionOutput:
    """An answer as it may come from the engine."""
    form = draw(st.sampled_from(["one", "list", "stack"]))
    count = 1 if form == "one" else draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    sparse, heads = draw(st.booleans()), draw(st.integers(1, 3))
    lengths = [draw(st.integers(1, 4))] * count if form == "stack" else [draw(st.integers(1, 4)) for _ in range(count)]

    def tensor(*shape: int) -> Array:
        found = draw(hnp.arrays(np.float32, shape, elements=numbers))
        with np.errstate(over="ignore"):
            return found.astype(dtype)

    answers: list[dict[str, Array | TopK]] = []
    for n in lengths:
        weights: Any = tensor(heads, n, n)
        if sparse:
            weights = TopK(np.zeros((heads, n, 1), np.int32), weights[..., :1])  # a view that is not contiguous
        answers.append({"outputs": tensor(n, 5).T, "weights": weights})
    encoding = draw(st.sampled_from(["json", "base64"]))
    tokens = None
    if form != "stack" and draw(st.booleans()):
        answers = [{f"layers.{i}.{name}": value for i in (3, 1) for name, value in a.items()} for a in answers]
        tokens = [Tokens(np.arange(n), ("\0", "naïve", '"', "x")[:n], ((0, 1),) * n, (False,) * n) for n in lengths]
    return AttentionOutput(
        answers=answers,
        fully_masked_rows=[[0]] * count,
        form=form,
        encoding=encoding,
        model=("m", "1"),
        backend=BACKEND,
        decimals=draw(st.sampled_from([None, 2])) if encoding == "json" and dtype == np.float32 else None,
        tokens=tokens,
    )


@LAW
@given(outputs(), st.sampled_from(sorted(ENCODERS)))
def test_the_pieces_of_an_answer_are_the_answer(output: AttentionOutput, media_type: str):
    """Byte by byte, in every format."""
    encoder = ENCODERS[media_type]

    assert b"".join(encoder.pieces(output)) == encoder.encode(output)


@LAW
@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=3, max_dims=3, max_side=4), elements=numbers), st.booleans())
def test_the_weights_for_bertviz_are_the_same_in_pieces(weights: np.ndarray, many: bool):
    output = AttentionOutput(
        [{"weights": weights}] * (2 if many else 1), [[]] * (2 if many else 1), "list" if many else "one", "json",
        ("m", "1"), BACKEND, format="bertviz",
    )  # fmt: skip
    encoder = ENCODERS["application/json"]

    assert b"".join(encoder.pieces(output)) == encoder.encode(output)


@LAW
@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=numbers))
def test_an_answer_by_the_protocol_of_v2_is_the_same_in_pieces(x: np.ndarray):
    body = b'{"id": "7", "inputs": [{"name": "inputs", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}'
    asked = v2_rest.decode(body, "", "m")
    output = AttentionOutput([{"outputs": x, "weights": x.T}], [[]], "one", "json", ("m", "1"), BACKEND)

    assert (b"".join(v2_rest.pieces(asked, output)), None) == v2_rest.encode(asked, output)


@LAW
@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0), elements=numbers), st.booleans())
def test_raw_pieces_are_the_bytes_in_c_order(x: np.ndarray, turned: bool):
    """Views that backends give are not contiguous, and an axis may be empty."""
    array = x.T if turned else x

    assert b"".join(raw_pieces(array)) == array.tobytes()
