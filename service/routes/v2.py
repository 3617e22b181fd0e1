"""The Open Inference Protocol, version 2, over REST: what its clients ask for, under `/v2`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from models.types import ALL_TENSOR_NAMES
from service.access import KEY_NEEDED
from service.body import WORTH_COMPRESSING, answer_coding
from service.catalog import LoadedModel
from service.codecs import v2
from service.codecs.strict_json import json_object
from service.engine import LocalEngine, Submission
from service.errors import InvalidOption, NotReady, UnknownField, WrongType
from service.loader import Change
from service.messages import AttentionOutput
from service.metrics import package_version
from service.observe import Exchange, Scope
from service.routes.tensors import REFUSALS, TIMEOUT_PARAMETER, Call, TensorRoute, Written
from service.runtime import Runtime
from service.statistics import Statistics, Tally

EXTENSIONS = ["binary_tensor_data", "parameters", "statistics", "model_configuration", "model_repository"]

PLATFORM = "self_attention"

CODINGS = ("gzip", "deflate")
"""Content codings that clients of the protocol know."""

HEADER_LENGTH = b"inference-header-content-length"


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


def name_of(model: str, version: str) -> str:
    """What the catalog calls a model and, unless it is empty, a version of it."""
    return f"{model}@{version}" if version else model


# ---- infer

DESCRIPTION = """Takes the tensor `inputs` (FP32, FP16 or FP64, `[n,d]` or `[b,n,d]`) and optionally `attn_mask` (BOOL)
and `attn_bias`; answers the `outputs` asked for, by default `outputs` and `weights`, always FP32.

Tensors stand in the JSON document as `data`, or behind it in binary: `Inference-Header-Content-Length` is then the
length of the JSON part, and each such tensor has a `binary_data_size`. No Content-Type is needed."""


class InferInput(BaseModel):
    """A tensor of a request."""

    name: Literal["inputs", "attn_mask", "attn_bias"]
    shape: list[int] = Field(max_length=v2.MOST_AXES)
    datatype: Literal["FP16", "FP32", "FP64", "BOOL"]
    parameters: dict[str, int] = Field(default={}, description="`binary_data_size`, for data behind the JSON part.")
    data: list[Any] | None = Field(default=None, description="Row-major, nested as the shape says or flat.")


class InferRequestedOutput(BaseModel):
    """A tensor to be answered."""

    name: Literal["outputs", "weights", "scores", "query", "key", "value", "projected"]
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
    datatype: Literal["FP32"]
    shape: list[int]
    parameters: dict[str, int] | None = Field(default=None, description="`binary_data_size`, in binary.")
    data: list[float | None] | None = Field(default=None, description="Flat; masked scores are null.")


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
        return _Infer(exchange, engine, name, engine.catalog.layer(name).statistics)

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


class _Infer(Call):
    codings = CODINGS

    def __init__(self, exchange: Exchange, engine: LocalEngine, model: str, statistics: Statistics) -> None:
        self._exchange, self._engine, self._model = exchange, engine, model
        self.statistics = statistics

    def read(self, body: bytes) -> v2.InferRequest:
        return v2.decode(body, self._exchange.header(HEADER_LENGTH), self._model)

    def submit(self, request: v2.InferRequest, bytes_in: int, deadline: float) -> Submission:
        self._request = request
        return self._engine.submit(
            request.attention, bytes_in, min(deadline, self._exchange.arrived + request.timeout_s)
        )

    def write(self, output: AttentionOutput) -> Written:
        content, length = v2.encode(self._request, output)
        media_type = b"application/json" if length is None else b"application/octet-stream"
        headers = [(b"content-type", media_type), (b"vary", b"accept-encoding")]
        if length is not None:
            headers.append((HEADER_LENGTH, str(length).encode()))
        return Written(content, headers, self._coding(content, is_binary=length is not None))

    def _coding(self, content: bytes, *, is_binary: bool) -> str:
        """Binary tensors are compressed for who asks for one coding, as `response_compression_algorithm` does.

        Float tensors hardly shrink, and HTTP libraries offer every coding they know unasked.
        """
        accepted = self._exchange.header(b"accept-encoding")
        if len(content) < WORTH_COMPRESSING or (is_binary and "," in accepted):
            return ""
        return answer_coding(accepted, CODINGS)


# ---- everything else


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


class ServerMetadata(BaseModel):
    """What serves."""

    name: str = "self-attention-service"
    version: str
    extensions: list[str] = EXTENSIONS


class TensorMetadata(BaseModel):
    """A tensor of a model."""

    name: str
    datatype: str
    shape: list[int] = Field(description="-1 where the size is not fixed. Without the first axis for one sequence.")


class ModelMetadata(BaseModel):
    """What a model takes and gives. `attn_mask` and `attn_bias` are optional."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class TensorConfig(BaseModel):
    """A tensor of a model, as model configurations describe it."""

    name: str
    data_type: str
    dims: list[int]
    optional: bool = False


