"""Sockets a service is reached by."""

import socket

import pytest

from service.errors import ConfigurationError
from service.listen import bind, bracketed, reserve, url_of
from service.settings import Settings


def test_a_free_port_is_found_and_named():
    with bind(Settings(port=0)) as listener:
        url = url_of(listener, Settings(port=0))

        assert url == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_port_in_use_is_named_with_what_to_do():
    with bind(Settings(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}: .*--port"):
            bind(Settings(port=port))


def test_a_reserved_port_can_be_listened_on_by_those_who_share_it():
    with reserve(Settings(), 0) as held, socket.socket() as sharing:
        sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sharing.bind(held.getsockname())
        sharing.listen()
        with socket.create_connection(held.getsockname(), 5):  # and whoever holds it takes no connection away
            accepted, _ = sharing.accept()
            accepted.close()


def test_a_port_that_another_service_shares_is_not_ours_to_share():
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigurationError, match="for gRPC; choose another with ATTENTION_GRPC_PORT"):
            reserve(Settings(), other.getsockname()[1])


def test_an_address_with_colons_stands_in_brackets():
    assert (bracketed("::1"), bracketed("127.0.0.1")) == ("[::1]", "127.0.0.1")
