"""The short way answers as the ordinary way does, and takes nothing else."""

import asyncio
import contextlib
import gzip
import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import uvicorn
from uvicorn.server import ServerState
from wire import JSON, SAFETENSORS, bits, safetensors_file

from models.errors import NumericOverflow
from models.repository import EncoderEntry, write
from service import shortcut
from service.app import Service, create_app
from service.batcher import HERE_S, Batcher
from service.codecs import DECODERS, ENCODERS, cut_json, long_json
from service.errors import QueueFull
from service.http import Protocol
from service.lane import Lane
from service.routes.tensors import LONG_TEXT
from service.settings import Settings
from service.shortcut import MOST_BODY, MOST_HEADS, MOST_SEEN, Shortcut, without_length
from service.slots import ThreadSlots
from tests.encoders import draw_weights, make_spec, word_pieces

X = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
ROWS = json.dumps({"inputs": X.tolist()}).encode()
TENSORS = safetensors_file({"inputs": X})
V2_JSON = json.dumps({"inputs": [{"name": "inputs", "shape": [3, 5], "datatype": "FP32", "data": X.ravel().tolist()}]})
V2_HEAD = json.dumps({
    "inputs": [{"name": "inputs", "shape": [3, 5], "datatype": "FP32", "parameters": {"binary_data_size": 60}}],
    "parameters": {"binary_data_output": True},
}).encode()  # fmt: skip
LESSON = "/v1/attention?model=lesson"


