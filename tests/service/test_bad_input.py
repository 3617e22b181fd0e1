"""Hostile requests, over a raw socket: never a 500, never a hang, and never a wrong answer to the next caller."""

import contextlib
import gzip
import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zstandard
from serving import Server
from wire import JSON, NPY, PROBLEM, SAFETENSORS, attend, call, npy, npy_of, safetensors_file, safetensors_of

pytestmark = pytest.mark.server

GOOD = {"model": "lesson", "inputs": [[1, 0, 0, 0, 0.5], [0, 1, 0.25, 0, 0.5]]}
TEXT = json.dumps(GOOD).encode()
CLOSED = None
"""The connection is closed without an answer: there was no request to answer."""


def post(body: bytes = TEXT, *headers: str, path: str = "/v1/attention", length: str | None = None) -> bytes:
    """A request of the right form, with any headers."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body) if length is None else length}", *headers]
    if not any(header.lower().startswith("content-type:") for header in headers):
        lines.append(f"Content-Type: {JSON}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chunked(*parts: bytes) -> bytes:
    """A request with these bytes after its headers, said to be chunked."""
    head = f"POST /v1/attention HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"".join(parts)


def get(target: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/{version}", *headers]).encode("latin-1") + b"\r\n\r\n"


def ask(server: Server, sent: bytes, *, ends: bool = False) -> tuple[int | None, dict[str, str], bytes]:
    """Send bytes, and read one answer, or the end of the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=15) as connection:
        with contextlib.suppress(ConnectionError):  # the server may have answered and closed already
            connection.sendall(sent)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as file:
            try:
                first = file.readline()
            except ConnectionError:
                first = b""
            if not first:
                return CLOSED, {}, b""
            headers: dict[str, str] = {}
            while line := file.readline().strip():
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            return int(first.split()[1]), headers, file.read(int(headers.get("content-length", 0)))


BROKEN_HTTP: list[tuple[str, bytes, int | None]] = [
    ("noise", bytes(range(256)) * 8, 400),
    ("zeros", bytes(5_000), 400),
    ("a TLS hello", bytes.fromhex("16030100c5010000c10303") + bytes(190), 400),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n", 400),
    ("an unknown method", get("/", method="BREW"), 400),
    ("a method in small letters", get("/", method="get"), 400),
    ("a method of megabytes", b"A" * 2_000_000, 400),
    ("a version of the future", get("/", version="9.9"), 400),
    ("no version number", b"GET / HTTP/x\r\n\r\n", 400),
    ("a header without a colon", get("/", "Host: x", "nonsense"), 400),
    ("a space before the colon", get("/", "Host : x"), 400),
    ("a zero byte in a header", get("/", "Host: x", "X-A: a\0b"), 400),
    ("a header name of nothing", get("/", ": x"), 400),
    ("a length that is no number", post(length="ten"), 400),
    ("a negative length", post(length="-1"), 400),
    ("a length with a sign", post(length="+5"), 400),
    ("a length beyond 64 bits", post(length="9" * 30), 400),
    ("two lengths that differ", post(TEXT, "Content-Length: 3"), 400),
    ("length and chunks at once", post(TEXT, "Transfer-Encoding: chunked"), 400),
    ("a chunk size that is no number", chunked(b"zz\r\nabc\r\n0\r\n\r\n"), 400),
    ("a negative chunk size", chunked(b"-1\r\n"), 400),
    ("a chunk size beyond 64 bits", chunked(b"f" * 17 + b"\r\n"), 400),
    ("a chunk longer than it says", chunked(b"2\r\n{}}\r\n0\r\n\r\n"), 400),
    ("CONNECT", get("example.org:443", method="CONNECT"), 400),
]

CUT_OFF: list[tuple[str, bytes]] = [
    ("nothing at all", b""),
    ("half a request line", b"POST /v1/at"),
    ("half the headers", b"POST /v1/attention HTTP/1.1\r\nContent-Le"),
    ("no body", post(b"", length="10")),
    ("half a body", post(TEXT[:20], length=str(len(TEXT)))),
    ("half a chunk", chunked(b"20\r\n{")),
    ("no last chunk", chunked(b"2\r\n{}\r\n")),
    ("half a binary body", post(npy(np.ones((9, 5), np.float32))[:140], f"Content-Type: {NPY}", length="308")),
]

DEEP = b'{"inputs": ' + b"[" * 50_000
BOMB = gzip.compress(bytes(200 << 20), 9)
ZBOMB = zstandard.ZstdCompressor(level=1).compress(bytes(200 << 20))