class ModelConfig(BaseModel):
    """The part of a model configuration that there is something to say of."""

    name: str
    platform: str
    backend: str
    max_batch_size: int = Field(default=0, description="0: the axis of sequences is part of the shapes.")
    input: list[TensorConfig]
    output: list[TensorConfig]
    model_transaction_policy: dict[str, bool] = {"decoupled": False}
    response_cache: dict[str, bool] = {"enable": False}


class Duration(BaseModel):
    """How often, and how long in all."""

    count: int
    ns: int


class InferenceStatistics(BaseModel):
    """Requests by how they ended, and stages of the answered ones. There is no cache."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class ModelStatistics(BaseModel):
    """What became of a model's requests, from whatever endpoint, since it was loaded."""

    name: str
    version: str
    last_inference: int = Field(description="Milliseconds since 1970; 0 for never.")
    inference_count: int = Field(description="Sequences of answered requests.")
    execution_count: int = Field(description="Batches.")
    inference_stats: InferenceStatistics
    batch_stats: list[Any] = Field(default=[], description="Not kept.")


class StatisticsAnswer(BaseModel):
    """Of every model asked for."""

    model_stats: list[ModelStatistics]


class IndexedModel(BaseModel):
    """A model of the repository, or a built-in one."""

    name: str
    version: str = ""
    state: Literal["READY", "UNAVAILABLE"]
    reason: str = ""


class RepositoryChange(BaseModel):
    """What is served otherwise than before, each as `name@version`."""

    loaded: list[str]
    unloaded: list[str]


ROOT: dict[str, Any] = {"responses": {"default": {"description": "An error.", "content": ERROR}}}


def router(runtime: Runtime) -> APIRouter:
    """All of `/v2` but `infer`."""
    routes = APIRouter(prefix="/v2", tags=["open inference protocol"], **ROOT)

    def found(name: str, version: str = "") -> LoadedModel:
        return runtime.engine.catalog.layer(name_of(name, version))

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
        return StatisticsAnswer(model_stats=[statistics_of(model) for model in layers_of(runtime)])

    @routes.get("/models/{name}", summary="What a model takes and gives")
    async def model_metadata(name: str) -> ModelMetadata:
        """Names, datatypes and shapes of its tensors."""
        return metadata_of(runtime, found(name))

    @routes.get("/models/{name}/versions/{version}", summary="What a version of a model takes and gives")
    async def version_metadata(name: str, version: str) -> ModelMetadata:
        """Names, datatypes and shapes of its tensors."""
        return metadata_of(runtime, found(name, version))

    @routes.get("/models/{name}/ready", summary="Readiness of a model")
    async def model_ready(name: str) -> ModelReady:
        """200 if it is served and the service is ready."""
        check_ready(runtime)
        return ModelReady(name=found(name).entry.spec.name)

    @routes.get("/models/{name}/versions/{version}/ready", summary="Readiness of a version of a model")
    async def version_ready(name: str, version: str) -> ModelReady:
        """200 if it is served and the service is ready."""
        check_ready(runtime)
        return ModelReady(name=found(name, version).entry.spec.name)

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
        return StatisticsAnswer(model_stats=[statistics_of(found(name))])

    @routes.get("/models/{name}/versions/{version}/stats", summary="Statistics of a version of a model")
    async def version_statistics(name: str, version: str) -> StatisticsAnswer:
        """Since it was loaded."""
        return StatisticsAnswer(model_stats=[statistics_of(found(name, version))])

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
        return _changed(await runtime.loader.load(catalog, name))

    @routes.post("/repository/models/{name}/unload", summary="Unload a model", **change)
    async def repository_unload(name: str, request: Request) -> RepositoryChange:
        """As `POST /v1/models/{name}/unload`; no model depends on another. Needs an admin key."""
        catalog = runtime.changeable(request.scope["exchange"])
        check_unload(await _parameters(runtime, request))
        return _changed(await runtime.loader.unload(catalog, name))

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


def layers_of(runtime: Runtime) -> list[LoadedModel]:
    """Every served layer; encoders are not served by this protocol."""
    served = [model for versions in runtime.engine.catalog.models.values() for model in versions.values()]
    return [model for model in served if isinstance(model, LoadedModel)]


