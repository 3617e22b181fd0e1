"""Request bodies: how much, how long, how encoded."""

import asyncio
import contextlib
import gzip
import random
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from service.body import THREAD_FROM, Intake, answer_coding, compress
from service.errors import (
    ClientGone,
    ClientTimeout,
    DeadlineExceeded,
    QueueFull,
    TooLarge,
    Unparsable,
    UnsupportedMediaType,
)
from service.exchange import Exchange
from service.metrics import Metrics
from service.settings import MIB, Settings

LAW = hypothesis_settings(deadline=None, max_examples=150, derandomize=True)
SMALL = Settings(max_body_mib=1, max_inflight_mib=1)
FAR = float("inf")


class Sender:
    """A client that sends chunks, and then does what it is told."""

    def __init__(self, chunks: Iterable[bytes], then: str = "ends") -> None:
        self._chunks, self._then = iter(chunks), then
        self.taken = 0

    async def __call__(self) -> dict[str, Any]:
        for chunk in self._chunks:
            self.taken += 1
            return {"type": "http.request", "body": chunk, "more_body": True}
        if self._then == "leaves":
            return {"type": "http.disconnect"}
        if self._then == "stalls":
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": False}


def exchange(**headers: str) -> Exchange:
    return Exchange({"headers": [(n.replace("_", "-").encode(), v.encode()) for n, v in headers.items()]})


def read(
    chunks: Iterable[bytes], of: Exchange | None = None, intake: Intake | None = None, deadline: float = FAR
) -> bytes:
    taker = intake or Intake(SMALL, Metrics())
    return asyncio.run(taker.read(of or exchange(), Sender(chunks), deadline))


# ---- how much


@pytest.mark.parametrize("chunks", [[], [b""], [b"abc"], [b"a", b"", b"bc"], [b"x" * MIB], [b"x"] * 1000])
def test_a_body_within_the_limit_arrives_whole(chunks: list[bytes]):
    """In whatever pieces the network made of it; the limit itself is still allowed."""
    of = exchange()

    assert read(chunks, of) == b"".join(chunks)
    assert not of.close
    assert not of.unread


def test_a_content_length_over_the_limit_is_refused_before_the_body_is_read():
    """The answer goes out at once, and the connection is to be closed, as the body stays unread."""
    of, sender, metrics = exchange(content_length=str(MIB + 1)), Sender([b"x"] * 10), Metrics()

    with pytest.raises(TooLarge, match="larger than 1 MiB after decompression"):
        asyncio.run(Intake(SMALL, metrics).read(of, sender, FAR))

    assert sender.taken == 0
    assert of.close
    assert of.unread
    assert metrics.registry.get_sample_value("attention_rejected_total", {"reason": "body"}) == 1


