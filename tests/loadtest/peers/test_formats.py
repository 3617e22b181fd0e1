import msgpack
import numpy as np
import orjson
import pytest

from loadtest.bench import work
from loadtest.bench.formats import Message
from loadtest.bench.work import Layer
from loadtest.peers.formats import packed, plain_json, protocol_binary, protocol_json

LAYER, N = Layer(4), 3
X = work.inputs(N, 4)
OUTPUTS, WEIGHTS = (a.astype(np.float32) for a in work.reference(LAYER, X))


def json_answer(message: Message) -> Message:
    sent = np.array(orjson.loads(message.body)["inputs"], np.float32)
    np.testing.assert_array_equal(sent, X)
    return Message("", {}, orjson.dumps({"outputs": OUTPUTS.tolist(), "weights": WEIGHTS.tolist()}))


def packed_answer(message: Message) -> Message:
    sent = msgpack.unpackb(message.body)
    np.testing.assert_array_equal(np.frombuffer(sent["inputs"], "<f4").reshape(sent["shape"]), X)
    return Message("", {}, msgpack.packb({"outputs": OUTPUTS.tobytes(), "weights": WEIGHTS.tobytes()}))


def protocol_answer(message: Message) -> Message:
    (tensor,) = orjson.loads(message.body)["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("inputs", "FP32", [1, N, 4])
    np.testing.assert_array_equal(np.array(tensor["data"], np.float32).reshape(N, 4), X)
    named = {"weights": WEIGHTS, "outputs": OUTPUTS}
    outputs = [{"name": name, "shape": [1, *a.shape], "data": a.ravel().tolist()} for name, a in named.items()]
    return Message("", {}, orjson.dumps({"outputs": outputs}))


def binary_answer(message: Message) -> Message:
    at = int(message.headers["Inference-Header-Content-Length"])
    (tensor,) = orjson.loads(message.body[:at])["inputs"]
    assert tensor["parameters"]["binary_data_size"] == len(message.body) - at == X.nbytes
    np.testing.assert_array_equal(np.frombuffer(message.body[at:], "<f4").reshape(N, 4), X)
    named = {"weights": WEIGHTS, "outputs": OUTPUTS}
    head = orjson.dumps(
        {"outputs": [{"name": name, "parameters": {"binary_data_size": a.nbytes}} for name, a in named.items()]}
    )
    body = head + b"".join(a.tobytes() for a in named.values())
    return Message("", {"inference-header-content-length": str(len(head))}, body)


@pytest.mark.parametrize(
    ("form", "server"),
    [
        (plain_json("/a"), json_answer),
        (packed("/a"), packed_answer),
        (protocol_json("/a"), protocol_answer),
        (protocol_binary("/a"), binary_answer),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_request_is_written_and_its_answer_read(form, server):
    """By servers that read as the peers do, and put weights first where order is theirs to choose."""
    message = form.encode(LAYER, X)

    assert message.path == "/a"
    work.check(LAYER, X, form.decode(server(message), LAYER, N))
