"""What endpoints of tensors share: bodies become arrays, wait in the queue, and become bodies again."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from models.types import ALL_TENSOR_NAMES
from service.batcher import Ticket
from service.body import WORTH_COMPRESSING, answer_coding, compress
from service.codecs import ENCODERS, decoder_for, encoder_for
from service.codecs.base import Decoder
from service.engine import LocalEngine, Submission
from service.errors import ClientGone, Draining, InvalidOption, NotAcceptable
from service.messages import AnswerOptions, AttentionOutput
from service.observe import Exchange, Receive, Scope, Send
from service.problems import MEDIA_TYPE as PROBLEM
from service.runtime import Runtime

TIMEOUT_HEADER = b"x-request-timeout-ms"


@dataclass(frozen=True, slots=True)
class Operation:
    """What OpenAPI says of an endpoint.

    Attributes:
        options: its small fields, which are query parameters too.
        body, answer: the request and the answer in JSON.
        examples: bodies that work as they stand.
        refusals: meanings of statuses that are this endpoint's own, beside `REFUSALS`.
    """

    id: str
    tag: str
    summary: str
    description: str
    options: type[AnswerOptions]
    body: type[BaseModel]
    answer: type[BaseModel]
    examples: dict[str, Any]
    refusals: dict[str, str]


class TensorRoute(ABC):
    """Decode, queue, encode. Every rule lives in one of those three."""

    path: str
    methods = ("POST",)
    decoders: Mapping[str, Decoder[Any]]
    operation: Operation

    decode_in_thread_from = 1 << 20
    """Bytes from which a body is read in a thread, and the event loop goes on: numbers that are wrong take seconds."""

    def __init__(self, runtime: Runtime) -> None:
        """Serve with the parts of `runtime`."""
        self._runtime = runtime
        self._metrics = runtime.metrics

    @abstractmethod
    def prepare(self, request: Any, engine: LocalEngine) -> Any:
        """What `submit` takes, from what a decoder made; in the decoder's thread."""

    @abstractmethod
    def submit(self, prepared: Any, engine: LocalEngine, bytes_in: int, deadline: float) -> Submission:
        """Queue a request; errors as in `LocalEngine.submit`."""

    async def __call__(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        """See `RawRoute`."""
        if self._runtime.draining:
            self._metrics.rejected.labels("draining").inc()
            raise Draining("the service is shutting down; try another replica")
        engine = self._runtime.engine
        deadline = self._deadline(exchange)
        decoder = decoder_for(exchange.header(b"content-type"), self.decoders)
        encoder = encoder_for(exchange.header(b"accept"), decoder.media_type)
        body = await self._runtime.intake.read(exchange, receive, deadline)
        clock = time.perf_counter
        started = clock()
        query = scope["query_string"].decode("latin-1")

        def read() -> Any:
            request = decoder.decode(body, query)
            if request.options.format == "bertviz" and encoder.media_type != "application/json":
                raise NotAcceptable(f"the format bertviz is JSON, not {encoder.media_type}")
            return self.prepare(request, engine)

        request = read() if len(body) < self.decode_in_thread_from else await asyncio.to_thread(read)
        decoded = clock()
        submission = self.submit(request, engine, len(body), deadline)
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
    def schemas(self) -> Sequence[type[BaseModel]]:
        """See `RawRoute`."""
        return (self.operation.body, self.operation.answer)

    def describe(self) -> dict[str, Any]:
        """See `RawRoute`."""
        operation = self.operation
        parameters = [
            {"name": field.alias or name, "in": "query", "required": False, "description": field.description,
             "schema": _query_schema(operation.options, name)}
            for name, field in operation.options.model_fields.items()
        ]  # fmt: skip
        parameters.append({
            "name": "X-Request-Timeout-Ms", "in": "header", "required": False,
            "description": "Deadline in milliseconds from arrival; work past it is not computed and answers 504.",
            "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999_999},
        })  # fmt: skip
        binary = {"schema": {"type": "string", "format": "binary"}}
        body = {"schema": _reference(operation.body), "examples": operation.examples}
        contents = dict.fromkeys(self.decoders, binary) | {"application/json": body}
        answers = dict.fromkeys(ENCODERS, binary) | {"application/json": {"schema": _reference(operation.answer)}}
        responses: dict[str, Any] = {"200": {"description": "The tensors asked for.", "content": answers}}
        for status, meaning in (REFUSALS | operation.refusals).items():
            schema = {"$ref": "#/components/schemas/Problem"}
            responses[status] = {"description": meaning, "content": {PROBLEM: {"schema": schema}}}
        found = {
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.summary,
            "description": operation.description,
            "parameters": parameters,
            "requestBody": {"required": True, "content": contents},
            "responses": responses,
        }
        return {"post": found}


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


# ---- what OpenAPI says of all of them

REFUSALS = {
    "400": "The body is not what its media type says.",
    "401": "An API key is needed.",
    "403": "The API key is not known.",
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


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _query_schema(options: type[AnswerOptions], name: str) -> dict[str, Any]:
    """How an option looks in a query string: the list of tensors is comma-separated, and nothing is null."""
    if name == "returns":
        names = "|".join(ALL_TENSOR_NAMES)
        return {"type": "string", "pattern": f"^({names})(,({names}))*$"}
    if name == "layers":
        return {"type": "string", "pattern": r"^(all|[0-9]{1,4}(,[0-9]{1,4})*)$"}
    schema: dict[str, Any] = options.model_json_schema()["properties"][options.model_fields[name].alias or name]
    given = next((kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}), schema)
    return {key: value for key, value in given.items() if key not in ("title", "description", "default")}