def test_a_body_without_a_length_is_refused_at_the_first_chunk_over_the_limit():
    """Reading stops there: nobody can fill the memory by leaving out the length."""
    of, sender = exchange(), Sender([b"x" * (MIB // 4)] * 100)

    with pytest.raises(TooLarge):
        asyncio.run(Intake(SMALL, Metrics()).read(of, sender, FAR))

    assert sender.taken == 5
    assert of.close


def test_a_content_length_that_lies_does_not_lift_the_limit():
    """The server checks it too, but the limit does not rely on that."""
    with pytest.raises(TooLarge):
        read([b"x" * (2 * MIB)], exchange(content_length="10"))


@pytest.mark.parametrize("length", [{}, {"content_length": "1001"}])
def test_a_route_may_allow_less(length: dict[str, str]):
    """But never more than all routes do."""
    intake = Intake(SMALL, Metrics())

    with pytest.raises(TooLarge, match="larger than 0 KiB after decompression"):
        asyncio.run(intake.read(exchange(**length), Sender([b"x"] * 1_001), FAR, most=1_000))
    assert asyncio.run(intake.read(exchange(), Sender([b"x"] * 1_000), FAR, most=1_000)) == b"x" * 1_000
    with pytest.raises(TooLarge, match="larger than 1 MiB after decompression"):
        asyncio.run(intake.read(exchange(), Sender([b"x" * (MIB + 1)]), FAR, most=MIB * 2))


def test_bodies_being_received_share_one_allowance():
    """Many callers at once must not fill the memory either; who is refused may come again."""

    async def scenario() -> None:
        metrics = Metrics()
        intake = Intake(Settings(max_body_mib=1, max_inflight_mib=1), metrics)
        stalled, refused = exchange(), exchange()
        first = asyncio.create_task(intake.read(stalled, Sender([b"x" * (600 << 10)], then="stalls"), FAR))
        await asyncio.sleep(0)

        with pytest.raises(QueueFull, match="1 MiB of requests are being received"):
            await intake.read(refused, Sender([b"x" * (600 << 10)]), FAR)

        assert refused.close
        assert metrics.registry.get_sample_value("attention_rejected_total", {"reason": "bytes"}) == 1
        assert len(await intake.read(exchange(), Sender([b"x" * (400 << 10)]), FAR)) == 400 << 10
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(await intake.read(exchange(), Sender([b"x" * MIB]), FAR)) == MIB

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sender", "headers", "error"),
    [
        (lambda: Sender([b"x" * MIB, b"x"]), {}, TooLarge),
        (lambda: Sender([b"x" * MIB], then="leaves"), {}, ClientGone),
        (lambda: Sender([b"x" * MIB]), {"content_encoding": "gzip"}, Unparsable),
    ],
)
def test_a_body_that_fails_gives_its_share_back(sender: Callable[[], Sender], headers: dict[str, str], error: Any):
    """Else the service would refuse everybody after some failures."""

    async def scenario() -> None:
        intake = Intake(SMALL, Metrics())
        for _ in range(3):
            with pytest.raises(error):
                await intake.read(exchange(**headers), sender(), FAR)
        assert len(await intake.read(exchange(), Sender([b"x" * MIB]), FAR)) == MIB

    asyncio.run(scenario())


# ---- how long


def test_a_body_that_does_not_come_in_time_is_given_up():
    """408, and the connection is of no more use."""
    of = exchange()
    of.arrived -= 30

    with pytest.raises(ClientTimeout, match="30 s; 3 bytes did"):
        asyncio.run(Intake(SMALL, Metrics()).read(of, Sender([b"abc"], then="stalls"), FAR))

    assert of.close


def test_a_body_whose_own_deadline_passes_first_says_so():
    """504: the caller asked for it, so it is not told that it was slow."""
    of = exchange()

    with pytest.raises(DeadlineExceeded, match="3 bytes"):
        asyncio.run(Intake(SMALL, Metrics()).read(of, Sender([b"abc"], then="stalls"), time.monotonic() - 1))

    assert of.close


def test_a_body_is_waited_for_as_long_as_the_settings_say():
    """Counted from arrival, by `body_timeout_s`."""
    intake = Intake(Settings(body_timeout_s=0.02), Metrics())
    of = exchange()

    with pytest.raises(ClientTimeout, match=r"0\.02 s; 0 bytes"):
        asyncio.run(intake.read(of, Sender([], then="stalls"), FAR))

    assert time.monotonic() - of.arrived >= 0.02


def test_a_client_that_leaves_is_not_waited_for():
    """And the request is nobody's fault."""
    with pytest.raises(ClientGone):
        asyncio.run(Intake(SMALL, Metrics()).read(exchange(), Sender([b"abc"], then="leaves"), FAR))


# ---- how encoded


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data)


def zstandarded(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstandarded_without_size(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


CODERS = [("gzip", gzipped), ("zstd", zstandarded), ("zstd", zstandarded_without_size)]


@LAW
@given(st.sampled_from(CODERS), st.binary(max_size=3000), st.integers(1, 60))
def test_compressed_bodies_arrive_as_they_were(coder: Any, data: bytes, repeat: int):
    """Written by the standard library and by the reference implementation, empty ones too."""
    name, encode = coder
    body = encode(data * repeat)

    assert read([body[:7], body[7:]], exchange(content_encoding=name)) == data * repeat


@pytest.mark.parametrize(("name", "encode"), CODERS)
def test_a_long_compressed_body_is_decoded_in_a_thread_to_the_same(name: str, encode: Callable[[bytes], bytes]):
    """Bodies that hardly compress are long, and long ones take another way."""
    data = random.Random(0).randbytes(3 * THREAD_FROM)
    raw = encode(data)

    assert len(raw) >= THREAD_FROM
    assert read([raw], exchange(content_encoding=name)) == data


@pytest.mark.parametrize("coding", ["", "identity", " GZIP ", "Zstd"])
def test_codings_are_names_without_case(coding: str):
    """HTTP says so."""
    encode = {"gzip": gzipped, "zstd": zstandarded}.get(coding.strip().lower(), bytes)

    assert read([encode(b"abc")], exchange(content_encoding=coding)) == b"abc"


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "gzip, zstd", "x"])
def test_other_codings_are_refused_before_the_body_is_read(coding: str):
    """415, naming what is read."""
    sender = Sender([b"x"])

    with pytest.raises(UnsupportedMediaType, match="zstd or gzip"):
        asyncio.run(Intake(SMALL, Metrics()).read(exchange(content_encoding=coding), sender, FAR))

    assert sender.taken == 0


def gzip_bomb() -> bytes:
    """1 GiB of zeros in a megabyte: one deflated block, repeated."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = stream.compress(bytes(MIB)) + stream.flush(zlib.Z_FULL_FLUSH)
    block = stream.compress(bytes(MIB)) + stream.flush(zlib.Z_FULL_FLUSH)
    return head + block * 1023


def zstd_bomb() -> bytes:
    """1 GiB of zeros in 32 KiB: blocks that say "128 KiB of this byte"."""
    head = b"\x28\xb5\x2f\xfd" + bytes([0b00000000, 0b01101000])  # no content size, a window of 8 MiB
    block = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = ((128 << 10) << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return head + block * 8191 + last


def test_the_zstd_bomb_is_one():
    """Else the test of it would show nothing."""
    found = zstandard.ZstdDecompressor(max_window_size=8 * MIB).decompressobj()
    head = zstd_bomb()[: 6 + 4 * 64]

    assert len(found.decompress(head)) >= 56 * (128 << 10)


@pytest.mark.parametrize(("name", "bomb"), [("gzip", gzip_bomb()), ("zstd", zstd_bomb())])
@pytest.mark.parametrize("limit_mib", [1, 16])
def test_a_bomb_is_refused_once_it_passes_the_limit(name: str, bomb: bytes, limit_mib: int):
    """1 GiB out of a megabyte or less: neither the time nor the memory may be spent."""
    settings, metrics = Settings(max_body_mib=limit_mib), Metrics()
    bomb = bomb[:MIB]

    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(TooLarge):
            read([bomb], exchange(content_encoding=name), Intake(settings, metrics))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert time.perf_counter() - started < 2
    assert peak < (limit_mib + 16) * MIB
    assert metrics.registry.get_sample_value("attention_rejected_total", {"reason": "body"}) == 1


@pytest.mark.parametrize(("name", "encode"), CODERS)
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_limit_counts_bytes_after_decompression(name: str, encode: Callable[[bytes], bytes], extra: int):
    """To the byte."""
    body, of = encode(bytes(MIB + extra)), exchange(content_encoding=name)

    if extra > 0:
        with pytest.raises(TooLarge):
            read([body], of)
    else:
        assert len(read([body], of)) == MIB + extra


DAMAGED = [
    ("gzip", b"", "ends before"),
    ("gzip", b"abcdefghijklmnopqrst", "not gzip"),
    ("gzip", gzipped(b"hello")[:-1], "ends before"),
    ("gzip", gzipped(b"hello")[:12], "ends before"),
    ("gzip", gzipped(b"hello") + b"x", "bytes follow"),
    ("gzip", gzipped(b"hello") + gzipped(b"again"), "bytes follow"),
    ("gzip", gzipped(b"hello")[:-8] + b"\0\0\0\0" + gzipped(b"hello")[-4:], "not gzip"),
    ("gzip", zlib.compress(b"hello"), "not gzip"),
    ("gzip", zstandarded(b"hello"), "not gzip"),
    ("zstd", b"", "ends before"),
    ("zstd", b"\x28\xb5\x2f", "ends before"),
    ("zstd", b"abcdefgh", "not zstd"),
    ("zstd", zstandarded(b"hello")[:-1], "ends before"),
    ("zstd", zstandarded(b"hello") + b"x", "bytes follow"),
    ("zstd", zstandarded(b"hello") + zstandarded(b"again"), "bytes follow"),
    ("zstd", zstandarded(bytes(range(256)) * 40) + b"x" * 600, "bytes follow"),
    ("zstd", gzipped(b"hello"), "not zstd"),
    ("zstd", b"\x28\xb5\x2f\xfd" + bytes([0, 0b10100000]) + b"\x01\0\0", "not zstd"),  # a window of 1 GiB
]


@pytest.mark.parametrize(("name", "body", "part"), DAMAGED, ids=[f"{i}-{c[0]}-{c[2]}" for i, c in enumerate(DAMAGED)])
def test_a_body_that_is_not_in_its_coding_is_refused(name: str, body: bytes, part: str):
    """Truncated, corrupt, or with something behind it: a 400, never half a request."""
    with pytest.raises(Unparsable, match=part):
        read([body], exchange(content_encoding=name))


@hypothesis_settings(LAW, max_examples=400)
@given(st.sampled_from(CODERS), st.data())
def test_a_damaged_coding_is_never_taken_for_another_body(coder: Any, data: st.DataObject):
    """Flipped bits are refused, or do not matter; nothing but errors of ours comes out."""
    name, encode = coder
    raw = bytearray(encode(b"self-attention " * data.draw(st.integers(0, 300))))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(Unparsable, TooLarge):
        read([bytes(raw[: data.draw(st.integers(0, len(raw)))])], exchange(content_encoding=name))


# ---- answers


@pytest.mark.parametrize(
    ("accept_encoding", "coding"),
    [
        ("", ""), ("gzip", "gzip"), ("zstd", "zstd"), ("gzip, deflate, br, zstd", "zstd"), ("GZIP", "gzip"),
        ("gzip;q=0", ""), ("gzip; q=0.0, zstd;q=0.000", ""), ("zstd;q=0, gzip;q=0.1", "gzip"), ("br", ""),
        ("identity", ""), ("*", ""), ("gzip;q=1.0, *;q=0.5", "gzip"), (" gzip ,", "gzip"),
    ],
)  # fmt: skip
def test_an_answer_is_compressed_only_as_its_reader_can_read(accept_encoding: str, coding: str):
    """zstd before gzip: it is faster and smaller."""
    assert answer_coding(accept_encoding) == coding


def test_a_route_may_have_codings_of_its_own():
    """Clients of the Open Inference Protocol know gzip and deflate, whatever their HTTP library offers."""
    assert answer_coding("gzip, deflate, br, zstd", ("gzip", "deflate")) == "gzip"
    assert answer_coding("deflate, br", ("gzip", "deflate")) == "deflate"
    assert answer_coding("zstd, br", ("gzip", "deflate")) == ""


def inflate(chunks: Iterable[bytes], coding: str = "deflate") -> bytes:
    of = exchange(content_encoding=coding)
    return asyncio.run(Intake(SMALL, Metrics()).read(of, Sender(chunks), FAR, ("gzip", "deflate")))


def test_a_deflated_body_is_read_where_that_coding_is_known():
    """zlib's own format, as RFC 9110 has it, not a bare stream; the limit counts what it expands to."""
    body = b"self-attention " * 1000
    bare = zlib.compressobj(wbits=-15)

    assert inflate([zlib.compress(body)]) == body
    assert inflate([gzip.compress(body)], "gzip") == body
    with pytest.raises(TooLarge):
        inflate([zlib.compress(bytes(MIB + 1))])
    for wrong in (bare.compress(body) + bare.flush(), zlib.compress(body)[:-1], zlib.compress(body) + b"x"):
        with pytest.raises(Unparsable, match="deflate"):
            inflate([wrong])
    with pytest.raises(UnsupportedMediaType, match="gzip or deflate"):
        inflate([body], "zstd")


@pytest.mark.parametrize("size", [0, 10, THREAD_FROM - 1, THREAD_FROM, 300_000])
def test_a_compressed_answer_reads_back(size: int):
    """By the standard library and the reference implementation."""
    body = (b"0.12345678," * (size // 11 + 1))[:size]

    assert gzip.decompress(asyncio.run(compress([body], "gzip"))) == body
    assert zlib.decompress(asyncio.run(compress([body], "deflate"))) == body
    assert zstandard.ZstdDecompressor().decompress(asyncio.run(compress([body], "zstd"))) == body


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_the_same_answer_is_compressed_to_the_same_bytes(coding: str):
    """No time stamp in it: caches compare bytes."""
    assert asyncio.run(compress([b"abc" * 99], coding)) == asyncio.run(compress([b"abc" * 99], coding))
