"""Bodies in and out of the wire: limits, deadlines, content encodings."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

import zstandard
from isal import igzip, igzip_lib, isal_zlib

from service.errors import (
    ClientGone,
    ClientTimeout,
    DeadlineExceeded,
    QueueFull,
    TooLarge,
    Unparsable,
    UnsupportedMediaType,
)
from service.exchange import Exchange, Receive
from service.lane import Lane, Piece
from service.metrics import Metrics
from service.settings import MIB, Settings

IsalError: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]  # the stub calls the class an instance

CODINGS = ("zstd", "gzip")
"""Content codings read and written, the favourite first."""

WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""How zlib is told of a coding; `deflate` is zlib's own format, RFC 9110 section 8.4.1.2."""

WORTH_COMPRESSING = 1_400
"""Bytes below which an answer fits one packet anyway."""

KIB = 1 << 10

THREAD_FROM = 1 << 16
"""Bytes from which compressing takes longer than handing the work to a thread."""

JOIN_IN_THREAD_FROM = 1 << 20
"""Bytes from which Python lets go of its lock while it joins."""

CHUNK = 1 << 20

ZSTD_STEP = 256
"""Coded bytes decoded in one step: a block of 4 may hold 128 KiB, so this many never hold more than 8 MiB."""


class Intake:
    """Reads request bodies; all those being read at one time share one allowance of memory.

    Attributes:
        lane: where long bodies, those of answers too, are read and written.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Limits come from `settings`."""
        self._most = settings.max_body_mib * MIB
        self._together = settings.max_inflight_mib * MIB
        self._timeout_s = settings.body_timeout_s
        self._metrics = metrics
        self._held = 0
        self.lane = Lane()

    def has_room(self, size: int) -> bool:
        """Whether a body of so many bytes, which has come whole, may be read beside those that are being read."""
        return size <= self._most and self._held + size <= self._together

    def hold(self, size: int) -> None:
        """Count so many more bytes, or fewer, of bodies that are being received elsewhere."""
        self._held += size

    async def read(
        self,
        exchange: Exchange,
        receive: Receive,
        deadline: float,
        codings: Sequence[str] = CODINGS,
        most: int | None = None,
    ) -> bytes:
        """The whole body, decompressed.

        Args:
            exchange: the request; its headers say how long and how encoded the body is.
            receive: of the ASGI server.
            deadline: of the request, by `time.monotonic`.
            codings: those that are read.
            most: bytes after decompression, where fewer are allowed than for all bodies.

        Raises:
            TooLarge: as soon as more has come than is allowed, counted after decompression.
            UnsupportedMediaType: if the content coding is not read here.
            Unparsable: if the body is not in the coding it claims.
            ClientTimeout: if it does not come in time.
            DeadlineExceeded: if the request's own deadline passes first.
            ClientGone: if the client leaves.
            QueueFull: if too much is being read already.
        """
        coding = exchange.header(b"content-encoding").strip().lower()
        if coding not in ("", "identity", *codings):
            raise UnsupportedMediaType(f"nobody here reads the coding {coding!r}; send {' or '.join(codings)}, or none")
        most = self._most if most is None else min(most, self._most)
        length = exchange.header(b"content-length")
        if length.isdecimal() and int(length) > most:
            exchange.close = True  # the rest of the body will not be read
            raise self._too_large(most)
        raw = await self._receive(exchange, receive, deadline, most)
        if exchange.details is not None:
            exchange.details.received = len(raw)
        return await self.expanded(raw, coding, most) if coding in codings else raw

    async def expanded(self, raw: bytes, coding: str, most: int | None = None) -> bytes:
        """A body in a coding, decompressed; errors as in `read`."""
        most = self._most if most is None else most
        pieces = _unzstd(raw) if coding == "zstd" else _inflated(raw, coding)
        if len(raw) < THREAD_FROM:
            return self._expanded(pieces, most)
        return await asyncio.to_thread(self._expanded, pieces, most)

    async def _receive(self, exchange: Exchange, receive: Receive, deadline: float, most: int) -> bytes:
        give_up = min(deadline, exchange.arrived + self._timeout_s)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(give_up - time.monotonic()):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone("the client left while sending its body")
                    more = message.get("more_body", False)
                    exchange.unread = more
                    chunk: bytes = message.get("body", b"")
                    size += len(chunk)
                    self._held += len(chunk)
                    self._check(size, exchange, most)
                    chunks.append(chunk)
        except TimeoutError:
            exchange.close = True
            if give_up == deadline:
                raise DeadlineExceeded(f"the deadline passed with {size} bytes of the body received") from None
            raise ClientTimeout(f"the body did not come within {self._timeout_s:g} s; {size} bytes did") from None
        finally:
            self._held -= size
        if size < JOIN_IN_THREAD_FROM:
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return await asyncio.to_thread(b"".join, chunks)

    def _check(self, size: int, exchange: Exchange, most: int) -> None:
        if size > most:
            exchange.close = True
            raise self._too_large(most)
        if self._held > self._together:
            exchange.close = True
            self._metrics.rejected.labels("bytes").inc()
            raise QueueFull(f"more than {self._together // MIB} MiB of requests are being received")

    def _expanded(self, pieces: Iterator[bytes], most: int) -> bytes:
        """All pieces, unless they are more than is allowed: then no more are made."""
        found: list[bytes] = []
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > most:
                raise self._too_large(most)
            found.append(piece)
        return b"".join(found)

    def _too_large(self, most: int) -> TooLarge:
        self._metrics.rejected.labels("body").inc()
        if most < self._most:
            return TooLarge(f"the body is larger than {most // KIB} KiB after decompression; here none needs more")
        return TooLarge(
            f"the body is larger than {self._most // MIB} MiB after decompression; send fewer tokens at a time, or a "
            "binary format (application/x-safetensors)"
        )


