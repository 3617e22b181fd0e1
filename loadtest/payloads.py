"""What callers send: seeded embeddings for `POST /v1/attention` and its twin of the Open Inference Protocol.

Pure: the same arguments give the same bytes, on every machine.
"""

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from urllib.parse import quote, urlencode

import numpy as np
import numpy.typing as npt
import orjson

Array32 = npt.NDArray[np.float32]
Lengths = npt.NDArray[np.int64]
Format = Literal["json", "base64", "safetensors", "v2"]

FORMATS: Final[tuple[Format, ...]] = get_args(Format)
PATH: Final = "/v1/attention"
HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""Of the Open Inference Protocol: how long the JSON part of a body is, before its binary tensors."""

LENGTH_MU: Final = 3.9
"""Mean of ln(tokens): half of the sequences have at most e^3.9, about 49, tokens.

Assumed, not measured of this service's callers, of whom nothing is known: one-sided lengths with a long tail, as those
of sentences and paragraphs are, of the size of a few sentences. `--tokens` sends what yours send.
"""
LENGTH_SIGMA: Final = 0.8
"""Standard deviation of ln(tokens)."""
SHORTEST: Final = 8
LONGEST: Final = 256
CAUSAL_SHARE: Final = 0.25
"""Share of the generated requests that set `is_causal`."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a caller must know of a model to ask it something and to judge the answer.

    Attributes:
        name: as in `GET /v1/models`, `name` or `name@version`.
        embed_dim: width of a token embedding.
        heads: query heads; None if not known, and then any number will do.
        output_dim: width of an output row; None if not known.
    """

    name: str
    embed_dim: int
    heads: int | None = None
    output_dim: int | None = None


MODELS: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        Model("lesson", embed_dim=5, heads=1, output_dim=3),
        Model("single-head-64", embed_dim=64, heads=1, output_dim=64),
        Model("multi-head-384x12", embed_dim=384, heads=12, output_dim=384),
    )
}
"""The models that come with the service."""


@dataclass(frozen=True, slots=True)
class Payload:
    """One request, ready to send, and what its answer must look like.

    Attributes:
        path: path and query string.
        headers: request headers, without Host and Content-Length.
        body: the bytes of the request body.
        n: tokens in the sequence.
        embed_dim: width of a token embedding.
        causal: whether `is_causal` is set.
        format: how tensors travel, both ways.
        model: name of the model asked.
        heads: heads the answer must have; None if not known.
        output_dim: width an output row must have; None if not known.
        fully_masked_rows: rows the answer must list as seeing nothing; the makers here mask no row.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    n: int
    embed_dim: int
    causal: bool
    format: Format
    model: str
    heads: int | None = None
    output_dim: int | None = None
    fully_masked_rows: tuple[int, ...] = ()


def parse_models(text: str) -> tuple[Model, ...]:
    """Read a list of models such as `lesson,my-model:128`.

    Args:
        text: names with commas between; a model that does not come with the service is `name:embed_dim`.

    Returns:
        The models in the order given, at least one.

    Raises:
        ValueError: if the list is empty, or a width is missing or not a positive whole number.
    """
    models = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, width = entry.partition(":")
        if width.isdecimal() and int(width) > 0:
            models.append(Model(name, embed_dim=int(width)))
        elif not width and name in MODELS:
            models.append(MODELS[name])
        else:
            raise ValueError(f"{entry!r}: give one of {', '.join(MODELS)}, or name:embed_dim")
    if not models:
        raise ValueError("give at least one model")
    return tuple(models)


def parse_tokens(text: str) -> tuple[int, ...] | None:
    """Read the lengths to send: `mixed`, or fixed sizes such as `16` or `16,64,256`.

    Returns:
        The sizes in tokens, to be used in turn; None for `mixed`.

    Raises:
        ValueError: if a size is not a positive whole number.
    """
    if text.strip() == "mixed":
        return None
    sizes = [part.strip() for part in text.split(",")]
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ValueError(f"{text!r}: give mixed, or positive whole numbers with commas between")
    return tuple(map(int, sizes))


def draw_lengths(random: np.random.Generator, count: int) -> Lengths:
    """Draw sequence lengths like those of real traffic: log-normal, clipped to SHORTEST..LONGEST.

    Args:
        random: the source of chance.
        count: how many.

    Returns:
        Tokens per sequence, shape (count,).
    """
    lengths = np.rint(random.lognormal(LENGTH_MU, LENGTH_SIGMA, count))  # (count,)
    return np.clip(lengths, SHORTEST, LONGEST).astype(np.int64)  # (count,)


