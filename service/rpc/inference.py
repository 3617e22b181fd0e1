"""`inference.GRPCInferenceService`: each method by what serves its twin under `/v2`."""

import asyncio
import sys
from typing import Any

import grpc

from models.errors import AttentionError
from service import protocol
from service.engine import LocalEngine
from service.errors import Forbidden, NotFound, NotReady, Unauthorized
from service.exchange import Exchange, Message, Scope
from service.messages import AttentionOutput
from service.metrics import package_version
from service.routes.infer import InferCall, Understood
from service.routes.tensors import LONG_BODY, LONG_TEXT, Call, TensorEndpoint, Written
from service.rpc.calls import Calls, Read, RpcExchange, abort, details_of
from service.rpc.inference_pb2 import (
    ModelConfigRequest,
    ModelConfigResponse,
    ModelInferRequest,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelReadyRequest,
    ModelReadyResponse,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
    ModelStreamInferResponse,
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
    ServerLiveRequest,
    ServerLiveResponse,
    ServerMetadataRequest,
    ServerMetadataResponse,
    ServerReadyRequest,
    ServerReadyResponse,
)
from service.rpc.messages import decode, encode, filled, parameters_of, parsed, stream_answer
from service.statistics import Statistics

SERVICE = "inference.GRPCInferenceService"
STREAM = f"/{SERVICE}/ModelStreamInfer"


def handlers(calls: Calls) -> dict[str, Any]:
    """For each method the handler that gRPC calls."""
    methods = _Methods(calls)
    guarded = {
        "ModelReady": methods.model_ready,
        "ServerMetadata": methods.server_metadata,
        "ModelMetadata": methods.model_metadata,
        "ModelInfer": methods.infer,
        "ModelConfig": methods.model_config,
        "ModelStatistics": methods.model_statistics,
        "RepositoryIndex": methods.repository_index,
        "RepositoryModelLoad": methods.repository_load,
        "RepositoryModelUnload": methods.repository_unload,
    }
    found = {name: calls.unary(SERVICE, name, handle) for name, handle in guarded.items()}
    for name, handle in {"ServerLive": methods.server_live, "ServerReady": methods.server_ready}.items():
        found[name] = calls.unary(SERVICE, name, handle, guarded=False)
    found["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(methods.stream_infer)
    return found


class _Infer(InferCall):
    """Of one request: which model is asked for stands in the message."""

    codings = ()

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine)
        self._message: ModelInferRequest | None = None
        self._statistics: Statistics | None = None

    def statistics(self) -> Statistics | None:
        return self._statistics

    def is_long(self, body: bytes) -> bool:
        if not LONG_TEXT <= len(body) < LONG_BODY:  # then it does not depend on the model
            return len(body) >= LONG_BODY
        _, name = self._begin(body)
        return len(body) >= self.long_from(name)

    def read(self, body: bytes) -> Understood:
        message, name = self._begin(body)
        return self.understood(decode(message, name, self.layers_of(name)))

    def _begin(self, body: bytes) -> tuple[ModelInferRequest, str]:
        """The message, and the model that it asks for, whose statistics it counts in from now on."""
        if self._message is None:
            self._message = parsed(ModelInferRequest, body)
        name = protocol.name_of(self._message.model_name, self._message.model_version)
        if self._statistics is None:
            self._statistics = self._engine.statistics(name)
        return self._message, name

    def write(self, request: Understood, output: AttentionOutput) -> Written:
        return Written(encode(request.asked, output), [])


class _Endpoint(TensorEndpoint):
    most_sent = sys.maxsize  # gRPC takes a message whole

    def call(self, exchange: Exchange, scope: Scope, engine: LocalEngine) -> Call:
        return _Infer(engine)


