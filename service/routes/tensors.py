"""What endpoints of tensors share: bodies become arrays, wait in the queue, and become bodies again."""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal

from pydantic import BaseModel, Field

from models.types import ALL_TENSOR_NAMES
from service.body import CODINGS, WORTH_COMPRESSING, answer_coding, compress
from service.codecs import ENCODERS, decoder_for, encoder_for
from service.codecs.base import Decoder, Encoder
from service.codecs.options import check_media_type
from service.engine import LocalEngine, Prepared, Submission, Verdicts
from service.errors import ClientGone, Draining, InvalidOption
from service.exchange import Exchange, Headers, Receive, Scope, Send, Work
from service.lane import Done, Lane, Piece
from service.messages import AnswerOptions, AttentionOutput
from service.metrics import Metrics
from service.problems import MEDIA_TYPE as PROBLEM
from service.runtime import Runtime
from service.settings import Settings
from service.statistics import Statistics
from service.tallies import observe_each
from service.tickets import Ticket

TIMEOUT_HEADER = b"x-request-timeout-ms"

LONG_BODY = 1 << 20
"""Bytes from which a body is read in a thread: what is wrong with numbers takes seconds to find."""

LONG_TEXT = 1 << 12
"""The same of bodies that hold text: to make tokens of it takes longer."""

WATCH_AFTER_S = 5e-3
"""A watcher costs about as much as a small request, and most have their verdicts by then."""

MOST_SENT = 1 << 19
"""Bytes of an answer that are sent at a time: whatever else there is to do has its turn then."""

TAKE_TIMEOUT_S = 30.0
"""How long a client may take nothing of a long answer: until it has all of it, it counts as a request in flight."""


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


@dataclass(slots=True)  # a frozen one takes four times as long to make, and each request has one
class Written:
    """An answer as bytes.

    Attributes:
        content: not compressed; of a long answer what writes it, in pieces, and takes long.
        headers: those that say what it is.
        coding: what it is to be compressed with; empty for nothing.
    """

    content: bytes | Callable[[], list[Piece]]
    headers: Headers
    coding: str = ""


class Call(ABC):
    """How requests with one head are read and answered. It knows nothing of a single one of them.

    Attributes:
        codings: content codings that their bodies may have.
        plain_from: bytes from which a body is read by `read_plain` first.
    """

    codings: Sequence[str] = CODINGS
    plain_from: float = math.inf

    def statistics(self) -> Statistics | None:
        """Of the model that is asked for, as soon as that is known; None where it has none."""
        return None

    def is_long(self, body: bytes) -> bool:
        """Whether it takes so long to read a body that the event loop has to go on meanwhile."""
        return len(body) >= LONG_BODY

    @abstractmethod
    def read(self, body: bytes) -> Any:
        """What `prepare` takes. May be called in a thread."""

    def read_plain(self, body: bytes) -> Any | None:
        """What `read` would give of a long body, in less time, or None if that has to be asked; called in a thread."""
        return None

    @abstractmethod
    def prepare(self, request: Any, bytes_in: int) -> Prepared:
        """Check what `read` made; errors as in `LocalEngine.prepare`."""

    def timeout_s(self, request: Any) -> float:
        """How long its sender waits, by what `read` made, s."""
        return math.inf

    @abstractmethod
    def write(self, request: Any, output: AttentionOutput) -> Written:
        """The answer to what `read` made."""