def generate(
    form: Format, models: Sequence[Model], *, seed: int, count: int, tokens: Sequence[int] | None = None
) -> list[Payload]:
    """Make requests of mixed lengths and models; a share of CAUSAL_SHARE is causal.

    Every format gets the same tensors from the same seed, so that formats can be compared.

    Args:
        form: how tensors travel.
        models: the models to ask, each equally likely.
        seed: not negative.
        count: how many requests.
        tokens: fixed lengths, used in turn; default: drawn like real traffic.

    Raises:
        ValueError: if there is no model, the seed is negative, or a length is not positive.
    """
    if not models:
        raise ValueError("give at least one model")
    random = np.random.default_rng(seed)
    lengths = draw_lengths(random, count) if tokens is None else np.resize(np.asarray(tokens, np.int64), count)
    if np.any(lengths < 1):
        raise ValueError(f"a sequence has at least one token, got {lengths.min()}")
    chosen = random.integers(len(models), size=count)
    causal = random.random(count) < CAUSAL_SHARE
    payloads = []
    for i in range(count):
        model = models[int(chosen[i])]
        inputs = random.standard_normal((int(lengths[i]), model.embed_dim), dtype=np.float32)
        payloads.append(make_payload(form, model, inputs, causal=bool(causal[i])))
    return payloads


def make_payload(form: Format, model: Model, inputs: Array32, *, causal: bool = False) -> Payload:
    """Make one request.

    Args:
        form: how tensors travel, both ways.
        model: the model asked.
        inputs: token embeddings, (n, model.embed_dim), finite.
        causal: whether row i may attend to columns 0..i only.

    Raises:
        ValueError: if `inputs` is not (n, model.embed_dim) with n ≥ 1.
    """
    if inputs.ndim != 2 or inputs.shape[0] < 1 or inputs.shape[1] != model.embed_dim:
        raise ValueError(f"inputs have shape {inputs.shape}, {model.name} takes (n, {model.embed_dim})")
    make = {"json": _json, "base64": _base64, "safetensors": _safetensors, "v2": _v2}[form]
    path, headers, body = make(model, np.ascontiguousarray(inputs, "<f4"), causal)
    return Payload(
        path=path,
        # identity: what is measured is attention, not gzip.
        headers={**headers, "Accept-Encoding": "identity"},
        body=body,
        n=inputs.shape[0],
        embed_dim=model.embed_dim,
        causal=causal,
        format=form,
        model=model.name,
        heads=model.heads,
        output_dim=model.output_dim,
    )


def write_safetensors(tensors: Mapping[str, Array32]) -> bytes:
    """Write float32 tensors as a safetensors file, in the order given.

    Source:
        https://github.com/huggingface/safetensors#format: the header's length (u64, little-endian), a JSON header
        padded with spaces to a multiple of 8 bytes, then the numbers, row-major and little-endian.
    """
    header: dict[str, Any] = {}
    parts = []
    end = 0
    for name, tensor in tensors.items():
        parts.append(np.ascontiguousarray(tensor, "<f4").tobytes())
        start, end = end, end + len(parts[-1])
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    return b"".join((struct.pack("<Q", len(text)), text, *parts))


def _both_ways(media_type: str) -> dict[str, str]:
    return {"Content-Type": media_type, "Accept": media_type}


def _json(model: Model, inputs: Array32, causal: bool) -> tuple[str, dict[str, str], bytes]:
    # orjson writes the shortest decimals that read back as the same float32: about 11 bytes a number.
    fields = {"model": model.name, "is_causal": causal, "inputs": inputs}
    return PATH, _both_ways("application/json"), orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)


def _base64(model: Model, inputs: Array32, causal: bool) -> tuple[str, dict[str, str], bytes]:
    data = base64.b64encode(inputs.tobytes()).decode("ascii")
    tensor = {"shape": list(inputs.shape), "dtype": "float32", "data": data}
    fields = {"model": model.name, "is_causal": causal, "encoding": "base64", "inputs": tensor}
    return PATH, _both_ways("application/json"), orjson.dumps(fields)


def _safetensors(model: Model, inputs: Array32, causal: bool) -> tuple[str, dict[str, str], bytes]:
    options = urlencode({"model": model.name, "is_causal": "true" if causal else "false"})
    body = write_safetensors({"inputs": inputs})
    return f"{PATH}?{options}", _both_ways("application/x-safetensors"), body


def _v2(model: Model, inputs: Array32, causal: bool) -> tuple[str, dict[str, str], bytes]:
    # https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md: a JSON part,
    # then the tensors it names, back to back; a header says where the one ends and the other begins.
    tensor = {"name": "inputs", "shape": list(inputs.shape), "datatype": "FP32"}
    fields = {
        "inputs": [tensor | {"parameters": {"binary_data_size": inputs.nbytes}}],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in ("outputs", "weights")],
        "parameters": {"is_causal": causal},
    }
    text = orjson.dumps(fields)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return f"/v2/models/{quote(model.name)}/infer", headers, text + inputs.tobytes()