class _Methods:
    def __init__(self, calls: Calls) -> None:
        self._calls, self._runtime = calls, calls.runtime
        self._endpoint = _Endpoint(calls.runtime)

    async def infer(self, exchange: RpcExchange, read: Read) -> bytes:
        """Through the pipeline of tensors, of which gRPC is one more ASGI server."""
        come = False
        start: Message = {}
        answer = b""

        async def receive() -> Message:
            nonlocal come
            if come:
                await asyncio.get_running_loop().create_future()  # a client that leaves cancels this task
            come = True
            return {"type": "http.request", "body": await read()}

        async def send(message: Message) -> None:
            nonlocal start, answer
            if message["type"] == "http.response.start":
                start = message
            else:
                answer = message["body"]

        await self._endpoint(exchange, {}, receive, send)
        timing = dict(start["headers"])[b"server-timing"]
        exchange.trailing.append(("server-timing", timing.decode()))
        return answer

    async def stream_infer(self, _: Any, context: Any) -> None:
        """Requests of a stream one after the other, each counted by itself."""
        while True:
            try:
                read = await self._calls.next(context)
            except AttentionError as error:
                await abort(context, RpcExchange(context, STREAM), error)
            if read is None:
                return
            exchange = RpcExchange(context, STREAM)
            answer = await self._calls.attempt(exchange, context, self.infer, read, guarded=True)
            if isinstance(answer, (Unauthorized, Forbidden)):  # so would be all others of the stream
                await abort(context, exchange, answer)
            if isinstance(answer, AttentionError):
                await context.write(ModelStreamInferResponse(error_message=details_of(answer)).SerializeToString())
            else:
                await context.write(stream_answer(answer))

    async def server_live(self, _: RpcExchange, read: Read) -> ServerLiveResponse:
        parsed(ServerLiveRequest, await read())
        return ServerLiveResponse(live=True)

    async def server_ready(self, _: RpcExchange, read: Read) -> ServerReadyResponse:
        parsed(ServerReadyRequest, await read())
        return ServerReadyResponse(ready=not self._runtime.obstacle())

    async def model_ready(self, _: RpcExchange, read: Read) -> ModelReadyResponse:
        request = parsed(ModelReadyRequest, await read())
        try:
            protocol.check_ready(self._runtime)
            self._served(request)
        except (NotReady, NotFound):
            return ModelReadyResponse(ready=False)
        return ModelReadyResponse(ready=True)

    async def server_metadata(self, _: RpcExchange, read: Read) -> ServerMetadataResponse:
        parsed(ServerMetadataRequest, await read())
        found = protocol.ServerMetadata(version=package_version())
        return filled(ServerMetadataResponse(), found)

    async def model_metadata(self, _: RpcExchange, read: Read) -> ModelMetadataResponse:
        model = self._served(parsed(ModelMetadataRequest, await read()))
        return filled(ModelMetadataResponse(), protocol.metadata_of(model))

    async def model_config(self, _: RpcExchange, read: Read) -> ModelConfigResponse:
        model = self._served(parsed(ModelConfigRequest, await read()))
        answer = ModelConfigResponse()
        filled(answer.config, protocol.config_of(self._runtime, model))
        return answer

    async def model_statistics(self, _: RpcExchange, read: Read) -> ModelStatisticsResponse:
        request = parsed(ModelStatisticsRequest, await read())
        models = [self._served(request)] if request.name else protocol.all_served(self._runtime)
        found = protocol.StatisticsAnswer(
            model_stats=[await protocol.statistics_of(self._runtime, model) for model in models]
        )
        return filled(ModelStatisticsResponse(), found)

    async def repository_index(self, _: RpcExchange, read: Read) -> RepositoryIndexResponse:
        request = parsed(RepositoryIndexRequest, await read())
        answer = RepositoryIndexResponse()
        for model in await protocol.index_of(self._runtime, only_ready=request.ready):
            filled(answer.models.add(), model)
        return answer

    async def repository_load(self, exchange: RpcExchange, read: Read) -> RepositoryModelLoadResponse:
        catalog = self._runtime.changeable(exchange)
        request = parsed(RepositoryModelLoadRequest, await read())
        protocol.check_load(parameters_of(request.parameters, "/parameters"))
        await self._runtime.load(catalog, request.model_name)
        return RepositoryModelLoadResponse()

    async def repository_unload(self, exchange: RpcExchange, read: Read) -> RepositoryModelUnloadResponse:
        catalog = self._runtime.changeable(exchange)
        request = parsed(RepositoryModelUnloadRequest, await read())
        protocol.check_unload(parameters_of(request.parameters, "/parameters"))
        await self._runtime.unload(catalog, request.model_name)
        return RepositoryModelUnloadResponse()

    def _served(self, request: Any) -> protocol.Served:
        return protocol.served(self._runtime, protocol.name_of(request.name, request.version))
