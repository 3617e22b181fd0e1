"""The one place where the parts meet: `create_app` makes the ASGI application."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi_swagger import patch_fastapi
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from models.errors import AttentionError, FieldError, InvalidInput
from service.access import KEY_NEEDED, KEY_SCHEMES, guarded
from service.errors import MethodNotAllowed, NotFound
from service.exchange import Application, Exchange, Message, Receive, Scope, Send
from service.metrics import Metrics, package_version
from service.observe import Observe, with_problems
from service.peers import Peers
from service.routes import raw_routes, routers
from service.routes.base import RawRoute, RawRoutes
from service.routes.pages import static_files
from service.runtime import Compute, Runtime
from service.settings import Settings
from service.shortcut import Shortcut

DESCRIPTION = """Self-attention, served. Post token embeddings, get attention **weights** and **outputs**, and, asked
for, query, key, value and scores. Errors are `application/problem+json` (RFC 9457); `/problems` explains each type."""


def unframed(send: Send) -> Send:
    """`send`, and no page of another origin may frame a page of ours that has no policy of its own, as `/docs`."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if headers.get("content-type", "").startswith("text/html"):
                headers.setdefault("content-security-policy", "frame-ancestors 'none'")
        await send(message)

    return guarded


class Problem(BaseModel):
    """An error, RFC 9457."""

    class Place(BaseModel):
        """One place at fault."""

        pointer: str = Field(description="JSON pointer into the request.")
        detail: str

    type: str = Field(description="Stable relative URI, explained there.", examples=["/problems/shape-mismatch"])
    title: str
    status: int
    detail: str
    instance: str = Field(description="The request id.")
    errors: list[Place] = Field(default=[], description="The fields at fault, where fields are.")


class Service:
    """The ASGI application: access, tensor routes, and FastAPI for the rest, under `Observe`.

    Attributes:
        runtime: the parts it serves with.
        api: the FastAPI application.
        shortcut: the short way of small requests; None where all answers take something that is added here.
    """

    def __init__(self, runtime: Runtime, api: FastAPI, raw: Sequence[RawRoute]) -> None:
        """Serve `raw` routes straight, everything else by `api`."""
        self.runtime, self.api = runtime, api
        self._raw = RawRoutes(raw)
        self.shortcut = None if runtime.settings.cors_origins else Shortcut(runtime, self._raw)
        inner: Application = self._route
        if origins := runtime.settings.cors_origins:
            inner = CORSMiddleware(
                with_problems(inner),  # a page of another origin may read errors too
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "Server-Timing", "Retry-After", "Inference-Header-Content-Length"],
            )
        self._observed = Observe(inner, runtime.records)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        await self._observed(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.api(scope, receive, send)
            return
        exchange: Exchange = scope["exchange"]
        path = scope["path"]
        exchange.close = exchange.close or self.runtime.draining
        route, scope["path_params"] = self._raw.find(path)
        if route is not None:
            exchange.route = route.path
        if guarded(path):
            await self.runtime.access.check(exchange, scope.get("client"))
        if route is None:
            await self._by_api(scope, receive, send)
            return
        if scope["method"] not in route.methods:
            allowed = " or ".join(route.methods)
            raise MethodNotAllowed(f"{path} takes {allowed}, not {scope['method']}", route.methods)
        await route(exchange, scope, receive, send)

    async def _by_api(self, scope: Scope, receive: Receive, send: Send) -> None:
        """FastAPI routes GET only; HEAD is the same, and the server leaves the body out."""
        if scope["method"] != "HEAD":
            await self.api(scope, receive, unframed(send))
            return
        as_get = {**scope, "method": "GET"}
        try:
            await self.api(as_get, receive, unframed(send))
        finally:
            scope["route"] = as_get.get("route")


def create_app(
    settings: Settings,
    on_fatal: Callable[[AttentionError], None] | None = None,
    peers: Peers | None = None,
    changes: Sequence[tuple[str, str]] = (),
    compute: Callable[[Metrics], Compute] | None = None,
) -> Service:
    """The application. It begins to load its models when its lifespan starts.

    Args:
        settings: how to serve.
        on_fatal: called if it turns out not to be able to start.
        peers: the workers of the service of which this is one; None if it is the only one.
        changes: of what is served, that the other workers have made; see `Runtime`.
        compute: makes what leads to the engine; None for an engine in this process.
    """
    runtime = Runtime(settings, on_fatal, peers, changes, compute)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        runtime.start()
        yield
        await runtime.stop()

    api = FastAPI(
        title="Self-attention service",
        version=package_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        responses={"default": {"description": "An error.", "content": {"application/problem+json": {
            "schema": {"$ref": "#/components/schemas/Problem"}}}}},
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )  # fmt: skip
    for router in routers(runtime):
        api.include_router(router)
    api.mount("/static", static_files())
    patch_fastapi(api, redirect_from_root_to_docs=False)
    for error in (AttentionError, HTTPException, RequestValidationError, Exception):
        api.add_exception_handler(error, _leave_to_observe)
    raw = raw_routes(runtime)
    _describe(api, raw, with_keys=bool(settings.api_keys))
    return Service(runtime, api, raw)


async def _leave_to_observe(request: Request, error: Exception) -> Any:
    """Every error leaves FastAPI as one of ours; `Observe` writes it."""
    if isinstance(error, HTTPException):
        path, method = request.url.path, request.method
        if error.status_code == 405:
            # FastAPI names the methods of one of the path's routes; the document has those of all.
            described = tuple(verb.upper() for verb in request.app.openapi()["paths"].get(path, ()))
            named = tuple(part.strip() for part in (error.headers or {}).get("Allow", "GET").split(","))
            allowed = described or named
            if "GET" in allowed:
                allowed = ("GET", "HEAD", *(name for name in allowed if name not in ("GET", "HEAD")))
            raise MethodNotAllowed(f"{path} takes {' or '.join(allowed)}, not {method}", allowed)
        raise NotFound(f"there is nothing at {path}; /docs lists what there is")
    if isinstance(error, RequestValidationError):
        fields = [
            FieldError("".join(f"/{part}" for part in fault["loc"][1:]), fault["msg"]) for fault in error.errors()
        ]
        raise InvalidInput("; ".join(f"{field.pointer}: {field.detail}" for field in fields), *fields)
    raise error


def _describe(api: FastAPI, raw: Sequence[RawRoute], *, with_keys: bool) -> None:
    """Let the OpenAPI document tell of raw routes too, and of API keys where they are asked for."""
    made = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            document = made()
            models = {model: None for route in raw for model in route.schemas}  # each once
            keys = [(model, "validation") for model in (Problem, *models)]
            _, definitions = models_json_schema(keys, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
            document["components"]["schemas"] |= definitions["$defs"]
            # First what people come for.
            document["paths"] = {route.path: route.describe() for route in raw} | document["paths"]
            document["components"]["securitySchemes"] = KEY_SCHEMES
            if with_keys:
                for path, item in document["paths"].items():
                    if guarded(path):
                        for operation in item.values():
                            operation["security"] = KEY_NEEDED
            api.openapi_schema = document
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]
