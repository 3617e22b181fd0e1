"""`grpc.health.v1.Health`, gRPC's own readiness, as load balancers and probes ask for it. It never needs a key."""

from typing import Any

import grpc

from models.errors import AttentionError
from service.errors import NotFound, Unavailable
from service.rpc.calls import Calls, Read, RpcExchange, abort
from service.rpc.health_pb2 import HealthCheckRequest, HealthCheckResponse
from service.rpc.inference import SERVICE as INFERENCE
from service.rpc.messages import parsed

SERVICE = "grpc.health.v1.Health"
KNOWN = ("", INFERENCE, SERVICE)
"""Services that may be asked about; the empty name stands for all."""

LOOK_EVERY_S = 0.25
"""How often a watcher's answer is looked at again: readiness depends on clocks too, so nothing calls back."""


def handlers(calls: Calls) -> dict[str, Any]:
    """For each method the handler that gRPC calls."""
    methods = _Methods(calls)
    return {
        "Check": calls.unary(SERVICE, "Check", methods.check, guarded=False),
        "Watch": grpc.stream_stream_rpc_method_handler(methods.watch),
    }


class _Methods:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def check(self, _: RpcExchange, read: Read) -> HealthCheckResponse:
        request = parsed(HealthCheckRequest, await read())
        if request.service not in KNOWN:
            raise NotFound(f"there is no service {request.service!r}")
        return self._status(request.service)

    async def watch(self, _: Any, context: Any) -> None:
        """The status, and each that follows, until the service stops; not counted as a request, since it has no end."""
        exchange = RpcExchange(context, f"/{SERVICE}/Watch")
        try:
            request = parsed(HealthCheckRequest, await self._calls.read(context))
        except AttentionError as error:
            await abort(context, exchange, error)
        last = None
        while True:
            found = self._status(request.service)
            if found != last:
                await context.write(found.SerializeToString())
                last = found
            if await self._calls.stopped(within_s=LOOK_EVERY_S):
                await abort(context, exchange, Unavailable("the service has stopped"))

    def _status(self, service: str) -> HealthCheckResponse:
        if service not in KNOWN:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        ready = not self._calls.runtime.obstacle()
        return HealthCheckResponse(status=HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING)