def request(path: str, body: bytes, line: str = "POST {path} HTTP/1.1", **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    head = [line.format(path=path), "Host: x", *(f"{name}: {value}" for name, value in named.items())]
    if not {"Transfer-Encoding", "Content-Length"} & named.keys():
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


def infer(model: str, *tensors: tuple[str, str, list[int], list[Any]], size: int = 0, **fields: Any) -> bytes:
    """A request of the Open Inference Protocol, all JSON, of `size` bytes if it has less."""
    inputs = [dict(zip(("name", "datatype", "shape", "data"), tensor, strict=True)) for tensor in tensors]
    return request(f"/v2/models/{model}/infer", json.dumps({"inputs": inputs, **fields}).encode().ljust(size))


PLAIN = request(LESSON, ROWS, Content_Type=JSON)
V2_X = ("inputs", "FP32", [3, 5], X.ravel().tolist())
V2_TWO = ("inputs", "FP32", [2, 3, 5], [*X.ravel().tolist(), *X.ravel().tolist()])
V2_TEXT = ("text", "BYTES", [2], ["the cat sat", "cats"])
V2_OWN = [(f"projections.{name}", "FP32", [5, 2], X.ravel().tolist()[:10]) for name in ("query", "key", "value")]
SPARSE = [{"name": "weights.values"}, {"name": "weights.indices", "parameters": {"binary_data": True}}]

KINDS = {
    "json": PLAIN,
    "no content type": request(LESSON, ROWS),
    "json, compressed": request(
        LESSON + "&return=outputs,weights,scores,query,key,value", ROWS, Accept_Encoding="gzip"
    ),
    "safetensors": request(LESSON, TENSORS, Content_Type=SAFETENSORS),
    "json to safetensors": request(LESSON, ROWS, Accept=SAFETENSORS),
    "a request id": request(LESSON, ROWS, X_Request_Id="mine"),
    "a deadline": request(LESSON, ROWS, X_Request_Timeout_Ms="20000"),
    "float16": request(LESSON + "&dtype=float16&return=weights", TENSORS, Content_Type=SAFETENSORS),
    "v2": request("/v2/models/lesson/infer", V2_JSON.encode()),
    "v2, binary": request(
        "/v2/models/lesson/versions/1/infer", V2_HEAD + bits(X), Inference_Header_Content_Length=str(len(V2_HEAD))
    ),
    "v2, sparse": infer("lesson", V2_X, outputs=SPARSE, parameters={"top_k": 2}),
    "v2, of different lengths": infer("lesson", V2_TWO, ("lengths", "INT64", [2], [3, 1])),
    "v2, one that is padded": infer("lesson", ("inputs", "FP32", [1, 3, 5], V2_X[3]), ("lengths", "INT64", [1], [2])),
    "v2, own matrices": infer("projections", V2_X, *V2_OWN),
    "v2, texts": infer("tiny", V2_TEXT),
    "v2, texts, binary": infer("tiny", V2_TEXT, parameters={"binary_data_output": True}),
    "text": request("/v1/text/attention?model=tiny", json.dumps({"text": "the cat"}).encode()),
}

UNUSUAL = {
    "chunked": request(LESSON, b"%x\r\n%b\r\n0\r\n\r\n" % (len(ROWS), ROWS), Transfer_Encoding="chunked"),
    "compressed": request(LESSON, gzip.compress(ROWS, mtime=0), Content_Encoding="gzip"),
    "to be closed": request(LESSON, ROWS, Connection="close"),
    "to be continued": request(LESSON, ROWS, Expect="100-continue"),
    "HTTP/1.0": request(LESSON, ROWS, "POST {path} HTTP/1.0"),
    "another method": request(LESSON, ROWS, "PUT {path} HTTP/1.1"),
    "no tensors": request("/v1/models", b"", "GET {path} HTTP/1.1"),
    "unknown": request("/v1/nothing", ROWS),
    "a long head": request(LESSON, ROWS, X_Long="x" * 4_000),
    "a long body": request(LESSON, ROWS + b" " * MOST_BODY),
    "a long answer": request(LESSON, safetensors_file({"inputs": np.zeros((400, 5), np.float32)}),
                             Content_Type=SAFETENSORS, Accept="application/json"),
    "a long text": request("/v1/text/attention?model=tiny&layers=0", b'{"text": "the"}'.ljust(LONG_TEXT)),
    "a long text, v2": infer("tiny", V2_TEXT, size=LONG_TEXT),
}  # fmt: skip

WRONG = {
    "no JSON": request(LESSON, b"{" + b" " * 20),
    "a wrong width": request(LESSON, json.dumps({"inputs": [[1.0, 2.0]]}).encode()),
    "no such model": request("/v1/attention?model=nobody", ROWS),
    "no such model, v2": request("/v2/models/nobody/infer", V2_JSON.encode()),
    "no such option": request("/v1/attention?modell=lesson", ROWS),
    "an unknown media type": request(LESSON, ROWS, Content_Type="text/plain"),
    "no acceptable format": request(LESSON, ROWS, Accept="text/html"),
    "text for a layer": infer("lesson", V2_TEXT),
    "embeddings for an encoder": infer("tiny", V2_X),
    "a wrong length": infer("lesson", V2_TWO, ("lengths", "INT64", [2], [3, 4])),
    "a wrong deadline": request(LESSON, ROWS, X_Request_Timeout_Ms="soon"),
}


class Ordinary(Protocol):
    """A connection without the short way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shortcut = None


class Spy(Shortcut):
    """Counts what it takes."""

    taken = 0

    def take(self, *args: Any) -> Any:
        straight = super().take(*args)
        self.taken += straight is not None
        return straight


class Bench:
    """An application that has loaded, in a loop that runs when it is told to."""

    def __init__(self, runner: asyncio.Runner, app: Service) -> None:
        self.runner, self.app = runner, app
        self.renew()

    def renew(self) -> None:
        """Know no heads."""
        self.spy = Spy(self.app.runtime, self.app._raw)
        self.app.shortcut = self.spy

    def metric(self, name: str, **labels: str) -> float:
        return self.app.runtime.metrics.registry.get_sample_value(f"attention_{name}", labels) or 0

    @property
    def ended(self) -> float:
        """Requests that were counted when they ended."""
        (family,) = self.app.runtime.metrics.requests.collect()
        return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))

    @asynccontextmanager
    async def listening(self, protocol: type[Protocol] = Protocol) -> Any:
        config = uvicorn.Config(self.app, log_config=None, lifespan="off")
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1], state
        finally:
            server.close()
            for connection in list(state.connections):
                connection.transport.abort()
            await server.wait_closed()

    def replies(self, *requests: bytes, protocol: type[Protocol] = Protocol) -> list[Any]:
        """What is answered to requests on one connection, each sent when the one before is answered."""

        async def run() -> list[Any]:
            found: list[Any] = []
            async with self.listening(protocol) as (port, _):
                while len(found) < len(requests):
                    async with dialled(port) as (reader, writer):
                        for sent in requests[len(found) :]:
                            writer.write(sent)
                            found.append(await reply_of(reader))
                            if found[-1][1].get("connection") == "close":
                                break
            return found

        return self.runner.run(asyncio.wait_for(run(), 30))


@asynccontextmanager
async def dialled(port: int) -> Any:
    """A connection, closed in the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def reply_of(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    if lines[0].split()[1] == "100":
        return await reply_of(reader)
    return lines[0], headers, await reader.readexactly(int(headers["content-length"]))


def comparable(reply: Any, *, given_id: bool = False) -> Any:
    """A reply without what differs from one request to the next."""
    line, headers, body = reply
    volatile = {"server-timing"} | (set() if given_id else {"x-request-id"})
    if headers.get("content-type", "").endswith("json") and not given_id:
        body = body.replace(headers["x-request-id"].encode(), b"")
    return line, [(name, value) for name, value in headers.items() if name not in volatile], body


@pytest.fixture(scope="module")
def loaded(artifacts: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, Service]]:
    folder = tmp_path_factory.mktemp("repository")
    spec = make_spec()
    write(folder, EncoderEntry(spec, draw_weights(spec), word_pieces(), ""))
    with asyncio.Runner() as runner:
        app = create_app(Settings(artifacts=artifacts, device="cpu", model_repository=folder))

        async def start() -> None:
            app.runtime.start()
            await app.runtime.loaded()

        runner.run(start())
        yield runner, app
        runner.run(app.runtime.stop())


@pytest.fixture
def bench(loaded: Any) -> Bench:
    return Bench(*loaded)


def settled(bench: Bench) -> bool:
    """Whether all that was received has been counted, once, and nothing is held."""
    received = bench.metric("requests_received_total")
    held = [bench.metric(name) for name in ("requests_in_progress", "inflight_bytes", "inflight_tokens")]
    return received == bench.ended and held == [0, 0, 0]


# ---- what it takes


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_came_twice_is_answered_the_short_way_and_the_same(bench: Bench, kind: str):
    """Byte for byte, but for the request id and the times."""
    sent = KINDS[kind]
    (expected,) = bench.replies(sent, protocol=Ordinary)
    before = bench.metric("requests_received_total")

    found = bench.replies(*[sent] * 5)

    assert bench.spy.taken == 3, "the first is the first of its kind, and so perhaps the last; of the second is learnt"
    given_id = kind == "a request id"
    assert {comparable(reply, given_id=given_id)[0] for reply in found} == {"HTTP/1.1 200 OK"}
    for reply in found:
        assert comparable(reply, given_id=given_id) == comparable(expected, given_id=given_id)
        assert [part.split(";")[0] for part in reply[1]["server-timing"].split(", ")] == [
            "decode", "queue", "compute", "encode",
        ]  # fmt: skip
    if not given_id:
        assert len({headers["x-request-id"] for _, headers, _ in found}) == 5
    assert bench.metric("requests_received_total") == before + 5
    assert settled(bench)


def test_stages_statistics_and_durations_are_counted_as_on_the_ordinary_way(bench: Bench):
    statistics = bench.app.runtime.engine.catalog.layer("lesson").statistics

    def counts() -> list[float]:
        stages = [bench.metric("stage_duration_seconds_count", stage=stage) for stage in ("decode", "encode")]
        route = bench.metric("request_duration_seconds_count", route="/v1/attention")
        return [*stages, route, statistics.success.count, statistics.inferences]

    bench.replies(PLAIN, PLAIN)
    before = counts()
    bench.replies(*[PLAIN] * 7)

    assert bench.spy.taken == 7
    assert counts() == [count + 7 for count in before]


def test_what_comes_behind_a_request_waits_for_its_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Sent without waiting, in any pieces: the answers come in order, and none is lost."""
    bodies = [json.dumps({"inputs": (X + i).tolist()}).encode().ljust(2_000) for i in range(6)]
    sent = [request(LESSON, body) for body in bodies]
    expected = [reply[2] for reply in bench.replies(*sent, protocol=Ordinary)]
    rest = b"".join(sent[1:])

    async def run(pieces: list[bytes]) -> list[bytes]:
        taken = bench.spy.taken
        async with bench.listening() as (port, _), dialled(port) as (reader, writer):
            with monkeypatch.context() as held:
                held.setattr(Batcher, "_dispatch", lambda _: None)
                writer.write(sent[0])
                while bench.spy.taken == taken:
                    await asyncio.sleep(0.001)
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0.005)
            bench.app.runtime.engine.batcher._dispatch()  # type: ignore[attr-defined]
            return [(await reply_of(reader))[2] for _ in sent]

    bench.replies(*sent[:2])
    for size in (len(rest), len(sent[1]), 3_000, 900):
        pieces = [rest[i : i + size] for i in range(0, len(rest), size)]
        assert bench.runner.run(asyncio.wait_for(run(pieces), 30)) == expected
    assert settled(bench)


@pytest.mark.parametrize("name", ["Content-Length", "content-length"])
def test_bodies_of_different_lengths_have_one_head(bench: Bench, name: str):
    sent = [request(LESSON, ROWS.ljust(len(ROWS) + i)) for i in range(6)]
    sent = [each.replace(b"Content-Length", name.encode()) for each in sent]
    (expected,) = bench.replies(sent[0], protocol=Ordinary)

    found = bench.replies(*sent)

    assert [comparable(reply) for reply in found] == [comparable(expected)] * 6
    assert bench.spy.taken == 4
    assert settled(bench)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"A: b\r\nContent-Length: 12\r\nC: d\r\n\r\n", (b"A: b\nC: d\r\n\r\n", 12)),
        (b"A: b\r\ncontent-length: 0\r\n\r\n", (b"A: b\n\r\n", 0)),
        *((head, (head, -1)) for head in [
            b"A: b\r\nC: d\r\n\r\n",
            b"",
            b"A: b\r\nContent-Length: \r\n\r\n",
            b"A: b\r\nContent-Length: -1\r\n\r\n",
            b"A: b\r\nContent-Length: 1 2\r\n\r\n",
            b"A: b\r\nContent-Length: 1234567890\r\n\r\n",
            b"A: Content-Length: 7\r\n\r\n",
            b"A: b\r\nInference-Header-Content-Length: 7\r\n\r\n",
        ]),
    ],
)  # fmt: skip
def test_the_length_is_taken_out_of_a_head(head: bytes, expected: tuple[bytes, int]):
    assert without_length(head) == expected


# ---- long text


def in_the_lane(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Where it is noted what lanes are given from now on."""
    works: list[Any] = []
    start = Lane.start

    def noted(lane: Lane, work: Any, done: Any) -> None:
        works.append(work)
        start(lane, work, done)

    monkeypatch.setattr(Lane, "start", noted)
    return works


@pytest.fixture
def long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """All text is long."""
    monkeypatch.setattr(DECODERS[JSON], "plain_from", 1)
    monkeypatch.setattr(ENCODERS[JSON], "long_answer", 1)
    for module in (cut_json, long_json):
        monkeypatch.setattr(module, "LONG", 1)


@pytest.mark.parametrize(
    ("kind", "count"),
    [("json", 2), ("json, compressed", 2), ("json to safetensors", 1), ("v2", 2), ("v2, one that is padded", 2)],
)
def test_long_text_is_read_and_written_in_the_lane(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, long_text: None, kind: str, count: int
):
    sent = KINDS[kind]
    (expected,) = bench.replies(sent, protocol=Ordinary)
    bench.replies(sent, sent)
    works = in_the_lane(monkeypatch)

    found = bench.replies(sent, sent)

    assert bench.spy.taken == 2
    assert len(works) == 2 * count
    assert [comparable(reply) for reply in found] == [comparable(expected)] * 2
    assert settled(bench)


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("kind", ["no JSON", "a wrong width"])
def test_what_is_wrong_in_long_text_is_said_by_the_ordinary_way_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, long_text: None, kind: str, followed: bool
):
    """What came behind it meanwhile is answered after it, and each is counted once."""
    wrong = request(LESSON, WRONG[kind].partition(b"\r\n\r\n")[2], Content_Type=JSON)
    expected = bench.replies(wrong, PLAIN, protocol=Ordinary)[: 1 + followed]
    bench.replies(PLAIN, PLAIN)
    monkeypatch.setattr(Counting, "asked", 0)
    monkeypatch.setattr(Counting, "answered", 0)

    async def run() -> list[Any]:
        async with bench.listening(Counting) as (port, _), dialled(port) as (reader, writer):
            writer.write(wrong)
            if followed:
                while not bench.spy.taken:
                    await asyncio.sleep(0)
                writer.write(PLAIN)
            return [await reply_of(reader) for _ in expected]

    found = bench.runner.run(asyncio.wait_for(run(), 30))

    assert bench.spy.taken == 1, "until it was read"
    assert [comparable(reply) for reply in found] == [comparable(reply) for reply in expected]
    assert (Counting.asked, Counting.answered) == (1 + followed, 1 + followed)
    assert settled(bench)


