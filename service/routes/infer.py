"""`POST /v2/models/{name}/infer`: the main job, as the Open Inference Protocol has it over REST."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, Field

from service.body import WORTH_COMPRESSING, answer_coding
from service.catalog import LoadedEncoder
from service.codecs import cut_json, long_json, v2, v2_rest
from service.codecs.v2 import InferRequest
from service.codecs.v2_tensors import MOST_AXES, TOKEN_TENSORS
from service.engine import LocalEngine, Prepared, Tokenised
from service.errors import UnknownField
from service.exchange import Exchange, Scope
from service.lane import Piece
from service.messages import OWN, AttentionInput, AttentionOutput, TextInput
from service.protocol import name_of
from service.routes.tensors import (
    LONG_BODY,
    LONG_TEXT,
    REFUSALS,
    TIMEOUT_PARAMETER,
    Call,
    TensorRoute,
    Written,
)
from service.statistics import Statistics

CODINGS = ("gzip", "deflate")
"""Content codings that clients of the protocol know."""

HEADER_LENGTH = b"inference-header-content-length"

VARY = (b"vary", b"accept-encoding")


class InferenceError(BaseModel):
    """An error: the protocol's `error`, and the fields of RFC 9457."""

    error: str = Field(description="What is wrong, and with what.")
    type: str = Field(description="Stable relative URI, explained there.", examples=["/problems/shape-mismatch"])
    title: str
    status: int
    detail: str
    instance: str = Field(description="The request id.")
    errors: list[dict[str, str]] = Field(default=[], description="The places at fault: `pointer` and `detail`.")


ERROR: dict[str, Any] = {"application/json": {"schema": {"$ref": "#/components/schemas/InferenceError"}}}


DESCRIPTION = """Takes the tensor `inputs` (FP32, FP16 or FP64, `[n,d]` or `[b,n,d]`) and optionally `attn_mask` (BOOL),
`attn_bias` and `lengths` (INT64, `[b]`: of sequences of different lengths, padded); answers the `outputs` asked for, by
default `outputs` and `weights`, FP32. With the parameter `top_k` weights come as `weights.indices`, INT32, and
`weights.values`. The model `projections` takes the matrices too: `projections.query` and so on. An encoder takes `text`
(BYTES, `[b]`) and answers `layers.0.weights` and so on of every layer, padded, with `tokens` and `lengths`.

Tensors stand in the JSON document as `data`, or behind it in binary: `Inference-Header-Content-Length` is then the
length of the JSON part, and each such tensor has a `binary_data_size`. No Content-Type is needed."""


class InferInput(BaseModel):
    """A tensor of a request."""

    name: Literal[
        "inputs",
        "attn_mask",
        "attn_bias",
        "lengths",
        "projections.query",
        "projections.key",
        "projections.value",
        "text",
    ]
    shape: list[int] = Field(max_length=MOST_AXES)
    datatype: Literal["FP16", "FP32", "FP64", "BOOL", "INT32", "INT64", "BYTES"]
    parameters: dict[str, int] = Field(default={}, description="`binary_data_size`, for data behind the JSON part.")
    data: list[Any] | None = Field(default=None, description="Row-major, nested as the shape says or flat.")


class InferRequestedOutput(BaseModel):
    """A tensor to be answered."""

    name: str = Field(
        pattern=rf"^(layers\.[0-9]{{1,4}}\.)?({'|'.join(map(re.escape, v2.OUTPUTS))})$|^({'|'.join(TOKEN_TENSORS)})$",
        description="Of an encoder `layers.0.weights` and so on, and what is said of tokens.",
    )
    parameters: dict[str, bool] = Field(default={}, description="`binary_data`.")


class InferBody(BaseModel):
    """A request."""

    id: str = Field(default="", max_length=v2.MOST_ID, description="Echoed.")
    parameters: dict[str, bool | int | float | str] = Field(default={}, description=", ".join(v2.PARAMETERS))
    inputs: list[InferInput]
    outputs: list[InferRequestedOutput] = Field(default=[], description="By default `outputs` and `weights`.")


class InferOutput(BaseModel):
    """A tensor of an answer."""

    name: str
    datatype: Literal["FP32", "INT32", "INT64", "BOOL", "BYTES"] = Field(description="FP32 but for indices and tokens.")
    shape: list[int]
    parameters: dict[str, int] | None = Field(default=None, description="`binary_data_size`, in binary.")
    data: list[float | bool | str | None] | None = Field(default=None, description="Flat; masked scores are null.")


