"""`POST /v1/explain`: every step of self-attention with its numbers; `GET` explains a model's own example."""

import asyncio
import hashlib
import time
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from service.body import WORTH_COMPRESSING, answer_coding, compress
from service.codecs.negotiation import preferred, received
from service.errors import DeadlineExceeded, Draining, QueueFull
from service.exchange import Exchange
from service.routes.attention import Mask, ProjectionsBody, Rows, TensorObject
from service.routes.explain_problem import pose
from service.routes.explain_request import ExplainOptions, ExplainRequest, read
from service.routes.tensors import TIMEOUT_PARAMETER, ModelName, deadline_of
from service.runtime import Runtime
from service.tutor.explain import DECIMALS, explain
from service.tutor.render import RENDERERS
from service.tutor.render.base import Look, Renderer

MOST_TOGETHER = 16
"""Explanations made at one time; each takes milliseconds, PNG some tenths of a second."""

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Content-Security-Policy of pages and pictures: they bring their style, and need nothing else."""

DESCRIPTION = """Works one sequence of at most 16 tokens and 16 columns step by step, in float64, and answers every
step: its formula, its numbers, the products of each sum, exact fractions and roots where all that is given is whole,
and a paragraph that follows one token through it. Nothing at all, `{}`, explains the example of the model `lesson`.

`Accept` chooses among JSON, a page without script (`text/html`), `text/markdown`, `application/x-tex`, and a picture as
`image/svg+xml` or `image/png`; `picture`, `focus`, `head` and `theme` say of what. With `text`, one head of an encoder
is explained as it sees a text. The same request is answered with the same bytes, and with an `ETag` that
`If-None-Match` may name."""

EXAMPLES: dict[str, Any] = {
    "lesson": {"summary": "The lesson's example, nothing else needed", "value": {}},
    "own": {
        "summary": "Your own matrices of whole numbers, causal: exact fractions and roots",
        "value": {
            "inputs": [[1, 0], [0, 1], [1, 1]],
            "projections": {"query": [[1, 0], [0, 2]], "key": [[1, 1], [0, 1]], "value": [[1, 2], [3, 4]]},
            "labels": ["sun", "moon", "sky"],
            "is_causal": True,
        },
    },
    "masked": {
        "summary": "A mask, a bias and an own scale, rounded",
        "value": {
            "model": "lesson",
            "inputs": [[1, 0, 0, 0, 0.5], [0, 0, 1, 0, 0.5]],
            "attn_mask": [[True, False], [True, True]],
            "attn_bias": [[0, 0], [0.5, 0]],
            "scale": 0.5,
            "decimals": 3,
        },
    },
}
"""Requests that work as they stand."""


class ExplainBody(ExplainOptions):
    """A request in JSON; every field may be missing."""

    inputs: Rows | TensorObject | None = Field(
        default=None, description="Token embeddings [n][d]; default: the model's example."
    )
    projections: ProjectionsBody | None = Field(default=None, description="Own matrices; excludes `model`.")
    attn_mask: Mask | None = Field(default=None, description="[n][n] booleans, true = may attend.")
    attn_bias: Rows | list[Rows] | TensorObject | None = Field(
        default=None, description="[n][n] or [heads][n][n], added to the scaled scores."
    )
    labels: list[str] | None = Field(default=None, description="A word per token.")
    text: str | None = Field(
        default=None, description="A text of at most 16 tokens, for an encoder, in place of all arrays."
    )


class OperandAnswer(BaseModel):
    """What a step is computed from."""

    name: str = Field(description="A step's id, or a field such as `projections.query`.")
    symbol: str = Field(description="LaTeX.")
    shape: list[int] = Field(description="Empty for a number.")


class StepAnswer(BaseModel):
    """A step. Arrays have an axis of heads in front where the problem has several."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(description="Fixed for good.")
    title: str
    symbol: str = Field(description="LaTeX.")
    formula: str = Field(description="LaTeX.")
    mathml: str = Field(description="The formula as MathML.")
    operands: list[OperandAnswer]
    shape: list[int]
    row_labels: list[str]
    column_labels: list[str]
    values: list[Any] = Field(description="null where a score is masked.")
    exact: list[Any] | None = Field(default=None, description="Per cell, such as `3/√2 = 3√2/2`, of whole numbers.")
    terms: list[Any] | None = Field(
        default=None, description="Per cell of a sum its terms, each [factor, factor, product]."
    )
    text: str = Field(description="The step in words.")


class Focus(BaseModel):
    """What words and pictures follow."""

    head: int
    row: int
    token: str


class ExplainAnswer(BaseModel):
    """An explanation in JSON."""

    model: ModelName
    place: str = Field(description="With `text`: layer and head of the encoder.")
    labels: list[str]
    num_heads: int
    is_causal: bool
    scale: float = Field(description="What scores were multiplied by.")
    decimals: int | None
    summary: str = Field(description="The finding in one sentence.")
    alt: str = Field(description="What a picture shows, for who does not see it.")
    focus: Focus
    inputs: list[list[float]] | None = Field(default=None, description="Left out of more than 16 columns.")
    projections: dict[str, list[list[float]]] | None = Field(default=None, description="Likewise.")
    steps: list[StepAnswer] = Field(description="In the order of the recipe.")
    checks: dict[str, Any] = Field(description="`row_sums`: 1 each, 0 of rows that see nothing.")
    notes: list[str]
    fully_masked_rows: list[int] | None = Field(default=None, description="Only where there are some.")