UNWISE: list[tuple[str, bytes, int]] = [
    # odd, but HTTP
    ("a star as the target", get("*", "Host: x", method="OPTIONS"), 404),
    ("an absolute target", get("http://evil.example/healthz/live", "Host: x"), 200),
    ("HTTP/1.0 without a host", get("/healthz/live", version="1.0"), 200),
    ("no host", get("/healthz/live"), 200),
    ("an upgrade to a web socket", get("/v1/models", "Host: x", "Connection: Upgrade", "Upgrade: websocket"), 200),
    ("an upgrade to HTTP/2", get("/healthz/live", "Host: x", "Connection: Upgrade", "Upgrade: h2c"), 200),
    ("an expectation that nobody has", post(TEXT, "Expect: 200-ok"), 200),
    ("a trailer", chunked(b"%x\r\n" % len(TEXT), TEXT, b"\r\n0\r\nX-A: b\r\n\r\n"), 200),
    ("chunk extensions", chunked(b"%x;a=b\r\n" % len(TEXT), TEXT, b"\r\n0\r\n\r\n"), 200),
    ("a thousand headers", get("/healthz/live", *(f"X-{i}: {i}" for i in range(1000))), 200),
    ("a header of 32 KB", get("/healthz/live", f"X-A: {'a' * 32_000}"), 200),
    ("a path of 32 KB", get("/" + "a" * 32_000), 404),
    ("a path with a zero", get("/%00"), 404),
    ("a path that is not UTF-8", get("/v1/models/%ff%fe"), 404),
    ("a path out of the folder", get("/static/../../pyproject.toml"), 404),
    ("a path out of the folder, escaped", get("/static/%2e%2e/%2e%2e/pyproject.toml"), 404),
    ("a path to a device", get("/static//dev/zero"), 404),
    ("a model that is a path", get("/v1/models/..%2f..%2fetc%2fpasswd"), 404),
    ("a model that is markup", get("/v1/models/<script>alert(1)</script>"), 404),
    ("a redirect to elsewhere", get("//evil.example/%2e%2e"), 404),
    ("a query of noise", get("/v1/models?" + "&" * 30_000), 200),
    # headers of the request
    ("two content types", post(TEXT, f"Content-Type: {JSON}", "Content-Type: text/plain"), 415),
    ("a content type of megabytes", post(TEXT, f"Content-Type: {'a' * 60_000}"), 415),
    ("a content type that is not text", post(TEXT, "Content-Type: \xff\xfe"), 415),
    ("an accept of 10,000 ranges", post(TEXT, "Accept: " + "a/b;q=0.1," * 6_000), 406),
    ("a quality that is no number", post(TEXT, "Accept: */*;q=1e999"), 200),
    ("a quality of NaN", post(TEXT, "Accept: application/json;q=nan"), 200),
    ("an accept that is not text", post(TEXT, "Accept: \xff"), 406),
    ("a deadline of zero", post(TEXT, "X-Request-Timeout-Ms: 0"), 422),
    ("a deadline in the past", post(TEXT, "X-Request-Timeout-Ms: -5"), 422),
    ("a deadline of digits that are none", post(TEXT, "X-Request-Timeout-Ms: \xb2"), 422),
    ("a deadline beyond all numbers", post(TEXT, f"X-Request-Timeout-Ms: {'9' * 5000}"), 422),
    ("an id with control characters", post(TEXT, "X-Request-Id: a\tb"), 200),
    ("an id of 10,000 characters", post(TEXT, f"X-Request-Id: {'a' * 10_000}"), 200),
    ("an origin that is not one", post(TEXT, "Origin: null"), 200),
    ("a coding that is not one", post(TEXT, "Content-Encoding: gzip, gzip, gzip"), 415),
    ("a coding that it is not", post(TEXT, "Content-Encoding: gzip"), 400),
    ("gzip cut off", post(gzip.compress(TEXT)[:-9], "Content-Encoding: gzip"), 400),
    ("gzip with a wrong sum", post(gzip.compress(TEXT)[:-8] + bytes(8), "Content-Encoding: gzip"), 400),
    ("zstd cut off", post(zstandard.compress(TEXT)[:-5], "Content-Encoding: zstd"), 400),
    ("a gzip bomb", post(BOMB, "Content-Encoding: gzip"), 413),
    ("a zstd bomb", post(ZBOMB, "Content-Encoding: zstd"), 413),
    ("a bomb in a bomb", post(gzip.compress(BOMB), "Content-Encoding: gzip"), 400),
    ("answers in a coding of megabytes", post(TEXT, "Accept-Encoding: " + "x," * 20_000), 200),
    # query strings
    ("a query that is not UTF-8", post(path="/v1/attention?model=%ff"), 400),
    ("a query without values", post(path="/v1/attention?a&b"), 400),
    ("a query of one name 10,000 times", post(path="/v1/attention?" + "&".join(["top_k=1"] * 8_000)), 200),
    ("a query of 5,000 names", post(path="/v1/attention?" + "&".join(f"n{i}=1" for i in range(5_000))), 422),
    ("a query of 10,000 tensors", post(path="/v1/attention?return=" + "key," * 10_000 + "key"), 422),
    ("a number of 60,000 digits", post(path="/v1/attention?top_k=" + "1" * 60_000), 422),
    ("a scale of infinity", post(path="/v1/attention?scale=1e999"), 422),
    ("a scale that overflows", post(path="/v1/attention?scale=1e300"), 422),
    ("a k beyond all numbers", post(path="/v1/attention?top_k=" + "9" * 30), 200),
    # bodies
    ("an empty body", post(b""), 400),
    ("zeros for JSON", post(bytes(10_000)), 400),
    ("UTF-16", post(TEXT.decode().encode("utf-16")), 400),
    ("arrays without end", post(DEEP), 400),
    ("objects without end", post(b'{"a":' * 50_000), 400),
    ("an integer of 100,000 digits", post(b'{"inputs": [[1' + b"0" * 100_000 + b"]]}"), 400),
    ("an integer of 1,000 digits", post(b'{"inputs": [[1' + b"0" * 1_000 + b"]]}"), 422),
    ("half a character for a name", post(b'{"inputs": [[1]], "\\ud800": 1}'), 422),
    ("half a character for a model", post(b'{"inputs": [[1]], "model": "\\udfff"}'), 404),
    ("a name of a megabyte", post(b'{"inputs": [[1]], "' + b"a" * 1_000_000 + b'": 1}'), 422),
    ("a model of a megabyte", post(b'{"inputs": [[1]], "model": "' + b"a" * 1_000_000 + b'"}'), 404),
    ("200,000 names", post(b"{" + b",".join(b'"%d":1' % i for i in range(200_000)) + b"}"), 422),
    ("300,000 tensors to return", post(b'{"inputs": [[1]], "return": [' + b'"x",' * 300_000 + b'"x"]}'), 422),
    ("200,000 sequences", post(b'{"inputs": [' + b"[[0]]," * 200_000 + b"[[0]]]}"), 413),
    ("200,000 nulls for masks", post(b'{"inputs": [[[0]]], "attn_mask": [' + b"null," * 200_000 + b"null]}"), 413),
    ("200,000 rows of nothing", post(b'{"inputs": [' + b"[]," * 200_000 + b"[]]}"), 422),
    ("a tensor of 100 axes", post(json.dumps({"inputs": {"shape": [1] * 100, "dtype": "float32", "data": "AAAAAA=="}})
                                  .encode()), 422),
    ("a tensor of no elements but many", post(json.dumps({"inputs": {"shape": [0, 2**39, 2**39], "dtype": "float32",
                                                                    "data": ""}}).encode()), 422),
    ("finite numbers that overflow", post(json.dumps(GOOD | {"inputs": [[3e38] * 5] * 3}).encode()), 422),
    ("a bias that hides everything", post(json.dumps(GOOD | {"attn_bias": [[-3e38, -3e38]] * 2}).encode()), 200),
    ("a mask that hides everything", post(json.dumps(GOOD | {"attn_mask": [[False, False]] * 2}).encode()), 200),
    # binary bodies
    ("a header of 2^63 bytes", post(struct.pack("<Q", 2**63) + b"{}", f"Content-Type: {SAFETENSORS}"), 400),
    ("a header that is a list", post(safetensors_of([]), f"Content-Type: {SAFETENSORS}"), 400),
    ("a dtype that is a list", post(safetensors_of({"inputs": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}},
                                                  bytes(4)), f"Content-Type: {SAFETENSORS}"), 422),
    ("a mask without axes", post(safetensors_file({"inputs": np.ones((1, 1, 64)), "attn_mask": np.ones((), bool)}),
                                 f"Content-Type: {SAFETENSORS}"), 422),
    ("a pickle", post(b"\x80\x04cos\nsystem\n(S'true'\ntR.", f"Content-Type: {NPY}"), 400),
    ("an .npy header cut off", post(npy_of("{'descr': ("), f"Content-Type: {NPY}"), 400),
    ("an .npy of 4,000 axes", post(npy_of(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1,' * 4_000})}}",
                                          bytes(4)), f"Content-Type: {NPY}"), 422),
    ("an .npy of 200,000 sequences", post(npy(np.zeros((200_000, 1, 1), np.float16)), f"Content-Type: {NPY}"), 413),
    ("an .npy of NaN", post(npy(np.full((3, 64), np.nan)), f"Content-Type: {NPY}"), 422),
]  # fmt: skip


