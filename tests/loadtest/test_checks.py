import base64
import dataclasses
import struct

import numpy as np
import orjson
import pytest
from safetensors.numpy import save

from loadtest.checks import WrongAnswer, check_answer
from loadtest.payloads import FORMATS, HEADER_LENGTH, Model, make_payload
from loadtest.wire import Answer

N, EMBED_DIM, HEAD_DIM = 6, 8, 4
MEDIA_TYPES = {
    "json": "application/json",
    "base64": "application/json; charset=utf-8",
    "safetensors": "application/x-safetensors",
    "v2": "application/octet-stream",
}


def payload(form="json", *, heads=1, causal=False, **changes):
    inputs = np.random.default_rng(0).standard_normal((N, EMBED_DIM), dtype=np.float32)
    model = Model("small", EMBED_DIM, heads=heads, output_dim=heads * HEAD_DIM)
    return dataclasses.replace(make_payload(form, model, inputs, causal=causal), **changes)


def attention(heads=1, *, causal=False, masked_rows=()):
    """A right answer of some model: weights (n, n) or (heads, n, n), outputs (n, heads * HEAD_DIM)."""
    random = np.random.default_rng(1)
    query, key, value = random.standard_normal((3, heads, N, HEAD_DIM))
    scores = query @ key.swapaxes(1, 2) / np.sqrt(HEAD_DIM)
    if causal:
        scores = np.where(np.tri(N, dtype=bool), scores, -np.inf)
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = exp / exp.sum(axis=-1, keepdims=True)
    weights[:, list(masked_rows)] = 0
    outputs = (weights @ value).swapaxes(0, 1).reshape(N, -1)
    return outputs.astype(np.float32), (weights if heads > 1 else weights[0]).astype(np.float32)