class InferAnswer(BaseModel):
    """An answer."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, str] = Field(description="`backend`, `device`, `provider`, `dtype`, `fully_masked_rows`.")
    outputs: list[InferOutput]


EXAMPLE = {
    "inputs": [{"name": "inputs", "shape": [2, 5], "datatype": "FP32", "data": [1, 0, 0, 0, 0.5, 0, 0, 1, 0, 0.5]}],
    "outputs": [{"name": "weights"}],
}
"""Works as it stands with the model `lesson`."""


class InferRoute(TensorRoute):
    """Named tensors in, named tensors out."""

    path = "/v2/models/{name}/infer"
    operation_id = "infer"

    def call(self, exchange: Exchange, scope: Scope, engine: LocalEngine) -> Call:
        """See `TensorRoute.call`."""
        if query := scope["query_string"]:
            name = query.decode("latin-1").partition("=")[0]
            raise UnknownField.at(f"/{name}", "nothing is read from the query string; options stand in `parameters`")
        place: Mapping[str, str] = scope["path_params"]
        name = name_of(place["name"], place.get("version", ""))
        return _Infer(exchange, engine, name)

    @property
    def schemas(self) -> Sequence[type[BaseModel]]:
        """See `RawRoute`."""
        return (InferBody, InferAnswer, InferenceError)

    def describe(self) -> dict[str, Any]:
        """See `RawRoute`."""
        binary = {"schema": {"type": "string", "format": "binary"}}
        body = {"schema": {"$ref": "#/components/schemas/InferBody"}, "examples": {"lesson": {"value": EXAMPLE}}}
        answer = {"schema": {"$ref": "#/components/schemas/InferAnswer"}}
        length = {"description": "Bytes of the JSON part, where tensors follow it.", "schema": {"type": "integer"}}
        responses: dict[str, Any] = {
            "200": {
                "description": "The tensors asked for.",
                "headers": {"Inference-Header-Content-Length": length},
                "content": {"application/json": answer, "application/octet-stream": binary},
            }
        }
        for status, meaning in INFER_REFUSALS.items():
            responses[status] = {"description": meaning, "content": ERROR}
        names = [part[1:-1] for part in self.path.split("/") if part.startswith("{")]
        found = {
            "operationId": self.operation_id,
            "tags": ["open inference protocol"],
            "summary": "Infer: named tensors in, named tensors out",
            "description": DESCRIPTION,
            "parameters": [
                *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names),
                {"name": "Inference-Header-Content-Length", "in": "header", "required": False, **length},
                TIMEOUT_PARAMETER,
            ],
            "requestBody": {
                "required": True,
                "content": {"application/json": body, "application/octet-stream": binary},
            },
            "responses": responses,
        }
        return {"post": found}


class VersionedInferRoute(InferRoute):
    """The same, of one version."""

    path = "/v2/models/{name}/versions/{version}/infer"
    operation_id = "infer_version"


INFER_REFUSALS = {status: meaning for status, meaning in REFUSALS.items() if status not in ("406", "422")} | {
    "400": "The body cannot be read, or asks for what cannot be computed; `errors` names the place.",
    "404": "There is no such model or version.",
}


@dataclass(frozen=True, slots=True)
class Understood:
    """A request that has been read.

    Attributes:
        asked: as a codec made it.
        work: what is to be computed, of texts their tokens.
    """

    asked: v2.InferRequest
    work: AttentionInput | Tokenised


class InferCall(Call):
    """Requests of the protocol, however they travel."""

    def __init__(self, engine: LocalEngine) -> None:
        """Ask `engine`."""
        self._engine = engine

    def layers_of(self, model: str) -> int:
        """Layers of the encoder that is called `model`, 0 for a layer; raises `NotFound` if there is no such model.

        That is asked for each request: what is called so now may be another model than it was for the one before.
        """
        found = None if model == OWN else self._engine.catalog.find(model)
        return found.layers if isinstance(found, LoadedEncoder) else 0

    def long_from(self, model: str) -> int:
        """Bytes from which a body for `model` is long; see `Call.is_long`. Errors as in `layers_of`."""
        return LONG_TEXT if self.layers_of(model) else LONG_BODY

    def understood(self, request: v2.InferRequest) -> Understood:
        """What `read` gives, from what a codec made."""
        asked = request.attention
        return Understood(request, self._engine.tokenised(asked) if isinstance(asked, TextInput) else asked)

    def prepare(self, request: Understood, bytes_in: int) -> Prepared:
        """See `Call.prepare`."""
        if isinstance(request.work, Tokenised):
            return self._engine.prepare_text(request.work, bytes_in)
        return self._engine.prepare(request.work, bytes_in)

    def timeout_s(self, request: Understood) -> float:
        """See `Call.timeout_s`."""
        return request.asked.timeout_s


class _Infer(InferCall):
    codings = CODINGS

    def __init__(self, exchange: Exchange, engine: LocalEngine, model: str) -> None:
        super().__init__(engine)
        self._header_length = exchange.header(HEADER_LENGTH)
        accepted = exchange.header(b"accept-encoding")
        self._coding = answer_coding(accepted, CODINGS)
        # Float tensors hardly shrink, and HTTP libraries offer every coding they know unasked: binary ones are
        # compressed for who asks for one, as `response_compression_algorithm` does.
        self._binary_coding = "" if "," in accepted else self._coding
        self._model = model
        if not self._header_length and not self.layers_of(model):  # all JSON, and numbers
            self.plain_from = cut_json.LONG

    def statistics(self) -> Statistics:
        return self._engine.statistics(self._model)

    def is_long(self, body: bytes) -> bool:
        return len(body) >= min(self.long_from(self._model), self.plain_from)

    def read(self, body: bytes) -> Understood:
        layers = self.layers_of(self._model)
        return self.understood(v2_rest.decode(body, self._header_length, self._model, layers))

    def read_plain(self, body: bytes) -> Understood | None:
        with self._engine.team() as team:
            request = v2_rest.decode_plain(body, self._header_length, self._model, team)
        return None if request is None else self.understood(request)

    def write(self, request: Understood, output: AttentionOutput) -> Written:
        asked = request.asked
        # Padding makes a short answer a long one.
        if (output.nbytes >= long_json.LONG or asked.padded) and not asked.binary:
            headers = [(b"content-type", b"application/json"), VARY]
            return Written(partial(self._pieces, asked, output), headers, self._coding)
        content, length = v2_rest.encode(asked, output)
        worth_it = len(content) >= WORTH_COMPRESSING
        if length is None:
            return Written(content, [(b"content-type", b"application/json"), VARY], self._coding if worth_it else "")
        headers = [(b"content-type", b"application/octet-stream"), VARY, (HEADER_LENGTH, b"%d" % length)]
        return Written(content, headers, self._binary_coding if worth_it else "")

    def _pieces(self, asked: InferRequest, output: AttentionOutput) -> list[Piece]:
        with self._engine.team() as team:
            return v2_rest.pieces(asked, output, team)