@pytest.mark.parametrize("what", ["leaves", "stops", "stops, not plain"])
def test_who_leaves_or_stops_while_long_text_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, long_text: None, what: str
):
    """Nothing is left of a client that has gone; a server that stops answers first."""
    bench.replies(PLAIN, PLAIN)
    go_on = threading.Event()
    decode = DECODERS[JSON].decode_plain

    def held(*args: Any) -> Any:
        assert go_on.wait(20)
        return None if what.endswith("plain") else decode(*args)

    monkeypatch.setattr(DECODERS[JSON], "decode_plain", held)

    async def run() -> Any:
        async with bench.listening() as (port, state), dialled(port) as (reader, writer):
            writer.write(PLAIN)
            while not bench.spy.taken:
                await asyncio.sleep(0.001)
            (connection,) = state.connections
            if what == "leaves":
                writer.close()
                while state.connections:
                    await asyncio.sleep(0.001)
                go_on.set()
                await bench.app.runtime.intake.lane.run(lambda: None)
                return None
            connection.shutdown()
            go_on.set()
            return await reply_of(reader), await reader.read()

    found = bench.runner.run(asyncio.wait_for(run(), 30))

    if found is not None:
        (line, headers, _), rest = found
        assert (line, headers["connection"], rest) == ("HTTP/1.1 200 OK", "close", b"")
    assert settled(bench)