def answer_of(media_type, body, **headers):
    """A 200 with this body; `x_y=…` is the header X-Y."""
    lines = ["HTTP/1.1 200 OK", f"content-type: {media_type}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return Answer(200, "\r\n".join(lines).encode(), body)


def v2_answer(text, data=b"", length=None):
    """An answer of the Open Inference Protocol; `length` is what it says that its JSON part has."""
    said = {HEADER_LENGTH.replace("-", "_"): len(text) if length is None else length}
    return answer_of(MEDIA_TYPES["v2"], text + data, **said)


def encode(form, outputs, weights, masked_rows=None):
    """What a service that computed these would answer."""
    tensors = {"outputs": np.ascontiguousarray(outputs), "weights": np.ascontiguousarray(weights)}
    rows = {} if masked_rows is None else {"fully_masked_rows": masked_rows}
    told = {name: orjson.dumps(value).decode() for name, value in rows.items()}
    if form == "safetensors":
        return answer_of(MEDIA_TYPES[form], save(tensors, metadata=told))
    if form == "v2":
        entries = [
            {"name": name, "datatype": "FP32", "shape": t.shape, "parameters": {"binary_data_size": t.nbytes}}
            for name, t in tensors.items()
        ]
        text = orjson.dumps({"model_name": "small", "parameters": {"backend": "onnx", **told}, "outputs": entries})
        return v2_answer(text, b"".join(t.tobytes() for t in tensors.values()))
    if form == "base64":
        tensors = {
            name: {"shape": t.shape, "dtype": str(t.dtype), "data": base64.b64encode(t.tobytes()).decode()}
            for name, t in tensors.items()
        }
    return answer_of(MEDIA_TYPES[form], orjson.dumps({**tensors, **rows}, option=orjson.OPT_SERIALIZE_NUMPY))


def check(request, outputs, weights, masked_rows=None):
    check_answer(request, encode(request.format, outputs, weights, masked_rows))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_a_right_answer_passes(form, heads, causal):
    """A check that fails what is right would be switched off."""
    check(payload(form, heads=heads, causal=causal), *attention(heads, causal=causal))


@pytest.mark.parametrize("heads", [1, 3])
def test_a_right_answer_of_an_unknown_model_passes(heads):
    """Of a model of the caller's own only embed_dim is known."""
    unknown = dataclasses.replace(payload(), heads=None, output_dim=None)

    check(unknown, *attention(heads))


@pytest.mark.parametrize("form", FORMATS)
def test_rows_that_see_nothing_may_be_zeros(form):
    """They are the one exception to the sum of 1."""
    check(payload(form, fully_masked_rows=(2,)), *attention(masked_rows=[2]), [2])


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_that_does_not_sum_to_one_is_caught(form):
    """The mark of a softmax over the wrong axis, or over padding."""
    outputs, weights = attention(3)
    weights[1, 4] *= 1.001

    with pytest.raises(WrongAnswer, match=r"weights\[1, 4\] sum to 1\.001, expected 1 within 0\.0001"):
        check(payload(form, heads=3), outputs, weights)


def test_rounding_of_float32_is_not_caught():
    """Sums of float32 are 1 within some 1e-6, never exactly."""
    outputs, weights = attention()
    weights[0] *= 1.00005

    check(payload(), outputs, weights)


def test_a_negative_weight_is_caught():
    """A row of -1 and 2 sums to 1 as well."""
    outputs, weights = attention()
    weights[3] = [-1, 2, 0, 0, 0, 0]

    with pytest.raises(WrongAnswer, match=r"weights\[3, 0\] is -1\.0, which is negative"):
        check(payload(), outputs, weights)


@pytest.mark.parametrize("form", ["base64", "safetensors"])
@pytest.mark.parametrize("which", ["outputs", "weights"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_finite_is_caught(form, which, number):
    """NaN is what a fully masked row gives where nobody thought of it."""
    answer = dict(zip(("outputs", "weights"), attention(), strict=True))
    answer[which][2, 1] = number

    with pytest.raises(WrongAnswer, match=rf"{which}\[2, 1\] is {number}, which is not finite"):
        check(payload(form), **answer)


def test_null_among_json_numbers_is_caught():
    """JSON has no NaN: a service that has one writes null, and NumPy would read it as NaN without a word."""
    outputs, weights = attention()
    weights[2, 1] = np.nan

    with pytest.raises(WrongAnswer, match="weights holds something that is not a number"):
        check(payload(), outputs, weights)


@pytest.mark.parametrize("form", FORMATS)
def test_a_causal_row_that_sees_the_future_is_caught(form):
    """The smallest leak is a leak: the upper triangle is exactly 0."""
    outputs, weights = attention(causal=True)
    weights[1, 4] = 1e-9

    with pytest.raises(WrongAnswer, match=r"weights\[1, 4\] is 1e-09, but a causal row sees no later column"):
        check(payload(form, causal=True), outputs, weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o, w: (o[:-1], w), r"outputs have shape \[5, 4\], expected \[6\]\[4\]"),
        (lambda o, w: (o[:, :-1], w), r"outputs have shape \[6, 3\], expected \[6\]\[4\]"),
        (lambda o, w: (o[None], w), r"outputs have shape \[1, 6, 4\], expected \[6\]\[4\]"),
        (lambda o, w: (o, w[:-1]), r"weights have shape \[5, 6\], expected \[6\]\[6\]"),
        (lambda o, w: (o, w[None]), r"weights have shape \[1, 6, 6\], expected \[6\]\[6\]"),
    ],
)
@pytest.mark.parametrize("form", FORMATS)
def test_a_wrong_shape_is_caught(form, change, message):
    """An answer to somebody else's request is most often seen by its shape."""
    with pytest.raises(WrongAnswer, match=message):
        check(payload(form), *change(*attention()))


def test_a_wrong_number_of_heads_is_caught():
    """The mean over heads, or one head of many, is not what was asked."""
    with pytest.raises(WrongAnswer, match=r"expected \[3\]\[6\]\[6\]"):
        check(payload(heads=3), *attention(2))


def test_a_listed_row_that_is_not_zeros_is_caught():
    """A row that sees nothing must answer nothing."""
    outputs, weights = attention()

    with pytest.raises(WrongAnswer, match="row 2 is fully masked, but its weights or its outputs are not all 0"):
        check(payload(fully_masked_rows=(2,)), outputs, weights, [2])


@pytest.mark.parametrize("form", FORMATS)
def test_zeros_excused_by_a_mask_that_was_not_sent_are_caught(form):
    """Otherwise a service could answer zeros to everything and list all rows."""
    with pytest.raises(WrongAnswer, match=r"fully_masked_rows is \[2\], expected \[\]"):
        check(payload(form), *attention(masked_rows=[2]), [2])


def test_masked_rows_that_are_not_listed_are_caught():
    """A caller cannot tell zeros that mean something from zeros that do not."""
    with pytest.raises(WrongAnswer, match=r"fully_masked_rows is \[\], expected \[2\]"):
        check(payload(fully_masked_rows=(2,)), *attention(masked_rows=[2]))


@pytest.mark.parametrize("form", FORMATS)
def test_another_media_type_is_caught(form):
    """A page of HTML with status 200 is a proxy's, not an answer."""
    body = encode(form, *attention()).body

    with pytest.raises(WrongAnswer, match="the answer is text/html, expected application/"):
        check_answer(payload(form), answer_of("text/html", body))


@pytest.mark.parametrize(("asked", "sent"), [("json", "base64"), ("base64", "json")])
def test_the_other_json_encoding_is_caught(asked, sent):
    """A measure of base64 that was answered in numbers measures numbers."""
    with pytest.raises(WrongAnswer, match="outputs is"):
        check_answer(payload(asked), encode(sent, *attention()))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b'{"outputs": [[1', "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"outputs": [[1.0]]}', "no weights"),
        (b'{"outputs": [[1.0], [1.0, 2.0]], "weights": []}', "not rectangular"),
        (b'{"outputs": [["1"]], "weights": []}', "not a number"),
        (b'{"outputs": [[1]], "weights": [[1]], "fully_masked_rows": 1}', "a list of row numbers"),
    ],
)
def test_json_that_cannot_be_read_is_caught(body, message):
    """A broken answer is a wrong answer, not a crash of the load test."""
    with pytest.raises(WrongAnswer, match=message):
        check_answer(payload(), answer_of("application/json", body))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int8"}, "outputs has dtype 'int8'"),
        ({"data": "!"}, "not base64"),
        ({"data": None}, "not base64"),
        ({"data": "AAAA"}, "outputs has 3 bytes, its shape"),
        ({"shape": "6"}, "a list of sizes"),
    ],
)
def test_a_tensor_object_that_cannot_be_read_is_caught(change, message):
    """A broken answer is a wrong answer, not a crash of the load test."""
    document = orjson.loads(encode("base64", *attention()).body)
    document["outputs"] |= change

    with pytest.raises(WrongAnswer, match=message):
        check_answer(payload("base64"), answer_of("application/json", orjson.dumps(document)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_dtype_of_a_tensor_object_is_read(dtype):
    """The contract allows three."""
    outputs, weights = (array.astype(dtype) for array in attention())
    weights[:] = np.eye(N)  # exact in float16 too

    check(payload("base64"), outputs, weights)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{}", "no outputs"),
        (b"nonsense", "header is not JSON"),
        (b'{"outputs": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}', "dtype 'F16', expected 'F32'"),
        (b'{"outputs": {"dtype": "F32", "shape": [1], "data_offsets": [0, 99]}}', "outside the 0 bytes"),
        (b'{"outputs": {"dtype": "F32", "shape": [1]}}', "outside the 0 bytes"),
        (b'{"outputs": {"dtype": "F32", "shape": [1], "data_offsets": [0, 0]}}', "has 0 bytes, its shape"),
    ],
)
def test_safetensors_that_cannot_be_read_are_caught(header, message):
    """A broken answer is a wrong answer, not a crash of the load test."""
    body = struct.pack("<Q", len(header)) + header

    with pytest.raises(WrongAnswer, match=message):
        check_answer(payload("safetensors"), answer_of(MEDIA_TYPES["safetensors"], body))