class Inference:
    """One request on a tensor route, from its head to its answer. To leave its context is to let go of it.

    Attributes:
        call: how it is read and answered.
        deadline: when its answer is no longer wanted, by `time.monotonic`.
        submission: once it is queued.
    """

    submission: Submission
    _decoding = _decoded = _computed = _encoded = 0.0  # when, by `time.monotonic`

    def __init__(self, exchange: Exchange, call: Call, engine: LocalEngine, metrics: Metrics, deadline: float) -> None:
        """Begin a request; errors as in `Call.statistics`."""
        self.call, self.deadline = call, deadline
        self._exchange, self._engine, self._metrics = exchange, engine, metrics
        self._statistics = call.statistics()
        self._ticket: Ticket | None = None
        self._counted = False

    def __enter__(self) -> "Inference":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(failed=error is not None)

    def prepare(self, body: bytes) -> Prepared:
        """Decode the body, and check what it asks for."""
        self._decoding = time.monotonic()
        self._request = self.call.read(body)
        return self.call.prepare(self._request, len(body))

    async def prepare_long(self, body: bytes, lane: Lane) -> Prepared:
        """The same, while the event loop goes on."""
        self._decoding = time.monotonic()
        plain = len(body) >= self.call.plain_from
        request = await lane.run(partial(self.call.read_plain, body)) if plain else None
        return self.understood(await asyncio.to_thread(self.call.read, body) if request is None else request, len(body))

    def read_plain(self, body: bytes, lane: Lane, done: Done) -> None:
        """The first half of the same: `done` has what `understood` takes, None for a body that is not plain."""
        self._decoding = time.monotonic()
        lane.start(partial(self.call.read_plain, body), done)

    def understood(self, request: Any, bytes_in: int) -> Prepared:
        """The second half."""
        self._request = request
        return self.call.prepare(request, bytes_in)

    def queue(self, prepared: Prepared) -> Ticket:
        """Queue it; errors as in `LocalEngine.queue`."""
        self._decoded = time.monotonic()
        deadline = min(self.deadline, self._exchange.arrived + self.call.timeout_s(self._request))
        self.submission = self._engine.queue(prepared, deadline)
        self._ticket, self._statistics = self.submission.ticket, prepared.units[0].job.statistics
        return self._ticket

    def cancel(self, why: str) -> None:
        """Its client has left."""
        if self._ticket is not None:
            self._engine.batcher.cancel(self._ticket, ClientGone(why))

    def computed(self) -> None:
        """There are verdicts: what is done from now on is to encode."""
        self._computed = time.monotonic()

    def write(self, output: AttentionOutput) -> Written:
        """The answer."""
        return self.call.write(self._request, output)

    def head(self, written: Written, length: int) -> Headers:
        """The headers of the answer, whose body is `length` bytes, compressed as `written` says. Now it is encoded."""
        assert self._ticket is not None, "what is answered was queued"
        ticket = self._ticket
        decode, queue = self._decoded - self._decoding, ticket.started - ticket.submitted
        self._encoded = time.monotonic()
        compute, encode = ticket.finished - ticket.started, self._encoded - self._computed
        self._stages = {"decode": decode, "queue": queue, "compute": compute, "encode": encode}
        timing = b"decode;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, encode;dur=%.3f" % (
            decode * 1e3, queue * 1e3, compute * 1e3, encode * 1e3,
        )  # fmt: skip
        headers = written.headers
        if written.coding:
            headers = [*headers, (b"content-encoding", written.coding.encode())]
        return [*headers, (b"content-length", b"%d" % length), (b"server-timing", timing)]

    def answering(self) -> None:
        """Count it where its model's are, before the caller has the answer, and may ask for the count."""
        if self._statistics is not None and self._ticket is not None:
            elapsed_s = time.monotonic() - self._exchange.arrived
            self._statistics.succeeded(elapsed_s, self._stages, self._ticket.sequences)
        self._counted = True

    def answered(self) -> None:
        """Count its stages: all of the answer has been sent."""
        observe_each(self._metrics.stage_of, self._stages)

    def end(self, *, failed: bool) -> None:
        """Let go of it, and if it failed before it was answered, count that."""
        if failed and not self._counted:
            statistics = self._statistics or self.call.statistics()  # the body may have said whose
            if statistics is not None:
                statistics.refused(time.monotonic() - self._exchange.arrived)
        if self._ticket is not None:
            if (details := self._exchange.details) is not None:
                details.work = self._work(self._ticket)
            self._engine.batcher.release(self._ticket)

    def _work(self, ticket: Ticket) -> Work:
        """What was computed, as far as it came."""
        name, version = self.submission.prepared.name
        stages = (
            ("decode", self._decoding, self._decoded),
            ("queue", ticket.submitted, ticket.started),
            ("compute", ticket.started, ticket.finished),
            ("encode", self._computed, self._encoded),
        )
        return Work(
            model=f"{name}@{version}" if version else name,
            backend=self.submission.prepared.info.name,
            sequences=ticket.sequences,
            tokens=ticket.tokens,
            batch=ticket.batch,
            stages=[(stage, begin, end) for stage, begin, end in stages if end],
        )