@pytest.fixture(scope="module")
def right(server: Server) -> bytes:
    """The answer to the good request, before anything bad has happened."""
    return attend(server.url, GOOD).body


@pytest.fixture(autouse=True)
def unharmed(server: Server, right: bytes) -> Any:
    """After each bad request the good one has its answer, bit by bit."""
    yield
    started = time.monotonic()
    assert attend(server.url, GOOD).body == right
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(("sent", "status"), [case[1:] for case in BROKEN_HTTP], ids=[case[0] for case in BROKEN_HTTP])
def test_what_is_not_http_is_refused_and_closed(server: Server, sent: bytes, status: int | None):
    """A 400 where an answer can be read, and the end of the connection: nobody knows where the next request begins."""
    found, headers, _ = ask(server, sent)

    assert found == status
    assert headers["connection"] == "close"


@pytest.mark.parametrize("sent", [case[1] for case in CUT_OFF], ids=[case[0] for case in CUT_OFF])
def test_a_request_that_ends_too_soon_is_let_go(server: Server, sent: bytes):
    """The client is gone: nothing is answered, nothing is computed, nothing stays behind."""
    assert ask(server, sent, ends=True)[0] is CLOSED


@pytest.mark.parametrize(("sent", "status"), [case[1:] for case in UNWISE], ids=[case[0] for case in UNWISE])
def test_an_unwise_request_has_its_answer(server: Server, sent: bytes, status: int):
    """Soon, with the right status, as a problem where it is one, and of reasonable size."""
    started = time.monotonic()

    found, headers, body = ask(server, sent)

    assert found == status, body[:300]
    assert time.monotonic() - started < 5
    if status >= 400 and status != 400:
        assert headers["content-type"] == PROBLEM
        assert json.loads(body)["status"] == status
    assert len(body) < 100_000
    assert b"Traceback" not in body


