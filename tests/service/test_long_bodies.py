"""Bodies of megabytes over HTTP, in and out: they are read and written a piece at a time, which nobody can tell."""

import gzip
import json
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson
import pytest
import zstandard
from serving import Server
from wire import JSON, NPY, NPZ, SAFETENSORS, attend, bits, call, decode_json, npy, tensor_object

TOKENS = 1_500
"""So that embeddings of 64 take a megabyte of JSON and weights ten times that."""


@pytest.fixture(scope="module")
def inputs() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((TOKENS, 64), dtype=np.float32)


@pytest.fixture(scope="module")
def body(inputs: np.ndarray) -> bytes:
    found = orjson.dumps({"inputs": inputs, "return": ["outputs"]}, option=orjson.OPT_SERIALIZE_NUMPY)
    assert len(found) > 1 << 20
    return found


@pytest.fixture(scope="module")
def outputs(server: Server, inputs: np.ndarray) -> np.ndarray:
    """The answer to a short way of asking the same."""
    reply = call(
        server.url, "POST", "/v1/attention?return=outputs", npy(inputs), {"Content-Type": NPY, "Accept": SAFETENSORS}
    )
    found: np.ndarray = reply.decoded().tensors["outputs"][0]
    return found


@pytest.mark.parametrize("accept", [JSON, SAFETENSORS, NPZ])
def test_a_long_body_is_answered_as_a_short_one(server: Server, body: bytes, outputs: np.ndarray, accept: str):
    """The same bits, in every format, with the headers of every answer."""
    reply = attend(server.url, body, accept=accept)

    assert bits(reply.decoded().tensors["outputs"][0]) == bits(outputs)
    assert int(reply.headers["content-length"]) == len(reply.body) > 1 << 18
    assert [stage.partition(";")[0] for stage in reply.headers["server-timing"].split(", ")] == [
        "decode", "queue", "compute", "encode",
    ]  # fmt: skip


def test_other_spellings_of_a_long_body_give_the_same(server: Server, inputs: np.ndarray, outputs: np.ndarray):
    """Base64, indented, with escapes: some are read in pieces, others as a whole."""
    spelled = [
        json.dumps({"inputs": tensor_object(np.concatenate([inputs] * 3)[:TOKENS]), "return": ["outputs"]}),
        json.dumps({"return": ["outputs"], "inputs": inputs.tolist()}, indent=1),
        json.dumps({"inputs": inputs.tolist(), "return": ["outputs"]}).replace("inputs", "in\\u0070uts"),
    ]

    for text in spelled:
        assert bits(attend(server.url, text.encode()).decoded().tensors["outputs"][0]) == bits(outputs)


def test_a_long_body_by_the_protocol_of_v2_gives_the_same(server: Server, inputs: np.ndarray, outputs: np.ndarray):
    tensor = {"name": "inputs", "shape": list(inputs.shape), "datatype": "FP32", "data": inputs.reshape(-1)}
    document = {"inputs": [tensor], "outputs": [{"name": "outputs"}]}

    reply = call(
        server.url, "POST", "/v2/models/single-head-64/infer", orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    )

    assert reply.status == 200
    assert int(reply.headers["content-length"]) == len(reply.body)
    (found,) = reply.json()["outputs"]
    assert bits(np.array(found["data"], np.float32).reshape(found["shape"])) == bits(outputs)


