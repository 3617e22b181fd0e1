"""`POST /v1/attention`: the main job."""

import asyncio
import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from models.types import ALL_TENSOR_NAMES
from service.batcher import Ticket
from service.body import WORTH_COMPRESSING, answer_coding, compress
from service.codecs import DECODERS, ENCODERS, decoder_for, encoder_for
from service.engine import LocalEngine, Submission
from service.errors import ClientGone, Draining, InvalidOption
from service.messages import AttentionOutput, Options
from service.observe import Exchange, Receive, Scope, Send
from service.problems import MEDIA_TYPE as PROBLEM
from service.runtime import Runtime

DECODE_IN_THREAD_FROM = 1 << 20
"""Bytes from which a body is read in a thread, so that the event loop goes on: numbers that are wrong take seconds."""

TIMEOUT_HEADER = b"x-request-timeout-ms"


class AttentionRoute:
    """Decode, queue, encode. Every rule lives in one of those three."""

    path = "/v1/attention"
    methods = ("POST",)

    def __init__(self, runtime: Runtime) -> None:
        """Serve with the parts of `runtime`."""
        self._runtime = runtime
        self._metrics = runtime.metrics

    async def __call__(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        """See `RawRoute`."""
        if self._runtime.draining:
            self._metrics.rejected.labels("draining").inc()
            raise Draining("the service is shutting down; try another replica")
        engine = self._runtime.engine
        deadline = self._deadline(exchange)
        decoder = decoder_for(exchange.header(b"content-type"))
        encoder = encoder_for(exchange.header(b"accept"), decoder)
        body = await self._runtime.intake.read(exchange, receive, deadline)
        clock = time.perf_counter
        started = clock()
        query = scope["query_string"].decode("latin-1")
        if len(body) < DECODE_IN_THREAD_FROM:
            request = decoder.decode(body, query)
        else:
            request = await asyncio.to_thread(decoder.decode, body, query)
        decoded = clock()
        submission = engine.submit(request, len(body), deadline)
        try:
            output = await _answer(submission, engine, receive)
            computed = clock()
            content = encoder.encode(output)
            headers = [(b"content-type", encoder.media_type.encode()), (b"vary", b"accept, accept-encoding")]
            coding = answer_coding(exchange.header(b"accept-encoding"))
            if coding and encoder.media_type == "application/json" and len(content) >= WORTH_COMPRESSING:
                content = await compress(content, coding)
                headers.append((b"content-encoding", coding.encode()))
            encoded = clock()
            ticket = submission.ticket
            stages = {
                "decode": decoded - started,
                "queue": ticket.started - ticket.submitted,
                "compute": ticket.finished - ticket.started,
                "encode": encoded - computed,
            }
            timing = ", ".join(f"{stage};dur={seconds * 1e3:.3f}" for stage, seconds in stages.items())
            headers += [(b"content-length", str(len(content)).encode()), (b"server-timing", timing.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})
        finally:
            engine.batcher.release(submission.ticket)
        for stage, seconds in stages.items():
            self._metrics.stage.labels(stage).observe(seconds)

    def _deadline(self, exchange: Exchange) -> float:
        """When the answer is no longer wanted: counted from arrival, by `time.monotonic`."""
        most = self._runtime.settings.request_timeout_ms
        asked = exchange.header(TIMEOUT_HEADER)
        if not asked:
            return exchange.arrived + most / 1e3
        if not asked.isdecimal() or not 0 < len(asked) <= 12 or int(asked) == 0:
            raise InvalidOption(f"X-Request-Timeout-Ms: expected whole milliseconds above 0, got {asked!r}")
        return exchange.arrived + min(int(asked), most) / 1e3

    @property
    def schemas(self) -> tuple[type[BaseModel], ...]:
        """See `RawRoute`."""
        return (AttentionBody, AttentionAnswer)

    def describe(self) -> dict[str, Any]:
        """See `RawRoute`."""
        parameters = [
            {"name": field.alias or name, "in": "query", "required": False, "description": field.description,
             "schema": _query_schema(name)}
            for name, field in Options.model_fields.items()
        ]  # fmt: skip
        parameters.append({
            "name": "X-Request-Timeout-Ms", "in": "header", "required": False,
            "description": "Deadline in milliseconds from arrival; work past it is not computed and answers 504.",
            "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999_999},
        })  # fmt: skip
        binary = {"schema": {"type": "string", "format": "binary"}}
        contents = dict.fromkeys(DECODERS, binary) | {
            "application/json": {"schema": {"$ref": "#/components/schemas/AttentionBody"}, "examples": EXAMPLES}
        }
        answers = dict.fromkeys(ENCODERS, binary) | {
            "application/json": {"schema": {"$ref": "#/components/schemas/AttentionAnswer"}}
        }
        responses: dict[str, Any] = {
            "200": {"description": "Weights and outputs, or what `return` asks for.", "content": answers}
        }
        for status, meaning in REFUSALS.items():
            schema = {"$ref": "#/components/schemas/Problem"}
            responses[status] = {"description": meaning, "content": {PROBLEM: {"schema": schema}}}
        operation = {
            "operationId": "attend",
            "tags": ["attention"],
            "summary": "Attend: embeddings in, attention weights and outputs out",
            "description": DESCRIPTION,
            "parameters": parameters,
            "requestBody": {"required": True, "content": contents},
            "responses": responses,
        }
        return {"post": operation}


async def _answer(submission: Submission, engine: LocalEngine, receive: Receive) -> AttentionOutput:
    """Wait for the verdicts; while some of the work is still queued, watch whether the client is still there."""
    ticket = submission.ticket
    if not ticket.queued:
        return await submission.result()
    watcher = asyncio.get_running_loop().create_task(_watch(ticket, engine, receive))
    try:
        return await submission.result()
    finally:
        watcher.cancel()


async def _watch(ticket: Ticket, engine: LocalEngine, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    engine.batcher.cancel(ticket, ClientGone("the client left while its request was queued"))


# ---- what OpenAPI says of it

DESCRIPTION = """Projects token embeddings to queries, keys and values, compares them, and mixes the values:
scores = QKᵀ/√d_k, weights = softmax per row, outputs = weights·V.

One sequence, or a list of sequences of different lengths. Binary bodies: `application/x-safetensors` (tensors
`inputs`, or `inputs.0`, `inputs.1`, …, and optionally `attn_mask`, `attn_bias`, `projections.query`, …) and
`application/x-npy` (one array). `Accept` chooses the answer's format. Scalar options may stand in the query string with
any body. The answer for a sequence is bitwise the same alone, in a list, or batched with other callers' work."""

EXAMPLES: dict[str, Any] = {
    "lesson": {
        "summary": "Four tokens of the lesson",
        "value": {
            "model": "lesson",
            "inputs": [[1, 0, 0, 0, 0.5], [0, 0, 1, 0, 0.5], [0.2, 0, 0, 1, 0.5], [0, 1, 0, 0, 0.5]],
        },
    },
    "projections": {
        "summary": "Your own matrices, causal, with every tensor",
        "value": {
            "inputs": [[1, 0], [0, 1], [1, 1]],
            "projections": {
                "query": [[1, 0, 1], [0, 1, 0]],
                "key": [[1, 1, 0], [0, 1, 1]],
                "value": [[1, 2], [3, 4]],
            },
            "is_causal": True,
            "return": ["outputs", "weights", "scores", "query", "key", "value"],
        },
    },
    "ragged": {
        "summary": "Two sequences of different lengths, one with a mask, weights sparse",
        "value": {
            "model": "lesson",
            "inputs": [[[1, 0, 0, 0, 0.5], [0, 0, 1, 0, 0.5]], [[0, 1, 0, 0, 0.5]]],
            "attn_mask": [[[True, False], [True, True]], None],
            "top_k": 1,
        },
    },
}
"""Requests that work as they stand."""

REFUSALS = {
    "400": "The body is not what its media type says.",
    "401": "An API key is needed.",
    "403": "The API key is not known.",
    "404": "There is no such model or version.",
    "405": "Only POST is served here.",
    "406": "No acceptable format for the answer.",
    "408": "The body did not come in time.",
    "413": "The request, or its answer, is larger than a limit; the detail says what would fit.",
    "415": "The body's media type or coding is not read here.",
    "422": "Understood, but it cannot be computed; `errors` names the place.",
    "429": "Over the caller's rate.",
    "500": "A fault on our side.",
    "503": "Queue full, draining or not ready; see Retry-After.",
    "504": "The deadline passed.",
}

Row = list[float]
Rows = list[Row]


class TensorObject(BaseModel):
    """An array as base64: little-endian, row-major."""

    model_config = ConfigDict(extra="forbid")

    shape: list[Annotated[int, Field(ge=0)]] = Field(description="Sizes of the axes.")
    dtype: Literal["float32", "float16", "float64", "bool"] = Field(description="bool for attn_mask only.")
    data: str = Field(description="Base64 of the elements.", json_schema_extra={"contentEncoding": "base64"})


class ProjectionsBody(BaseModel):
    """A caller's own W_q, W_k and W_v; y = x W, no bias."""

    model_config = ConfigDict(extra="forbid")

    query: Rows | TensorObject = Field(description="(d, d_k)")
    key: Rows | TensorObject = Field(description="(d, d_k)")
    value: Rows | TensorObject = Field(description="(d, d_v)")


Mask = list[list[bool]] | TensorObject
Bias = Rows | list[Rows] | TensorObject


class AttentionBody(Options):
    """A request in JSON."""

    inputs: Rows | list[Rows | TensorObject] | TensorObject = Field(
        description="Token embeddings [n][d], a list of such sequences of any lengths, or a tensor object."
    )
    projections: ProjectionsBody | None = Field(default=None, description="Own matrices; excludes `model`.")
    attn_mask: Mask | list[Mask | None] | None = Field(
        default=None,
        description="[n][n] booleans, true = may attend; for a list of sequences one (or null) for each, or one tensor "
        "object [sequences][n][n].",
    )
    attn_bias: Bias | list[Bias | None] | None = Field(
        default=None, description="[n][n] or [heads][n][n], added to the scaled scores; for a list one for each."
    )


class AnsweredTensor(BaseModel):
    """An array as base64: little-endian, row-major."""

    shape: list[int] = Field(description="Sizes of the axes.")
    dtype: Literal["float32", "int32"] = Field(description="int32 for indices only.")
    data: str = Field(description="Base64 of the elements.", json_schema_extra={"contentEncoding": "base64"})


Nested = list[Any] | AnsweredTensor


class SparseWeights(BaseModel):
    """The k largest weights of each row, largest first."""

    indices: Nested
    values: Nested


class ModelName(BaseModel):
    """What computed: `projections` with an empty version where the caller brought the matrices."""

    name: str
    version: str


class BackendName(BaseModel):
    """What it was computed with."""

    name: str
    device: str
    provider: str
    dtype: str


class AttentionAnswer(BaseModel):
    """An answer in JSON. Tensors are nested as the request was."""

    model: ModelName
    backend: BackendName
    outputs: Nested | None = Field(default=None, description="[n][heads·d_v]")
    weights: Nested | SparseWeights | None = Field(default=None, description="[n][n], or [heads][n][n] for several.")
    scores: Nested | None = Field(default=None, description="Scaled, biased, masked; null where masked.")
    query: Nested | None = Field(default=None, description="[n][d_k], or [heads][n][d_k].")
    key: Nested | None = Field(default=None, description="[n][d_k], or [heads][n][d_k].")
    value: Nested | None = Field(default=None, description="[n][d_v], or [heads][n][d_v].")
    projected: Nested | None = Field(default=None, description="Outputs after the output projection, [n][d].")
    fully_masked_rows: list[Any] | None = Field(
        default=None, description="Rows that see nothing: zero weights and outputs. Only where there are some."
    )


def _query_schema(name: str) -> dict[str, Any]:
    """How an option looks in a query string: the list of tensors is comma-separated, and nothing is null."""
    if name == "returns":
        names = "|".join(ALL_TENSOR_NAMES)
        return {"type": "string", "pattern": f"^({names})(,({names}))*$"}
    schema: dict[str, Any] = Options.model_json_schema()["properties"][Options.model_fields[name].alias or name]
    given = next((kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}), schema)
    return {key: value for key, value in given.items() if key not in ("title", "description", "default")}