def router(runtime: Runtime) -> APIRouter:
    """`/v1/explain`."""
    routes = APIRouter(prefix="/v1/explain", tags=["tutoring"])
    explainer = _Explainer(runtime)
    queries = [_parameter(name, schema) for name, schema in ExplainOptions.model_json_schema()["properties"].items()]
    written: dict[str, Any] = {
        name: {"schema": {"type": "string"} | ({} if name.startswith("text/") else {"format": "binary"})}
        for name in RENDERERS
        if name != "application/json"
    }
    answers: dict[int | str, dict[str, Any]] = {
        200: {"model": ExplainAnswer, "description": "The explanation.", "content": written},
        304: {"description": "What `If-None-Match` names is what would be answered."},
    }
    # What it refers to, the document has already: /v1/attention takes the same.
    schema = ExplainBody.model_json_schema(ref_template="#/components/schemas/{model}")
    del schema["$defs"]
    body = {"content": {"application/json": {"schema": schema, "examples": EXAMPLES}}}

    @routes.post(
        "", summary="Explain: every step of attention with its numbers", operation_id="explain",
        description=DESCRIPTION, responses=answers,
        openapi_extra={"parameters": [*queries, TIMEOUT_PARAMETER], "requestBody": {"required": False} | body},
    )  # fmt: skip
    async def post(request: Request) -> Response:
        exchange: Exchange = request.scope["exchange"]
        received(exchange.header(b"content-type"), ("application/json",))
        deadline = deadline_of(exchange, runtime.settings)
        content = await runtime.intake.read(exchange, request.receive, deadline)
        return await explainer.answer(exchange, content, request.scope["query_string"], deadline)

    @routes.get(
        "", summary="Explain a model's example: a link to a page, or the address of a picture",
        operation_id="explain_example", responses=answers,
        openapi_extra={"parameters": [*queries, TIMEOUT_PARAMETER]},
    )  # fmt: skip
    async def get(request: Request) -> Response:
        """As `POST` without a body: what stands in the query string chooses model, picture and so on."""
        exchange: Exchange = request.scope["exchange"]
        deadline = deadline_of(exchange, runtime.settings)
        return await explainer.answer(exchange, b"", request.scope["query_string"], deadline)

    return routes


class _Explainer:
    """Makes answers, in threads, a few at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._together = 0

    async def answer(self, exchange: Exchange, body: bytes, query: bytes, deadline: float) -> Response:
        """The explanation that is asked for, or 304."""
        runtime = self._runtime
        if runtime.draining:
            runtime.metrics.rejected.labels("draining").inc()
            raise Draining("the service is shutting down; try another replica")
        catalog = runtime.engine.catalog
        renderer = RENDERERS[preferred(exchange.header(b"accept"), tuple(RENDERERS))]

        def made() -> bytes:
            request = read(body, query.decode("latin-1"))
            posed = pose(request, catalog, runtime.settings)
            decimals = request.options.decimals
            explanation = explain(
                posed.problem,
                model=posed.model,
                head=posed.head,
                focus=posed.focus,
                decimals=DECIMALS if decimals is None else decimals,
                place=posed.place,
                notes=posed.notes,
            )
            return renderer.render(explanation, _look(request))

        if self._together >= MOST_TOGETHER:
            runtime.metrics.rejected.labels("requests").inc()
            raise QueueFull(f"{self._together} explanations are being made; no more are at one time")
        self._together += 1
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                content = await asyncio.to_thread(made)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed while the explanation was being made") from None
        finally:
            self._together -= 1
        return await _response(exchange, renderer, content)


async def _response(exchange: Exchange, renderer: Renderer, content: bytes) -> Response:
    """An answer with its validator; compressed where that helps."""
    picture = renderer.media_type == "image/png"
    worth_it = not picture and len(content) >= WORTH_COMPRESSING
    coding = answer_coding(exchange.header(b"accept-encoding")) if worth_it else ""
    digest = hashlib.sha256(content).hexdigest()[:32]
    headers = {
        "ETag": f'"{digest}-{coding}"' if coding else f'"{digest}"',  # strong: other bytes, other tag
        "Vary": "accept, accept-encoding",
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Content-Security-Policy": POLICY,
    }
    if _matches(exchange.header(b"if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    if coding:
        content = await compress([content], coding)
        headers["Content-Encoding"] = coding
    charset = f"; charset={renderer.charset}" if renderer.charset else ""
    headers["Content-Type"] = f"{renderer.media_type}{charset}"
    return Response(content, headers=headers)


def _matches(asked: str, tag: str) -> bool:
    """Whether If-None-Match names a tag; it compares weakly, RFC 9110 section 13.1.2."""
    return asked.strip() == "*" or tag in (part.strip().removeprefix("W/") for part in asked.split(","))


def _look(request: ExplainRequest) -> Look:
    options = request.options
    return Look(options.picture, options.theme, options.decimals)


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """How an option looks in a query string: nothing is null there."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    given = schema if not kinds else kinds[0] if len(kinds) == 1 else {"type": "string"}
    dropped = ("title", "description", "default", "anyOf")
    bare = {key: value for key, value in given.items() if key not in dropped}
    return {"name": name, "in": "query", "required": False, "description": schema["description"], "schema": bare}