async def index_of(runtime: Runtime, *, only_ready: bool) -> list[IndexedModel]:
    """Models that are served, and unless only those are asked for what cannot be and what is not loaded."""
    catalog = runtime.engine.catalog
    index = [
        IndexedModel(name=name, version=version, state="READY")
        for name, versions in catalog.models.items()
        for version, model in versions.items()
        if isinstance(model, LoadedModel)
    ]
    if only_ready:
        return index
    for broken in catalog.broken:
        name, _, version = broken.origin.partition("/")
        index.append(IndexedModel(name=name, version=version, state="UNAVAILABLE", reason=broken.reason))
    known = {*catalog.models, *(entry.name for entry in index)}
    names = await asyncio.to_thread(runtime.loader.names)
    idle = [name for name in sorted({*names}) if name not in known]
    return index + [IndexedModel(name=name, state="UNAVAILABLE", reason="not loaded") for name in idle]


def check_load(parameters: Mapping[str, Any]) -> None:
    """Raise `UnknownField` for any parameter of a load."""
    for key in parameters:
        raise UnknownField.at(
            f"/parameters/{key[:64]}",
            "a model is loaded as its folder is, or as it is built in: neither a config nor files can be sent",
        )


def check_unload(parameters: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for parameters that an unload has not."""
    for key, value in parameters.items():
        if key != "unload_dependents":
            raise UnknownField.at(f"/parameters/{key[:64]}", "no such parameter; known is unload_dependents")
        if not isinstance(value, bool):
            raise InvalidOption.at("/parameters/unload_dependents", f"expected a boolean, got {value!r}")


def check_ready(runtime: Runtime) -> None:
    """Raise `NotReady` unless the service is ready."""
    if obstacle := runtime.obstacle():
        raise NotReady(obstacle, retry_after_s=2)


def _tensors(model: LoadedModel) -> tuple[list[TensorMetadata], list[TensorMetadata]]:
    """Inputs and outputs, for a batch of sequences."""
    spec = model.entry.spec
    heads = [spec.num_heads] if spec.num_heads > 1 else []
    shapes = {
        "outputs": [-1, -1, spec.output_dim],
        "weights": [-1, *heads, -1, -1],
        "scores": [-1, *heads, -1, -1],
        "query": [-1, *heads, -1, spec.head_dim],
        "key": [-1, *heads, -1, spec.head_dim],
        "value": [-1, *heads, -1, spec.v_dim],
        "projected": [-1, -1, spec.embed_dim],
    }
    inputs = [
        TensorMetadata(name="inputs", datatype="FP32", shape=[-1, -1, spec.embed_dim]),
        TensorMetadata(name="attn_mask", datatype="BOOL", shape=[-1, -1, -1]),
        TensorMetadata(name="attn_bias", datatype="FP32", shape=[-1, -1, -1, -1]),
    ]
    own = [name for name in ALL_TENSOR_NAMES if name in model.entry.weights.tensor_names]
    return inputs, [TensorMetadata(name=name, datatype=v2.ANSWERED, shape=shapes[name]) for name in own]


def metadata_of(runtime: Runtime, model: LoadedModel) -> ModelMetadata:
    """What a model takes and gives."""
    spec = model.entry.spec
    inputs, outputs = _tensors(model)
    versions = list(runtime.engine.catalog.models[spec.name])
    return ModelMetadata(name=spec.name, versions=versions, platform=PLATFORM, inputs=inputs, outputs=outputs)


def config_of(runtime: Runtime, model: LoadedModel) -> ModelConfig:
    """A model's configuration."""
    inputs, outputs = _tensors(model)

    def configured(tensors: list[TensorMetadata]) -> list[TensorConfig]:
        return [
            TensorConfig(
                name=tensor.name,
                data_type=f"TYPE_{tensor.datatype}",
                dims=tensor.shape,
                optional=tensor.name in ("attn_mask", "attn_bias"),
            )
            for tensor in tensors
        ]

    return ModelConfig(
        name=model.entry.spec.name,
        platform=PLATFORM,
        backend=runtime.settings.backend,
        input=configured(inputs),
        output=configured(outputs),
    )


def statistics_of(model: LoadedModel) -> ModelStatistics:
    """What became of a model's requests."""
    spec, kept = model.entry.spec, model.statistics
    nothing = Tally()

    def duration(tally: Tally) -> Duration:
        return Duration(count=tally.count, ns=tally.ns)

    return ModelStatistics(
        name=spec.name,
        version=spec.version,
        last_inference=kept.last_ms,
        inference_count=kept.inferences,
        execution_count=kept.executions,
        inference_stats=InferenceStatistics(
            success=duration(kept.success),
            fail=duration(kept.fail),
            queue=duration(kept.queue),
            compute_input=duration(kept.compute_input),
            compute_infer=duration(kept.compute_infer),
            compute_output=duration(kept.compute_output),
            cache_hit=duration(nothing),
            cache_miss=duration(nothing),
        ),
    )