@pytest.mark.parametrize(
    ("damage", "status", "pointer"),
    [
        ({"inputs": "ragged"}, 422, f"/inputs/{TOKENS - 1}"),
        ({"inputs": "text"}, 422, f"/inputs/{TOKENS - 1}/17"),
        ({"inputs": "boolean"}, 422, f"/inputs/{TOKENS - 1}/17"),
        ({"inputs": "large"}, 422, f"/inputs/{TOKENS - 1}/17"),
        ({"inputs": "nan"}, 400, None),
        ({"twice": True}, 422, "/inputs"),
        ({"inptus": 1}, 422, "/inptus"),
    ],
)
def test_what_is_wrong_in_a_long_body_has_its_place(
    server: Server, inputs: np.ndarray, damage: dict[str, Any], status: int, pointer: str | None
):
    """As in a short one."""
    rows = inputs.tolist()
    kind = damage.get("inputs")
    if kind == "ragged":
        rows[-1].append(1.0)
    elif kind is not None:
        rows[-1][17] = {"text": "1", "boolean": True, "large": 1e39, "nan": float("nan")}[kind]
    text = json.dumps({"inputs": rows} | {name: value for name, value in damage.items() if name == "inptus"})
    if "twice" in damage:
        text = text[:-1] + ', "inputs": [[1]]}'

    reply = attend(server.url, text.encode())

    assert reply.status == status
    assert [error["pointer"] for error in reply.json().get("errors", [])] == ([pointer] if pointer else [])


@pytest.mark.parametrize(("coding", "decompress"), [("gzip", gzip.decompress), ("zstd", zstandard.decompress)])
def test_a_long_answer_is_compressed_for_whoever_asks(server: Server, body: bytes, coding: str, decompress: Any):
    """It is put together for that."""
    plain = attend(server.url, body)

    reply = attend(server.url, body, accept_encoding=coding)

    assert reply.headers["content-encoding"] == coding
    assert decompress(reply.body) == plain.body


def test_decimals_and_float16_hold_in_long_answers(server: Server, body: bytes, outputs: np.ndarray):
    rounded = attend(server.url, body, "?decimals=2").decoded().tensors["outputs"][0]
    halves = attend(server.url, body, "?dtype=float16").decoded().tensors["outputs"][0]

    np.testing.assert_array_equal(rounded, np.round(outputs.astype(np.float64), 2).astype(np.float32))
    np.testing.assert_array_equal(halves.astype(np.float16), outputs.astype(np.float16))


@pytest.fixture
def connection(server: Server) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 30) as found:
        yield found


def posted(body: bytes, path: str = "/v1/attention") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def answer_of(file: Any) -> bytes:
    assert file.readline().split()[1] == b"200"
    length = 0
    while line := file.readline().strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    found: bytes = file.read(length)
    return found


def test_long_and_short_requests_in_one_go_are_answered_in_order(
    connection: socket.socket, body: bytes, outputs: np.ndarray
):
    """Pipelined; the answer to the first is still being sent when the second is due."""
    short = posted(b'{"inputs": [[1, 1, 1, 1, 1]]}', "/v1/attention?model=lesson")
    with ThreadPoolExecutor(1) as thread, connection.makefile("rb") as file:
        sending = thread.submit(connection.sendall, posted(body) + short + posted(body))
        found = [answer_of(file) for _ in range(3)]
        sending.result()

    assert [bits(decode_json(each).tensors["outputs"][0]) == bits(outputs) for each in found] == [True, False, True]


def inflight(server: Server) -> float:
    text = call(server.url, "GET", "/metrics").body.decode()
    return float(next(line for line in text.splitlines() if line.startswith("attention_inflight_bytes")).split()[-1])


def test_a_client_that_leaves_in_the_middle_of_a_long_answer_takes_no_room(
    server: Server, connection: socket.socket, inputs: np.ndarray
):
    """The rest of the answer is let go of, and nobody else notices."""
    weights = orjson.dumps({"inputs": inputs, "return": ["weights"]}, option=orjson.OPT_SERIALIZE_NUMPY)
    connection.sendall(posted(weights))
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    held = inflight(server)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset it
    connection.close()

    end = time.monotonic() + 20
    while inflight(server) and time.monotonic() < end:
        time.sleep(0.01)

    assert held > 0, "an answer counts until it has been taken"
    assert inflight(server) == 0
    assert attend(server.url, {"inputs": [[1] * 5]}, "?model=lesson").status == 200
