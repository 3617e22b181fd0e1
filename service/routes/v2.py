"""The Open Inference Protocol, version 2, over REST: all of `/v2` but `infer`."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from service.access import KEY_NEEDED
from service.codecs.strict_json import json_object
from service.errors import InvalidOption, UnknownField, WrongType
from service.exchange import Exchange
from service.loader import Change
from service.metrics import package_version
from service.protocol import (
    IndexedModel,
    ModelConfig,
    ModelMetadata,
    Served,
    ServerMetadata,
    StatisticsAnswer,
    all_served,
    check_load,
    check_ready,
    check_unload,
    config_of,
    index_of,
    metadata_of,
    name_of,
    served,
    statistics_of,
)
from service.routes.infer import CODINGS, ERROR
from service.runtime import Runtime


class Live(BaseModel):
    """The process answers."""

    live: bool = True


class Ready(BaseModel):
    """Models are loaded and warmed, and their backends agree."""

    ready: bool = True


class ModelReady(BaseModel):
    """The model answers."""

    name: str
    ready: bool = True


class RepositoryChange(BaseModel):
    """What is served otherwise than before, each as `name@version`."""

    loaded: list[str]
    unloaded: list[str]


ROOT: dict[str, Any] = {"responses": {"default": {"description": "An error.", "content": ERROR}}}


def router(runtime: Runtime) -> APIRouter:
    """All of `/v2` but `infer`."""
    routes = APIRouter(prefix="/v2", tags=["open inference protocol"], **ROOT)

    def found(name: str, version: str = "") -> Served:
        return served(runtime, name_of(name, version))

    @routes.get("/health/live", summary="Liveness")
    async def server_live() -> Live:
        """200 while the process answers at all."""
        return Live()

    @routes.get("/health/ready", summary="Readiness")
    async def server_ready() -> Ready:
        """200 only when models are loaded, warmed, and their backends agree; 503 says what is missing."""
        check_ready(runtime)
        return Ready()

    @routes.get("", summary="What serves, and the extensions it has")
    async def server_metadata() -> ServerMetadata:
        """Name, version and extensions of the protocol."""
        return ServerMetadata(version=package_version())

    @routes.get("/models/stats", summary="Statistics of every model")
    async def all_statistics() -> StatisticsAnswer:
        """See `/v2/models/{name}/stats`."""
        return StatisticsAnswer(model_stats=[await statistics_of(runtime, model) for model in all_served(runtime)])

    @routes.get("/models/{name}", summary="What a model takes and gives")
    async def model_metadata(name: str) -> ModelMetadata:
        """Names, datatypes and shapes of its tensors."""
        return metadata_of(found(name))

    @routes.get("/models/{name}/versions/{version}", summary="What a version of a model takes and gives")
    async def version_metadata(name: str, version: str) -> ModelMetadata:
        """Names, datatypes and shapes of its tensors."""
        return metadata_of(found(name, version))

    @routes.get("/models/{name}/ready", summary="Readiness of a model")
    async def model_ready(name: str) -> ModelReady:
        """200 if it is served and the service is ready."""
        check_ready(runtime)
        return ModelReady(name=found(name).name)

    @routes.get("/models/{name}/versions/{version}/ready", summary="Readiness of a version of a model")
    async def version_ready(name: str, version: str) -> ModelReady:
        """200 if it is served and the service is ready."""
        check_ready(runtime)
        return ModelReady(name=found(name, version).name)

    @routes.get("/models/{name}/config", summary="A model's configuration")
    async def model_config(name: str) -> ModelConfig:
        """As far as there is something to say."""
        return config_of(runtime, found(name))

    @routes.get("/models/{name}/versions/{version}/config", summary="Configuration of a version of a model")
    async def version_config(name: str, version: str) -> ModelConfig:
        """As far as there is something to say."""
        return config_of(runtime, found(name, version))

    @routes.get("/models/{name}/stats", summary="Statistics of a model")
    async def model_statistics(name: str) -> StatisticsAnswer:
        """Of its newest version, since that was loaded."""
        return StatisticsAnswer(model_stats=[await statistics_of(runtime, found(name))])

    @routes.get("/models/{name}/versions/{version}/stats", summary="Statistics of a version of a model")
    async def version_statistics(name: str, version: str) -> StatisticsAnswer:
        """Since it was loaded."""
        return StatisticsAnswer(model_stats=[await statistics_of(runtime, found(name, version))])

    @routes.post("/repository/index", summary="Every model, served or not", openapi_extra=_optional_body(IndexBody))
    async def repository_index(request: Request) -> list[IndexedModel]:
        """Models that are served, folders that cannot be, and names that are not loaded."""
        fields = await _fields(runtime, request, ("ready",))
        if not isinstance(only_ready := fields.get("ready", False), bool):
            raise InvalidOption.at("/ready", f"expected a boolean, got {only_ready!r}")
        return await index_of(runtime, only_ready=only_ready)

    change: dict[str, Any] = {"openapi_extra": {"security": KEY_NEEDED} | _optional_body(ChangeBody)}

    @routes.post("/repository/models/{name}/load", summary="Load a model, or load it again", **change)
    async def repository_load(name: str, request: Request) -> RepositoryChange:
        """As `POST /v1/models/{name}/load`. Configurations and files of one's own are refused. Needs an admin key."""
        catalog = runtime.changeable(request.scope["exchange"])
        check_load(await _parameters(runtime, request))
        return _changed(await runtime.load(catalog, name))

    @routes.post("/repository/models/{name}/unload", summary="Unload a model", **change)
    async def repository_unload(name: str, request: Request) -> RepositoryChange:
        """As `POST /v1/models/{name}/unload`; no model depends on another. Needs an admin key."""
        catalog = runtime.changeable(request.scope["exchange"])
        check_unload(await _parameters(runtime, request))
        return _changed(await runtime.unload(catalog, name))

    return routes


class IndexBody(BaseModel):
    """What of the index is asked for."""

    ready: bool = Field(default=False, description="Only what is served.")


class ChangeBody(BaseModel):
    """Parameters of a change."""

    parameters: dict[str, bool] = Field(default={}, description="`unload_dependents`, of an unload.")


def _optional_body(model: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI's description of a body that may be missing; its Content-Type is not looked at."""
    schema = model.model_json_schema() | {"additionalProperties": False}
    return {"requestBody": {"required": False, "content": {"application/json": {"schema": schema}}}}


async def _parameters(runtime: Runtime, request: Request) -> dict[str, Any]:
    parameters = (await _fields(runtime, request, ("parameters",))).get("parameters", {})
    if not isinstance(parameters, dict):
        raise WrongType.at("/parameters", "expected an object")
    return parameters


async def _fields(runtime: Runtime, request: Request, known: Sequence[str]) -> dict[str, Any]:
    """The fields of a body that may be empty."""
    exchange: Exchange = request.scope["exchange"]
    deadline = exchange.arrived + runtime.settings.request_timeout_ms / 1e3
    body = await runtime.intake.read(exchange, request.receive, deadline, CODINGS)
    fields = json_object(body, known[0]) if body.strip() else {}
    for name in fields:
        if name not in known:
            raise UnknownField.at(f"/{name[:64]}", f"no such field; known are {', '.join(known)}")
    return fields


def _changed(change: Change) -> RepositoryChange:
    return RepositoryChange(loaded=[model.entry.spec.id for model in change.loaded], unloaded=change.unloaded)