def test_safetensors_cut_short_are_caught():
    """A connection that broke in the middle."""
    with pytest.raises(WrongAnswer, match="too few for safetensors"):
        check_answer(payload("safetensors"), answer_of(MEDIA_TYPES["safetensors"], b"\x01\x02"))


@pytest.mark.parametrize(
    ("metadata", "message"), [({"a": 1}, "not a string"), ({"fully_masked_rows": "[1"}, "is not JSON")]
)
def test_metadata_that_cannot_be_read_are_caught(metadata, message):
    """safetensors metadata are strings; ours hold JSON."""
    body = encode("safetensors", *attention()).body
    (length,) = struct.unpack_from("<Q", body)
    header = orjson.dumps(orjson.loads(body[8 : 8 + length]) | {"__metadata__": metadata})
    changed = struct.pack("<Q", len(header)) + header + body[8 + length :]

    with pytest.raises(WrongAnswer, match=message):
        check_answer(payload("safetensors"), answer_of(MEDIA_TYPES["safetensors"], changed))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (v2_answer(b"{}", length="x"), "Inference-Header-Content-Length is 'x' of 2 bytes"),
        (v2_answer(b"{}", length=3), "Inference-Header-Content-Length is '3' of 2 bytes"),
        (v2_answer(b"nonsense"), "the JSON part is not JSON"),
        (v2_answer(b"{}"), "the answer has no tensors, and 0 bytes after them"),
        (
            v2_answer(b'{"outputs": [{"name": "outputs", "datatype": "FP32", "data": [1]}]}'),
            "not a binary tensor of FP32",
        ),
        (
            v2_answer(
                b'{"outputs": [{"name": "outputs", "datatype": "FP32", "shape": [2],'
                b' "parameters": {"binary_data_size": 8}}]}',
                b"1234",
            ),
            "outputs has 4 bytes, its shape",
        ),
    ],
)
def test_a_binary_answer_of_the_open_protocol_that_cannot_be_read_is_caught(answer, message):
    """A broken answer is a wrong answer, not a crash of the load test."""
    with pytest.raises(WrongAnswer, match=message):
        check_answer(payload("v2"), answer)


def test_bytes_after_the_last_tensor_are_caught():
    """Sizes add up to the byte, or somebody has miscounted."""
    right = encode("v2", *attention())

    with pytest.raises(WrongAnswer, match="outputs, weights, and 1 bytes after them"):
        check_answer(payload("v2"), dataclasses.replace(right, body=right.body + b"x"))