def test_all_of_them_at_once_harm_nobody(server: Server, right: bytes):
    """Every bad request twice, from eight connections, good ones in between."""
    bad = [(sent, False) for _, sent, _ in (*BROKEN_HTTP, *UNWISE) if len(sent) < 500_000]
    bad += [(sent, True) for _, sent in CUT_OFF]

    def one(case: tuple[bytes, bool]) -> tuple[int | None, bytes]:
        status, _, _ = ask(server, case[0], ends=case[1])
        return status, attend(server.url, GOOD).body

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(one, bad * 2))

    assert all(body == right for _, body in found)
    assert not [status for status, _ in found if status is not None and status >= 500]


def test_clients_that_send_nothing_keep_nobody_out(server: Server, right: bytes):
    """A hundred connections with half a request each: others are served meanwhile."""
    host, port = server.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        for i in range(100):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            connection.sendall(post(TEXT[:9], length=str(len(TEXT))) if i % 2 else b"POST /v1/att")

        for _ in range(20):
            assert attend(server.url, GOOD).body == right


def test_while_a_large_wrong_body_is_read_others_are_served(server: Server, right: bytes):
    """8 MiB of numbers with a null at the end take the slow way; the event loop goes on."""
    rows = b'{"inputs": [[' + b"1," * (4 << 20) + b"null]]}"

    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(call, server.url, "POST", "/v1/attention", rows, {"Content-Type": JSON})
        waits = []
        while not slow.done():
            started = time.monotonic()
            assert attend(server.url, GOOD).body == right
            waits.append(time.monotonic() - started)

    assert slow.result().status == 422
    assert slow.result().json()["errors"][0]["pointer"] == f"/inputs/0/{4 << 20}"
    assert len(waits) > 3


def test_nothing_was_counted_as_a_fault_of_the_service(server: Server):
    """After all of the above, on this server: not one 500."""
    metrics = call(server.url, "GET", "/metrics").body.decode().splitlines()

    assert not [line for line in metrics if line.startswith("attention_requests_total") and 'outcome="failed"' in line]
    assert "attention_requests_in_progress 1.0" in metrics
