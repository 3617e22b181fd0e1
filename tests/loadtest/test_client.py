import socket
import threading
from contextlib import contextmanager

import pytest

from loadtest.client import CHUNK, Client, NoAnswer
from loadtest.wire import Service


@contextmanager
def scripted(*connections):
    """A server that answers each connection with the next list of pieces, one for each request, then closes it.

    Yields its URL and a list of what it was sent.
    """
    seen = []

    def serve():
        for pieces in connections:
            connection, _ = listener.accept()
            with connection:
                for piece in pieces:
                    seen.append(connection.recv(1 << 20))
                    connection.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
        thread.join(10)


def answer(body, *headers, status="200 OK"):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join((*lines, "\r\n")).encode() + body


def test_answers_come_one_after_the_other_on_one_connection():
    """Callers keep their connection; a new one for each request would measure connecting."""
    large = b"x" * (3 * CHUNK)
    with scripted([answer(b"one", "Retry-After: 2", status="503 No"), answer(large), answer(b"")]) as (url, seen):
        client = Client(Service(url))
        first, second, third = client.ask(b"1"), client.ask(b"2"), client.ask(b"3")
        client.close()

    assert (first.status, first.body, first.header("retry-after"), first.header("X-None")) == (503, b"one", "2", "")
    assert (second.status, second.body) == (200, large)
    assert (third.status, third.body) == (200, b"")
    assert seen == [b"1", b"2", b"3"]


def test_a_connection_that_was_closed_while_it_rested_is_made_again():
    """Servers close what rests; whoever asks seldom would see nothing but errors."""
    with scripted([answer(b"one")], [answer(b"two")]) as (url, seen):
        client = Client(Service(url))
        bodies = [client.ask(b"1").body, client.ask(b"2").body]
        client.close()

    assert bodies == [b"one", b"two"]
    assert seen == [b"1", b"2"]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "closed before there was an answer"),
        (b"HTTP/1.1 200", "closed before there was an answer"),
        (answer(b"one")[:-1], "closed in the middle of an answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "not one of HTTP/1.1 with a Content-Length"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not one of HTTP/1.1 with a Content-Length"),
        (b"x" * (1 << 17), "no answer of HTTP"),
    ],
)
def test_what_is_no_answer_is_told(sent, message):
    """It is a failure to be counted, not a crash of the load test, nor a wait without end."""
    with scripted([sent], [answer(b"two")]) as (url, _):
        client = Client(Service(url))
        with pytest.raises(NoAnswer, match=message):
            client.ask(b"1")
        assert client.ask(b"2").body == b"two"
        client.close()


def test_nobody_there_is_told():
    """The same words for every such request, so that they can be counted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(NoAnswer, match=r"^Connection refused$"):
        Client(Service(f"http://127.0.0.1:{port}")).ask(b"1")


def test_a_request_is_written_once_as_bytes():
    """Host, path and length are what HTTP/1.1 asks for; a path of the service's own comes first."""
    service = Service("http://127.0.0.1:8000/under/")

    request = service.request("POST", "/v1/attention", "name", lambda answer: None, {"Accept": "a/b"}, b"body")

    assert request.wire == (
        b"POST /under/v1/attention HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept: a/b\r\nContent-Length: 4\r\n\r\nbody"
    )
    assert (request.method, request.name, request.size) == ("POST", "name", 4)
    assert b"Content-Length" not in service.request("GET", "/", "name", lambda answer: None, {}).wire


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://127.0.0.1", "http://"])
def test_an_address_that_is_none_is_refused(url):
    """Before a thousand requests have failed by it."""
    with pytest.raises(ValueError, match=r"is no address such as http://127\.0\.0\.1:8000"):
        Service(url)