@pytest.mark.parametrize(
    ("fault", "status"), [(NumericOverflow("too large"), 422), (RuntimeError("unforeseen"), 500)], ids=["known", "not"]
)
def test_what_goes_wrong_in_the_lane_is_answered_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, long_text: None, fault: Exception, status: int
):
    bench.replies(PLAIN, PLAIN)

    def broken(*_: Any) -> Any:
        raise fault

    monkeypatch.setattr(ENCODERS[JSON], "pieces", broken)
    (expected,) = bench.replies(PLAIN, protocol=Ordinary)
    (found,) = bench.replies(PLAIN)

    assert bench.spy.taken == 1
    assert comparable(found) == comparable(expected)
    assert f" {status} " in found[0]
    assert settled(bench)


# ---- what it leaves to the ordinary way


@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_unusual_takes_the_ordinary_way(bench: Bench, kind: str):
    sent = UNUSUAL[kind]
    (expected,) = bench.replies(sent, protocol=Ordinary)

    found = bench.replies(*[sent] * 4)

    assert bench.spy.taken == 0
    assert [comparable(reply) for reply in found] == [comparable(expected)] * 4
    assert settled(bench)


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_said_by_the_ordinary_way(bench: Bench, kind: str):
    """And counted once."""
    sent = WRONG[kind]
    (expected,) = bench.replies(sent, protocol=Ordinary)

    found = bench.replies(*[sent] * 4)

    assert bench.spy.taken == 0
    assert int(expected[0].split()[1]) >= 400
    assert [comparable(reply) for reply in found] == [comparable(expected)] * 4
    assert settled(bench)


