"""The sockets a service is reached by."""

import socket

from service.errors import ConfigurationError
from service.settings import Settings

BACKLOG = 2_048
"""Connections the system holds until they are accepted."""


def bind(settings: Settings) -> socket.socket:
    """A listening socket for HTTP.

    Raises:
        ConfigurationError: if the address cannot be had.
    """
    listener = socket.socket(_family(settings), socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another with --port or PORT=…"
        ) from error
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, settings: Settings) -> str:
    """Where a listening socket is reached."""
    return f"http://{bracketed(settings.host)}:{listener.getsockname()[1]}"


def reserve(settings: Settings, port: int) -> socket.socket:
    """A socket that holds a port, 0 for a free one, without listening, for several processes to share.

    Raises:
        ConfigurationError: if it cannot be had.
    """
    try:
        with socket.socket(_family(settings), socket.SOCK_STREAM) as probe:  # one that shares would not notice others
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((settings.host, port))
            port = probe.getsockname()[1]
        held = socket.socket(_family(settings), socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((settings.host, port))
    except OSError as error:
        raise rpc_refused(settings, port) from error
    return held


def rpc_refused(settings: Settings, port: int) -> ConfigurationError:
    """The error for a port of gRPC that cannot be had."""
    where = f"{bracketed(settings.host)}:{port}"
    return ConfigurationError(f"cannot listen on {where} for gRPC; choose another with ATTENTION_GRPC_PORT")


def bracketed(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def _family(settings: Settings) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in settings.host else socket.AF_INET
