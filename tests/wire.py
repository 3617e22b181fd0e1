"""What a client of the service needs, written without the service's own code: formats, and a plain HTTP client."""

import asyncio
import base64
import http.client
import io
import json
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import safetensors.numpy
from prometheus_client.parser import text_string_to_metric_families

JSON, SAFETENSORS = "application/json", "application/x-safetensors"
NPY, NPZ = "application/x-npy", "application/x-npz"
PROBLEM = "application/problem+json"

TENSORS = ("outputs", "weights", "scores", "query", "key", "value", "projected")


def bits(array: np.ndarray) -> bytes:
    """An array's bytes: equal for equal bits only, so that -0.0 is not 0.0."""
    return np.ascontiguousarray(array).tobytes()


def tensor_object(array: np.ndarray) -> dict[str, Any]:
    """A base64 tensor object."""
    little = array.astype(array.dtype.newbyteorder("<"))
    return {"shape": list(array.shape), "dtype": str(array.dtype), "data": base64.b64encode(bits(little)).decode()}


def from_tensor_object(value: Mapping[str, Any]) -> np.ndarray:
    """The array of a tensor object."""
    dtype = np.dtype(value["dtype"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(value["data"], validate=True), dtype).reshape(value["shape"])


def npy(array: np.ndarray) -> bytes:
    """An .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def npy_of(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An .npy file with any header, right or wrong."""
    text = header.encode("latin-1")
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def safetensors_of(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file with any header, right or wrong: an object to write as JSON, or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors_file(tensors: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file, by the format's own library."""
    return safetensors.numpy.save({name: array.copy(order="C") for name, array in tensors.items()})


@dataclass(frozen=True)
class Decoded:
    """An answer in any format: per tensor a list with one array (or pair, where sparse) per sequence."""

    tensors: dict[str, list[Any]]
    metadata: dict[str, Any]


def decode_json(body: bytes, count: int | None = None) -> Decoded:
    """Read a JSON answer; `count` sequences, or None for one alone."""
    document = json.loads(body)
    tensors = {}
    for name in TENSORS:
        if name in document:
            tensors[name] = _json_tensors(document.pop(name), count)
    return Decoded(tensors, document)


def _json_tensors(value: Any, count: int | None) -> list[Any]:
    if isinstance(value, dict) and "indices" in value:
        pairs = zip(_json_tensors(value["indices"], count), _json_tensors(value["values"], count), strict=True)
        return [(np.asarray(indices, np.int32), values) for indices, values in pairs]
    if isinstance(value, dict):
        array = from_tensor_object(value)
        return [array] if count is None else list(array)
    if count is None:
        return [_numbers(value)]
    assert len(value) == count
    return [item for part in value for item in _json_tensors(part, None)]


def _numbers(value: Any) -> np.ndarray:
    array = np.array(value, np.float64)  # null becomes NaN
    return np.where(np.isnan(array), -np.inf, array).astype(np.float32)


def decode_safetensors(body: bytes, count: int | None = None) -> Decoded:
    """Read a safetensors answer with the format's own library."""
    (length,) = struct.unpack_from("<Q", body)
    metadata = json.loads(body[8 : 8 + length])["__metadata__"]
    return Decoded(
        _flat(safetensors.numpy.load(body), count), {name: json.loads(value) for name, value in metadata.items()}
    )


def decode_npz(body: bytes, count: int | None = None) -> Decoded:
    """Read an .npz answer with NumPy."""
    with np.load(io.BytesIO(body), allow_pickle=False) as archive:
        tensors = dict(archive)
    metadata = json.loads(tensors.pop("metadata").tobytes())
    return Decoded(_flat(tensors, count), metadata)


def _flat(tensors: dict[str, np.ndarray], count: int | None) -> dict[str, list[Any]]:
    def parts(name: str) -> list[np.ndarray]:
        if count is None:
            return [tensors[name]]
        return list(tensors[name]) if name in tensors else [tensors[f"{name}.{i}"] for i in range(count)]

    def sparse(i: int | None) -> list[Any]:
        suffix = "" if i is None else f".{i}"
        return [(tensors[f"weights.indices{suffix}"], tensors[f"weights.values{suffix}"])]

    found: dict[str, list[Any]] = {}
    for name in TENSORS:
        if name in tensors or f"{name}.0" in tensors:
            found[name] = parts(name)
    if "weights.indices" in tensors and count is not None:
        found["weights"] = list(zip(tensors["weights.indices"], tensors["weights.values"], strict=True))
    elif "weights.indices" in tensors:
        found["weights"] = sparse(None)
    elif "weights.indices.0" in tensors:
        found["weights"] = [pair for i in range(count or 1) for pair in sparse(i)]
    return found


@dataclass(frozen=True)
class Reply:
    """An HTTP answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def decoded(self, count: int | None = None) -> Decoded:
        """The body of an inference answer."""
        assert self.status == 200, (self.status, self.body[:500])
        read = {JSON: decode_json, SAFETENSORS: decode_safetensors, NPZ: decode_npz}[self.headers["content-type"]]
        return read(self.body, count)


def connect(url: str, timeout: float = 30) -> http.client.HTTPConnection:
    """A connection to a service."""
    place = urlsplit(url)
    return http.client.HTTPConnection(place.hostname or "", place.port, timeout=timeout)


def send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | Iterable[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """One request on a connection that stays open."""
    chunked = body is not None and not isinstance(body, bytes)
    connection.request(method, path, body, dict(headers or {}), encode_chunked=chunked)
    response = connection.getresponse()
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def call(
    url: str,
    method: str,
    path: str,
    body: bytes | Iterable[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30,
) -> Reply:
    """One request on a connection of its own."""
    connection = connect(url, timeout)
    try:
        return send(connection, method, path, body, headers)
    finally:
        connection.close()


def attend(url: str, document: Any, query: str = "", **headers: str) -> Reply:
    """Post a JSON request to the main job; `x_y=…` is the header X-Y."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(url, "POST", f"/v1/attention{query}", body, {"Content-Type": JSON} | named)


async def asgi(
    application: Any,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    query: str = "",
    client: tuple[str, int] = ("192.0.2.1", 1),
) -> Reply:
    """One request to an application in this process."""
    messages: list[Any] = []

    unsent = [body]

    async def receive() -> dict[str, Any]:
        if not unsent:
            await asyncio.Event().wait()  # a client that waits for its answer
        return {"type": "http.request", "body": unsent.pop(), "more_body": False}

    async def record(message: Any) -> None:
        messages.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    await application(
        {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
         "path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode(), "headers": raw,
         "client": client, "server": ("127.0.0.1", 80), "state": {}},
        receive,
        record,
    )  # fmt: skip
    start = messages[0]
    answered = {name.decode(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], answered, b"".join(message.get("body", b"") for message in messages[1:]))


# ---- the same on bare sockets, and what a service says of itself


def metrics_of(server: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a running service's metrics, by name and labels."""
    text = call(server.url, "GET", "/metrics").body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text) for sample in family.samples
    }  # fmt: skip


def total(metrics: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    """The sum of the samples of a name that have these labels."""
    return sum(value for (found, has), value in metrics.items() if found == name and has >= set(labels.items()))


def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Wait for another process; fail when it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def raw(server: Any, timeout: float = 20) -> socket.socket:
    """A connection to a running service."""
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout)


def http_request(body: bytes, path: str = "/v1/attention?model=lesson", extra: str = "") -> bytes:
    """The bytes of a request of the main job; `extra` is header lines."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def read_reply(file: Any) -> tuple[int, dict[str, str], bytes]:
    """The next answer of a connection's file: status, headers, body."""
    status = int(file.readline().split()[1])
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    return status, headers, file.read(int(headers["content-length"]))