# ---- bodies that come in pieces


class Counting(Protocol):
    """A connection that counts what workers are told of."""

    asked = answered = 0

    def on_asked(self) -> None:
        super().on_asked()
        Counting.asked += 1

    def on_response_complete(self) -> None:
        super().on_response_complete()
        Counting.answered += 1


async def in_pieces(writer: asyncio.StreamWriter, sent: bytes, *cuts: int) -> None:
    """Send, and let the other side see each piece by itself."""
    for start, stop in zip((0, *cuts), (*cuts, len(sent)), strict=True):
        writer.write(sent[start:stop])
        await asyncio.sleep(0.02)


LONG = request(
    "/v1/attention?return=outputs&model=lesson",
    safetensors_file({"inputs": np.zeros((3_000, 5), np.float32)}),
    Content_Type=SAFETENSORS,
)
HEAD = LONG.index(b"\r\n\r\n") + 4


@pytest.mark.parametrize("cuts", [(HEAD,), (HEAD + 10,), (HEAD + 10, HEAD + 1_000), (len(LONG) - 1,)])
def test_a_body_that_comes_in_pieces_is_answered_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, ...]
):
    """It is remembered when it came so, and taken when it does; and counted once either way."""
    (expected,) = bench.replies(LONG, protocol=Ordinary)
    monkeypatch.setattr(Counting, "asked", 0)
    monkeypatch.setattr(Counting, "answered", 0)

    async def run() -> list[Any]:
        found = []
        async with bench.listening(Counting) as (port, _), dialled(port) as (reader, writer):
            for _ in range(4):
                await in_pieces(writer, LONG, *cuts)
                found.append(await reply_of(reader))
        return found

    found = bench.runner.run(asyncio.wait_for(run(), 30))

    assert [comparable(reply) for reply in found] == [comparable(expected)] * 4
    assert bench.spy.taken == 2
    assert (Counting.asked, Counting.answered) == (4, 4)
    assert settled(bench)
    assert bench.app.runtime.intake._held == 0


