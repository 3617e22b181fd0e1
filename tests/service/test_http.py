"""HTTP/1.1 on real connections, over applications of a few lines."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from service import http
from service.http import Protocol

PLAIN = (b"content-type", b"text/plain")
GET = b"GET /a%20b?c=d HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def listening(application, protocol=Protocol):
    """A server of `application`; gives its port."""
    config = uvicorn.Config(application, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await server.wait_closed()


def exchange(application, *requests, until_closed=False, protocol=Protocol):
    """What comes back for these bytes, sent one after the other on one connection."""

    async def run():
        async with listening(application, protocol) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for request in requests:
                writer.write(request)
                await writer.drain()
                await asyncio.sleep(0.02)
            if until_closed:
                found = await reader.read()
            else:
                found = await reader.read(1 << 20)
            writer.close()
            return found

    return asyncio.run(asyncio.wait_for(run(), 20))


def answering(*bodies, status=200, headers=(PLAIN,)):
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        for i, body in enumerate(bodies):
            await send({"type": "http.response.body", "body": body, "more_body": i + 1 < len(bodies)})

    return application


async def echo(scope, receive, send):
    """Answers with what was asked, and how."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    told = {name: scope[name] for name in ("method", "path", "http_version")}
    content = json.dumps(told | {"query": scope["query_string"].decode(), "body": body.decode()}).encode()
    headers = [PLAIN, (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def told(reply):
    return json.loads(reply.partition(b"\r\n\r\n")[2])


def test_a_request_is_told_as_asgi_has_it():
    assert told(exchange(echo, GET)) == {
        "method": "GET", "path": "/a b", "http_version": "1.1", "query": "c=d", "body": "",
    }  # fmt: skip


def test_a_body_in_pieces_is_read_whole():
    head = b"POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\n"

    assert told(exchange(echo, head + b"ab", b"cd", b"ef"))["body"] == "abcdef"


def test_an_answer_of_known_length_is_sent_as_it_is():
    reply = exchange(answering(b"hello", headers=[PLAIN, (b"content-length", b"5")]), GET)

    assert reply == b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"


def test_an_answer_of_unknown_length_is_sent_in_chunks():
    reply = exchange(answering(b"hello ", b"", b"there"), GET)

    assert reply.endswith(b"transfer-encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nthere\r\n0\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_may_have_no_body_has_none(status):
    reply = exchange(answering(b"", status=status), GET)

    assert reply.endswith(b"\r\n\r\n")
    assert b"transfer-encoding" not in reply


def test_head_is_answered_without_a_body():
    application = answering(b"hello", headers=[PLAIN, (b"content-length", b"5")])

    assert exchange(application, b"HEAD / HTTP/1.1\r\n\r\n").endswith(b"content-length: 5\r\n\r\n")


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"], ids=["1.0", "close"]
)
def test_whoever_wants_the_connection_closed_is_told_so_and_it_is(request_):
    reply = exchange(answering(b"x", headers=[(b"content-length", b"1")]), request_, until_closed=True)

    assert b"\r\nconnection: close\r\n" in reply


def test_an_application_may_close_the_connection():
    headers = [(b"content-length", b"1"), (b"connection", b"close")]
    reply = exchange(answering(b"x", headers=headers), GET, until_closed=True)

    assert reply.count(b"connection: close") == 1


def test_requests_on_one_connection_are_answered_in_order():
    posts = [b"POST /%d HTTP/1.1\r\nContent-Length: 1\r\n\r\n%d" % (i, i) for i in range(4)]
    reply = exchange(echo, b"".join(posts))

    assert [part[:3] for part in reply.decode().split('"path": "')[1:]] == ['/0"', '/1"', '/2"', '/3"']


@pytest.mark.parametrize(("declared", "body"), [(b"3", b"four"), (b"5", b"four")])
def test_an_answer_of_another_length_than_it_says_is_cut_off(declared, body, caplog):
    """Its client must not wait for more, nor take the rest for the next answer."""
    exchange(answering(body, headers=[(b"content-length", declared)]), GET, until_closed=True)

    assert "than its content-length" in caplog.text


def test_a_header_cannot_hold_another(caplog):
    reply = exchange(answering(b"", headers=[(b"x-name", b"a\r\nx-evil: b")]), GET, until_closed=True)

    assert b"evil" not in reply
    assert "end of a line" in caplog.text


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_not_http_is_answered_with_a_problem(garbage):
    head, _, body = exchange(echo, garbage, until_closed=True).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head
    assert json.loads(body)["type"] == "/problems/unparsable"
    assert f"x-request-id: {json.loads(body)['instance']}".encode() in head


def test_a_client_that_does_not_finish_its_headers_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(http, "HEADER_TIMEOUT_S", 0.1)

    assert exchange(echo, b"GET / HT", until_closed=True) == b""
    assert exchange(echo, until_closed=True) == b""


def test_nor_is_one_that_says_nothing_more_for_long(monkeypatch):
    monkeypatch.setattr(http, "HEADER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 0.2)

    assert exchange(echo, GET, until_closed=True).startswith(b"HTTP/1.1 200 OK")


def test_a_request_may_take_longer_than_its_headers_may(monkeypatch):
    monkeypatch.setattr(http, "HEADER_TIMEOUT_S", 0.05)

    async def slow(scope, receive, send):
        await asyncio.sleep(0.2)
        await echo(scope, receive, send)

    async def run():
        async with listening(slow) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            found = await reader.readline()
            writer.close()
            return found

    assert asyncio.run(run()) == b"HTTP/1.1 200 OK\r\n"


def test_an_answer_leaves_with_its_head_in_one_piece():
    """Two packets would cost a system call each, here and at the client."""
    seen = []

    class Recording(Protocol):
        def connection_made(self, transport):
            real = transport.writelines

            class Transport:
                def __getattr__(self, name):
                    return getattr(transport, name)

                def writelines(self, parts):
                    seen.append(len(parts))
                    real(parts)

            super().connection_made(Transport())

    exchange(answering(b"hello", headers=[(b"content-length", b"5")]), GET, protocol=Recording)

    assert seen == [2]
