"""The server: `grpc.aio` on the event loop of everything else."""

import logging

import grpc

from service.listen import bracketed, rpc_refused
from service.rpc import health, inference
from service.rpc.calls import Calls
from service.runtime import Runtime
from service.settings import MIB, Settings

STOP_S = 1.0
"""Longest wait for answers to be written once everything has been computed."""


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a log line of gRPC's says more than that a client left, or refused an answer, while that was sent."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core by servicer method")


class RpcServer:
    """Listens from `start` to `stop`.

    Attributes:
        address: where, as clients take it.
    """

    def __init__(self, settings: Settings, runtime: Runtime, port: int, *, shared: bool = False) -> None:
        """Serve with the parts of `runtime` on a port, 0 for a free one, perhaps `shared` by several processes.

        Raises:
            ConfigurationError: if the address cannot be had.
        """
        self._calls = Calls(runtime)
        options = [
            ("grpc.max_receive_message_length", settings.max_body_mib * MIB),
            ("grpc.max_send_message_length", -1),
            ("grpc.per_message_decompression", 0),  # gRPC's own has no limit; see `Calls.read`
            ("grpc.so_reuseport", int(shared)),  # two services on one port would share its calls
        ]
        self._server = grpc.aio.server(options=options)
        for name, handlers in (
            (inference.SERVICE, inference.handlers(self._calls)),
            (health.SERVICE, health.handlers(self._calls)),
        ):
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
        host = bracketed(settings.host)
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise rpc_refused(settings, port) from error
        self.address = f"{host}:{bound}"

    async def start(self) -> None:
        """Listen; what is asked before the models are loaded is told so."""
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)
        await self._server.start()

    async def stop(self) -> None:
        """Close, once what was accepted has been answered."""
        self._calls.stop()
        await self._server.stop(STOP_S)