@pytest.mark.parametrize("how", ["late", "stopped", "with another", "wrong"])
def test_a_body_that_is_waited_for_may_yet_take_the_ordinary_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
):
    """When it does not come in time, which has its own deadline there; and then it counts as one request still."""
    bench.replies(PLAIN, PLAIN)
    monkeypatch.setattr(Counting, "asked", 0)
    if how == "late":
        monkeypatch.setattr("service.http.HEADER_TIMEOUT_S", 0.05)
    rest = {"with another": PLAIN[-10:] + PLAIN, "wrong": b"x" * 10}.get(how, PLAIN[-10:])

    async def run() -> list[Any]:
        async with bench.listening(Counting) as (port, state), dialled(port) as (reader, writer):
            await in_pieces(writer, PLAIN[:-10])
            (connection,) = state.connections
            assert connection._coming is not None
            if how == "late":
                await asyncio.sleep(0.2)
                assert connection._coming is None
                assert bench.metric("requests_in_progress") == 1
            elif how == "stopped":
                connection.shutdown()
            writer.write(rest)
            return [await reply_of(reader) for _ in range(1 + (how == "with another"))]

    found = bench.runner.run(asyncio.wait_for(run(), 30))

    assert {line for line, _, _ in found} == {"HTTP/1.1 400 Bad Request" if how == "wrong" else "HTTP/1.1 200 OK"}
    assert (found[0][1].get("connection") == "close") is (how == "stopped")
    assert bench.spy.taken == 0
    assert Counting.asked == len(found)
    assert settled(bench)
    assert bench.app.runtime.intake._held == 0


def test_who_leaves_before_the_body_has_come_leaves_nothing_behind(bench: Bench):
    bench.replies(PLAIN, PLAIN)

    async def run() -> None:
        async with bench.listening() as (port, state):
            async with dialled(port) as (_, writer):
                await in_pieces(writer, PLAIN[:-10])
                assert bench.app.runtime.intake._held == len(ROWS)
            while state.connections:
                await asyncio.sleep(0.01)

    bench.runner.run(asyncio.wait_for(run(), 30))

    assert bench.app.runtime.intake._held == 0
    assert settled(bench)


@pytest.mark.parametrize("taken", [True, False])
def test_a_long_answer_counts_until_it_has_been_taken_or_the_client_has_left(bench: Bench, taken: bool):
    rows = 300
    sent = request(LESSON, safetensors_file({"inputs": np.zeros((rows, 5), np.float32)}), Content_Type=SAFETENSORS)
    bench.replies(sent, sent)

    async def run() -> None:
        async with bench.listening() as (port, state):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                client.connect(("127.0.0.1", port))
                while not state.connections:
                    await asyncio.sleep(0.01)
                (connection,) = state.connections
                connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
                client.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(client, sent)
                while not bench.spy.taken or connection._straight is not None:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
                assert bench.metric("inflight_bytes") > rows * rows * 4
                received = 0
                while taken and received < rows * rows * 4:
                    received += len(await asyncio.get_running_loop().sock_recv(client, 1 << 16))
            while bench.metric("inflight_bytes") or state.connections:
                await asyncio.sleep(0.01)

    bench.runner.run(asyncio.wait_for(run(), 30))

    assert bench.spy.taken == 1
    assert settled(bench)


