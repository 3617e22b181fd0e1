"""Wire formats of the peers. Pure."""

from typing import Any

import msgpack
import numpy as np
import orjson

from loadtest.bench.formats import Format, Message, read_json, write_json
from loadtest.bench.work import F32, Layer, Tensors

_JSON = {"Content-Type": "application/json"}


def plain_json(path: str) -> Format:
    """`{"inputs": [n][d]}` there, `{"outputs": …, "weights": …}` back."""
    return Format(
        "json",
        binary=False,
        encode=lambda layer, x: Message(path, _JSON, write_json(x)),
        decode=lambda answer, layer, n: read_json(answer.body),
    )


def packed(path: str) -> Format:
    """The same in msgpack, with the numbers as bytes and a shape beside them."""

    def encode(layer: Layer, x: F32) -> Message:
        body = msgpack.packb({"inputs": x.tobytes(), "shape": list(x.shape)})
        return Message(path, {"Content-Type": "application/msgpack"}, body)

    def decode(answer: Message, layer: Layer, n: int) -> Tensors:
        found = msgpack.unpackb(answer.body)
        return _shaped({name: np.frombuffer(found[name], "<f4") for name in ("outputs", "weights")}, layer, n)

    return Format("msgpack", binary=True, encode=encode, decode=decode)


def protocol_json(path: str) -> Format:
    """The Open Inference Protocol."""

    def encode(layer: Layer, x: F32) -> Message:
        tensor = _tensor(x) | {"data": x.ravel()}
        body = orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Message(path, _JSON, body)

    def decode(answer: Message, layer: Layer, n: int) -> Tensors:
        outputs = orjson.loads(answer.body)["outputs"]
        return _shaped({tensor["name"]: np.array(tensor["data"]) for tensor in outputs}, layer, n)

    return Format("v2 json", binary=False, encode=encode, decode=decode)


def protocol_binary(path: str) -> Format:
    """The same with the protocol's extension for binary tensors."""

    def encode(layer: Layer, x: F32) -> Message:
        tensor = _tensor(x) | {"parameters": {"binary_data_size": x.nbytes}}
        outputs = [{"name": name, "parameters": {"binary_data": True}} for name in ("outputs", "weights")]
        head = orjson.dumps({"inputs": [tensor], "outputs": outputs})
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
        return Message(path, headers, head + x.tobytes())

    def decode(answer: Message, layer: Layer, n: int) -> Tensors:
        at = int(answer.headers["inference-header-content-length"])
        found = {}
        for tensor in orjson.loads(answer.body[:at])["outputs"]:
            end = at + tensor["parameters"]["binary_data_size"]
            found[tensor["name"]] = np.frombuffer(answer.body[at:end], "<f4")
            at = end
        return _shaped(found, layer, n)

    return Format("v2 binary", binary=True, encode=encode, decode=decode)


def _tensor(x: F32) -> dict[str, Any]:
    return {"name": "inputs", "shape": [1, *x.shape], "datatype": "FP32"}


def _shaped(flat: dict[str, Any], layer: Layer, n: int) -> Tensors:
    return {"outputs": flat["outputs"].reshape(n, layer.width), "weights": flat["weights"].reshape(n, n)}