def _inflated(raw: bytes, coding: str) -> Iterator[bytes]:
    """The decoded body, `CHUNK` bytes at a time."""
    stream = isal_zlib.decompressobj(wbits=WINDOW_BITS[coding])
    while not stream.eof:
        try:
            piece = stream.decompress(raw, CHUNK)
        except IsalError as error:
            raise Unparsable(f"the body is not {coding}: {error}") from error
        raw = stream.unconsumed_tail
        if piece:
            yield piece
        elif not raw and not stream.eof:
            raise Unparsable(f"the body ends before its {coding} stream does")
    if raw or stream.unused_data:
        raise Unparsable(f"bytes follow the end of the {coding} stream")


def _unzstd(raw: bytes) -> Iterator[bytes]:
    """The decoded body, what `ZSTD_STEP` coded bytes give at a time."""
    # A frame may ask for a window of gigabytes; 8 MiB is what the format's own document recommends to allow.
    stream = zstandard.ZstdDecompressor(max_window_size=8 * MIB).decompressobj()
    for start in range(0, len(raw), ZSTD_STEP):
        if stream.eof:
            raise Unparsable("bytes follow the end of the zstd frame")
        try:
            if piece := stream.decompress(raw[start : start + ZSTD_STEP]):
                yield piece
        except zstandard.ZstdError as error:
            raise Unparsable(f"the body is not zstd: {error}") from error
    if not stream.eof:
        raise Unparsable("the body ends before its zstd frame does")
    if stream.unused_data:
        raise Unparsable("bytes follow the end of the zstd frame")


def answer_coding(accept_encoding: str, codings: Sequence[str] = CODINGS) -> str:
    """The coding an answer may be compressed with: the first of `codings` that is accepted, empty for none."""
    accepted = set()
    for part in accept_encoding.lower().split(","):
        name, _, quality = part.partition(";")
        if quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            accepted.add(name.strip())
    return next((coding for coding in codings if coding in accepted), "")


async def compress(pieces: Sequence[Piece], coding: str) -> bytes:
    """A body in a coding, at the level that costs least; in a thread where it takes long."""
    if sum(map(len, pieces)) < THREAD_FROM:
        return squeezed(pieces, coding)
    return await asyncio.to_thread(squeezed, pieces, coding)


def squeezed(pieces: Sequence[Piece], coding: str) -> bytes:
    """The same, at once: for short ones."""
    return SQUEEZE[coding](b"".join(pieces))


def _gzip(body: bytes) -> bytes:
    return igzip.compress(body, compresslevel=1, mtime=0)


def _deflate(body: bytes) -> bytes:
    return isal_zlib.compress(body, 1)


def _zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(body)


SQUEEZE: dict[str, Callable[[bytes], bytes]] = {"gzip": _gzip, "deflate": _deflate, "zstd": _zstd}