class TensorEndpoint(ABC):
    """Read, queue, write. Every rule lives in one of those three, or in `call`.

    Attributes:
        most_sent: bytes of an answer that are sent at a time.
    """

    most_sent = MOST_SENT

    def __init__(self, runtime: Runtime) -> None:
        """Serve with the parts of `runtime`."""
        self._runtime = runtime
        self._metrics = runtime.metrics

    @abstractmethod
    def call(self, exchange: Exchange, scope: Scope, engine: LocalEngine) -> Call:
        """How requests with this path and these headers are read and answered; raises where they are wrong."""

    def engine(self) -> LocalEngine:
        """What computes now.

        Raises:
            Draining, NotReady: if nothing does.
        """
        if self._runtime.draining:
            self._metrics.rejected.labels("draining").inc()
            raise Draining("the service is shutting down; try another replica")
        return self._runtime.engine

    def begin(self, exchange: Exchange, call: Call, engine: LocalEngine) -> Inference:
        """Begin a request; raises an `AttentionError` where its headers are wrong."""
        return Inference(exchange, call, engine, self._metrics, deadline_of(exchange, self._runtime.settings))

    async def __call__(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or raise an `AttentionError` before the answer has begun."""
        engine = self.engine()
        intake = self._runtime.intake
        with self.begin(exchange, self.call(exchange, scope, engine), engine) as inference:
            body = await intake.read(exchange, receive, inference.deadline, inference.call.codings)
            is_long = inference.call.is_long(body)
            prepared = await inference.prepare_long(body, intake.lane) if is_long else inference.prepare(body)
            inference.queue(prepared)
            verdicts = await _verdicts(inference, receive)
            inference.computed()
            written = inference.write(await inference.submission.output(verdicts))
            del verdicts
            content = written.content
            pieces: list[Piece] = [content] if isinstance(content, bytes) else await intake.lane.run(content)
            if written.coding:
                pieces = [await compress(pieces, written.coding)]
            headers = inference.head(written, sum(map(len, pieces)))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            inference.answering()
            await _send(pieces, send, self.most_sent)
            inference.answered()


def deadline_of(exchange: Exchange, settings: Settings) -> float:
    """When an answer is no longer wanted: counted from arrival, by `time.monotonic`.

    Raises:
        InvalidOption: if the header that says so does not.
    """
    most = settings.request_timeout_ms
    if not exchange.headers.get(TIMEOUT_HEADER):
        return min(exchange.deadline, exchange.arrived + most / 1e3)
    asked = exchange.header(TIMEOUT_HEADER)
    if not asked.isdecimal() or not 0 < len(asked) <= 12 or int(asked) == 0:
        raise InvalidOption(f"X-Request-Timeout-Ms: expected whole milliseconds above 0, got {asked!r}")
    return min(exchange.deadline, exchange.arrived + min(int(asked), most) / 1e3)


class TensorRoute(TensorEndpoint):
    """An endpoint of tensors over HTTP, as a `RawRoute`."""

    path: str
    methods = ("POST",)

    @property
    @abstractmethod
    def schemas(self) -> Sequence[type[BaseModel]]:
        """See `RawRoute`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """See `RawRoute`."""


class NegotiatedRoute(TensorRoute):
    """A tensor route whose formats are chosen by the headers Content-Type and Accept."""

    decoders: Mapping[str, Decoder[Any]]
    operation: Operation
    long_from = LONG_BODY

    @abstractmethod
    def understood(self, request: Any, engine: LocalEngine) -> Any:
        """What `check` takes, from what a decoder made; in the decoder's thread."""

    @abstractmethod
    def check(self, request: Any, engine: LocalEngine, bytes_in: int) -> Prepared:
        """Check what was understood; errors as in `LocalEngine.prepare`."""

    def call(self, exchange: Exchange, scope: Scope, engine: LocalEngine) -> Call:
        """See `TensorRoute.call`."""
        decoder = decoder_for(exchange.header(b"content-type"), self.decoders)
        encoder = encoder_for(exchange.header(b"accept"), decoder.media_type)
        query = scope["query_string"].decode("latin-1")
        return _Negotiated(self, engine, decoder, encoder, query, exchange.header(b"accept-encoding"))

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
        parameters.append(TIMEOUT_PARAMETER)
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


class _Negotiated(Call):
    def __init__(
        self, route: NegotiatedRoute, engine: LocalEngine, decoder: Decoder[Any], encoder: Encoder, query: str,
        accept_encoding: str,
    ) -> None:  # fmt: skip
        self._route, self._engine, self._query = route, engine, query
        self._decoder, self._encoder, self._accept_encoding = decoder, encoder, accept_encoding
        self.plain_from = decoder.plain_from
        self._is_text = encoder.media_type == "application/json"
        self._headers = [(b"content-type", encoder.media_type.encode()), (b"vary", b"accept, accept-encoding")]

    def is_long(self, body: bytes) -> bool:
        return len(body) >= min(self._route.long_from, self.plain_from)

    def read(self, body: bytes) -> Any:
        request = self._decoder.decode(body, self._query)
        check_media_type(request.options, self._encoder.media_type)
        return self._route.understood(request, self._engine)

    def read_plain(self, body: bytes) -> Any | None:
        with self._engine.team() as team:
            request = self._decoder.decode_plain(body, self._query, team)
        if request is None:
            return None
        check_media_type(request.options, self._encoder.media_type)
        return self._route.understood(request, self._engine)

    def prepare(self, request: Any, bytes_in: int) -> Prepared:
        return self._route.check(request, self._engine, bytes_in)

    def write(self, request: Any, output: AttentionOutput) -> Written:
        is_long = output.nbytes >= self._encoder.long_answer
        content = partial(self._pieces, output) if is_long else self._encoder.encode(output)
        worth_it = self._is_text and (not isinstance(content, bytes) or len(content) >= WORTH_COMPRESSING)
        return Written(content, self._headers, answer_coding(self._accept_encoding) if worth_it else "")

    def _pieces(self, output: AttentionOutput) -> list[Piece]:
        with self._engine.team() as team:
            return self._encoder.pieces(output, team)


async def _send(pieces: list[Piece], send: Send, most: int) -> None:
    """Send a body. Of a long one, a piece is let go of as soon as it has been taken."""
    pieces[:] = [part for piece in reversed(pieces) for part in _parts(piece, most)]  # the caller holds none either
    while len(pieces) > 1:
        try:
            async with asyncio.timeout(TAKE_TIMEOUT_S):
                await send({"type": "http.response.body", "body": pieces.pop(), "more_body": True})
        except TimeoutError:
            raise ClientGone(f"the client took nothing of its answer for {TAKE_TIMEOUT_S:g} s") from None
        await asyncio.sleep(0)  # a fast client takes piece after piece
    await send({"type": "http.response.body", "body": pieces.pop()})


def _parts(piece: Piece, most: int) -> Sequence[Piece]:
    """A piece, cut to what the event loop has time for, the last part first."""
    if len(piece) <= most:
        return [piece]
    whole = memoryview(piece)
    return [whole[i : i + most] for i in range(0, len(whole), most)][::-1]


async def _verdicts(inference: Inference, receive: Receive) -> Verdicts:
    """Wait for the verdicts; if some of the work stays queued for long, watch whether the client is still there."""
    submission = inference.submission
    if not submission.ticket.queued:
        return await submission.verdicts()
    loop = asyncio.get_running_loop()
    watchers: list[asyncio.Task[None]] = []
    timer = loop.call_later(WATCH_AFTER_S, lambda: watchers.append(loop.create_task(_watch(inference, receive))))
    try:
        return await submission.verdicts()
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()


async def _watch(inference: Inference, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    inference.cancel("the client left while its request was queued")


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


TIMEOUT_PARAMETER: dict[str, Any] = {
    "name": "X-Request-Timeout-Ms",
    "in": "header",
    "required": False,
    "description": "Deadline in milliseconds from arrival; work past it is not computed and answers 504.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999_999},
}


class AnsweredTensor(BaseModel):
    """An array as base64: little-endian, row-major."""

    shape: list[int] = Field(description="Sizes of the axes.")
    dtype: Literal["float32", "float16", "int32"] = Field(description="int32 for indices only.")
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