def test_keys_are_looked_at_each_time_and_rates_by_the_ordinary_way(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    access = bench.app.runtime.access
    bench.replies(PLAIN, PLAIN)
    monkeypatch.setattr(access, "_keys", ["no digest at all"])

    assert bench.replies(PLAIN)[0][0] == "HTTP/1.1 401 Unauthorized"
    monkeypatch.undo()
    monkeypatch.setattr(type(access), "limited", True)
    assert bench.replies(PLAIN)[0][0] == "HTTP/1.1 200 OK"
    assert bench.spy.taken == 0


def test_what_was_understood_of_a_head_is_not_what_its_model_was(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """A model may go, and another come under its name, while the head is remembered."""
    catalog, sent = bench.app.runtime.engine.catalog, KINDS["v2"]
    monkeypatch.setattr(catalog, "models", {**catalog.models})
    bench.replies(sent, sent)
    assert bench.replies(sent)[0][0] == "HTTP/1.1 200 OK"

    catalog.models["lesson"] = catalog.models["tiny"]
    assert bench.replies(sent)[0][0] == "HTTP/1.1 400 Bad Request"
    texts = infer("lesson", V2_TEXT)
    assert {reply[0] for reply in bench.replies(texts, texts, texts)} == {"HTTP/1.1 200 OK"}

    del catalog.models["lesson"]
    assert {reply[0] for reply in bench.replies(sent, texts)} == {"HTTP/1.1 404 Not Found"}
    assert bench.spy.taken == 4, "the first, and the texts, whose head is the same but for the length"
    assert settled(bench)


def test_who_asks_for_long_answers_is_not_read_twice_each_time(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    sent = UNUSUAL["a long answer"]
    decoder, read = DECODERS[SAFETENSORS], []
    decode = decoder.decode
    monkeypatch.setattr(decoder, "decode", lambda *args: read.append(1) or decode(*args))

    bench.replies(*[sent] * 6)

    assert len(read) == 7, "only of the first that was tried it had to be found out"


WIDE = [("inputs", "FP32", [1, 100, 5], [0.5] * 500)]


def test_a_longer_body_that_is_not_taken_does_not_keep_shorter_ones_away(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shortcut, "MOST_ANSWER", 1_000)
    long = request(LESSON, safetensors_file({"inputs": np.zeros((100, 5), np.float32)}), Content_Type=SAFETENSORS)

    assert {reply[0] for reply in bench.replies(KINDS["safetensors"], *[long] * 3, KINDS["safetensors"])} == {
        "HTTP/1.1 200 OK"
    }

    assert bench.spy.taken == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_binary_answer_may_be_compressed(bench: Bench, monkeypatch: pytest.MonkeyPatch, at_once: bool):
    """In the lane if it is long."""
    sent = infer("lesson", *WIDE, parameters={"binary_data_output": True})
    sent = sent.replace(b"Host: x", b"Host: x\r\nAccept-Encoding: gzip")
    (expected,) = bench.replies(sent, protocol=Ordinary)
    works = in_the_lane(monkeypatch)
    if not at_once:
        monkeypatch.setattr(shortcut, "SQUEEZED_HERE", 100)

    found = bench.replies(sent, sent, sent)

    assert [comparable(reply) for reply in found] == [comparable(expected)] * 3
    assert {headers["content-encoding"] for _, headers, _ in found} == {"gzip"}
    assert bench.spy.taken == 1
    assert len(works) == (0 if at_once else 1)


def test_a_draining_service_refuses_by_the_ordinary_way(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    bench.replies(PLAIN, PLAIN)
    monkeypatch.setattr(bench.app.runtime, "draining", True)

    ((line, headers, _),) = bench.replies(PLAIN)

    assert line == "HTTP/1.1 503 Service Unavailable"
    assert headers["connection"] == "close"
    assert bench.spy.taken == 0


def test_there_is_no_short_way_where_pages_of_other_origins_are_answered(settings: Settings):
    """Their answers have headers that are added to all of them."""
    assert create_app(settings.model_copy(update={"cors_origins": ("https://example.org",)})).shortcut is None


# ---- what fails on it


def test_a_request_that_the_queue_refuses_is_answered_and_counted_once(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    bench.replies(PLAIN, PLAIN)

    def full(*_: Any) -> Any:
        raise QueueFull("no room", retry_after_s=3)

    monkeypatch.setattr(Batcher, "submit", full)
    (expected,) = bench.replies(PLAIN, protocol=Ordinary)
    ((line, headers, body),) = bench.replies(PLAIN)

    assert bench.spy.taken == 1
    assert comparable((line, headers, body)) == comparable(expected)
    assert (line, headers["retry-after"]) == ("HTTP/1.1 503 Service Unavailable", "3")
    assert json.loads(body)["instance"] == headers["x-request-id"]
    assert settled(bench)


@pytest.mark.parametrize(
    ("fault", "status"), [(NumericOverflow("too large"), 422), (RuntimeError("unforeseen"), 500)], ids=["known", "not"]
)
def test_what_goes_wrong_later_is_answered_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int
):
    statistics = bench.app.runtime.engine.catalog.layer("lesson").statistics
    bench.replies(PLAIN, PLAIN)

    def broken(_: Any) -> bytes:
        raise fault

    monkeypatch.setattr(ENCODERS[JSON], "encode", broken)
    failed = statistics.fail.count
    (expected,) = bench.replies(PLAIN, protocol=Ordinary)
    found = bench.replies(PLAIN, PLAIN)

    assert bench.spy.taken == 2
    assert [comparable(reply) for reply in found] == [comparable(expected)] * 2
    assert f" {status} " in expected[0]
    assert statistics.fail.count == failed + 3
    assert settled(bench)


@pytest.mark.parametrize("together", [True, False])
def test_short_answers_of_a_batch_leave_when_all_have_been_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, together: bool
):
    """The first that leaves wakes its client, beside which the others would be written more slowly."""
    bench.replies(PLAIN, PLAIN)
    head, body = PLAIN[: -len(ROWS)], PLAIN[-len(ROWS) :]
    done: list[str] = []
    encode = ENCODERS[JSON].encode

    def written(output: Any) -> bytes:
        done.append("written")
        return encode(output)

    class Asks:
        def answer(self, status: int, headers: Any, pieces: Any) -> bool:
            done.append("sent")
            return True

    async def run() -> None:
        for _ in range(2):
            found = bench.spy.find(head)
            assert found is not None
            assert bench.spy.take(found[0], body, ("127.0.0.1", 1), Asks())
        while len(done) < 4:
            await asyncio.sleep(0)

    monkeypatch.setattr(ENCODERS[JSON], "encode", written)
    monkeypatch.setattr(ThreadSlots, "cost_s", lambda *_: HERE_S / 10)  # one batch, whatever this machine is at
    if not together:
        monkeypatch.setattr(shortcut, "TOGETHER", 0)
    bench.runner.run(asyncio.wait_for(run(), 20))

    assert done == (["written"] * 2 + ["sent"] * 2 if together else ["written", "sent"] * 2)
    assert settled(bench)


def test_a_client_that_leaves_is_counted_and_what_it_asked_for_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    bench.replies(PLAIN, PLAIN)
    labels = {"route": "/v1/attention", "method": "POST", "status": "499", "outcome": "cancelled"}
    before = bench.metric("requests_total", **labels)
    monkeypatch.setattr(ThreadSlots, "cost_s", lambda *_: math.inf)
    monkeypatch.setattr(Batcher, "_dispatch", lambda _: None)

    async def run() -> None:
        async with bench.listening() as (port, state), dialled(port) as (_, writer):
            writer.write(PLAIN)
            while not bench.spy.taken:
                await asyncio.sleep(0.01)
            writer.close()
            while state.connections or bench.metric("requests_in_progress"):
                await asyncio.sleep(0.01)

    bench.runner.run(asyncio.wait_for(run(), 20))

    assert bench.metric("requests_total", **labels) == before + 1
    assert settled(bench)


def test_a_server_that_stops_answers_first_and_says_that_it_closes(bench: Bench):
    bench.replies(PLAIN, PLAIN)

    async def run() -> Any:
        async with bench.listening() as (port, state), dialled(port) as (reader, writer):
            writer.write(PLAIN)
            while not bench.spy.taken:
                await asyncio.sleep(0)
            (connection,) = state.connections
            connection.shutdown()
            return await reply_of(reader), await reader.read()

    (line, headers, _), rest = bench.runner.run(asyncio.wait_for(run(), 20))

    assert line == "HTTP/1.1 200 OK"
    assert headers["connection"] == "close"
    assert rest == b""


# ---- what it remembers


def scope_of(path: str = "/v1/attention", **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": named, "client": None}


def test_what_is_remembered_is_bounded(bench: Bench):
    """Heads that never come again, because there is something new in each, cost no more than a number."""
    shortcut = Shortcut(bench.app.runtime, bench.app._raw)
    heads = [str(i).encode() for i in range(2 * MOST_SEEN)]
    for head in heads:
        shortcut.learn(head, scope_of(content_length="3"), 3)
    assert not any(map(shortcut.find, heads))
    assert len(shortcut._seen) <= MOST_SEEN

    for head in heads[: 3 * MOST_HEADS]:
        shortcut.learn(head, scope_of(content_length="3"), 3)
        shortcut.learn(head, scope_of(content_length="3"), 3)
    assert 0 < len(shortcut._known) <= MOST_HEADS
