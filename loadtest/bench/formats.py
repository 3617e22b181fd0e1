"""Wire formats: how a request is written and its answer read. Pure."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np
import orjson

from loadtest.bench.work import F32, Layer, Tensors
from loadtest.payloads import PATH, write_safetensors


@dataclass(frozen=True, slots=True)
class Message:
    """A request, or an answer, without what HTTP adds. Names of headers of an answer are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Format:
    """A wire format of some server.

    Attributes:
        name: for tables.
        binary: whether numbers travel as bytes rather than as decimals.
        encode: a request for one sequence.
        decode: `outputs` and `weights` of the answer to one of so many tokens.
    """

    name: str
    binary: bool
    encode: Callable[[Layer, F32], Message]
    decode: Callable[[Message, Layer, int], Tensors]


def service_formats(**options: str) -> dict[str, Format]:
    """The formats of this service, with options for every request, such as `backend="eager"`."""

    def made(name: str, media_type: str, answered: str, write: Callable[[F32], bytes], read: Any) -> Format:
        def encode(layer: Layer, x: F32) -> Message:
            headers = {"Content-Type": media_type, "Accept": answered, "Accept-Encoding": "identity"}
            return Message(f"{PATH}?{urlencode({'model': layer.name, **options})}", headers, write(x))

        return Format(name, name != "json", encode, lambda answer, layer, n: read(answer.body))

    return {
        "json": made("json", "application/json", "application/json", write_json, read_json),
        "safetensors": made(
            "safetensors",
            "application/x-safetensors",
            "application/x-safetensors",
            lambda x: write_safetensors({"inputs": x}),
            read_safetensors,
        ),
        "npy": made("npy", "application/x-npy", "application/x-npz", _write_npy, _read_npz),
    }


def write_json(x: F32) -> bytes:
    """One sequence, in the shortest decimals that read back as the same float32."""
    return orjson.dumps({"inputs": x}, option=orjson.OPT_SERIALIZE_NUMPY)


def read_json(body: bytes) -> Tensors:
    """Nested lists by name."""
    document = orjson.loads(body)
    return {name: np.array(document[name]) for name in ("outputs", "weights") if name in document}


_DTYPES: Final = {"F32": "<f4", "F16": "<f2"}


def read_safetensors(body: bytes) -> Tensors:
    """Tensors by name, without copying."""
    start = 8 + int.from_bytes(body[:8], "little")
    tensors = {}
    for name, entry in orjson.loads(body[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            raw = memoryview(body)[start + first : start + last]
            tensors[name] = np.frombuffer(raw, _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def _write_npy(x: F32) -> bytes:
    file = io.BytesIO()
    np.save(file, x, allow_pickle=False)
    return file.getvalue()


def _read_npz(body: bytes) -> Tensors:
    with np.load(io.BytesIO(body), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files if name != "metadata"}
