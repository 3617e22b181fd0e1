"""Frames: a head in JSON and raw arrays behind it, over a socket; arrays that are large lie in memory both ends share.

```
head bytes (4) ── body bytes (8) ── head, padded with spaces ── array, padded ── array, padded …
```

A head has what its sender says, and beside it `arrays`, dtype and shape of each; `at`, where they lie in the sender's
`Area` if they are not in the body; and `read`, how much of the receiver's area has been read so far.
"""

import asyncio
import math
import mmap
import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from models.types import Array

PREFIX = struct.Struct("!IQ")
ALIGN = 64
MOST_HEAD, MOST_BODY = 1 << 26, 1 << 36
MOST_AXES = 4
DTYPES = {kind.str: kind for kind in map(np.dtype, ("<f4", "<f2", "<i8", "<i4", "|b1", "|u1"))}

AREA = 64 << 20
"""Bytes of an area. What has no room in it goes through the socket."""

SHARED_FROM = 1 << 16
"""Bytes of arrays from which the area is faster than the socket."""

SCRATCH = 1 << 16
"""Bytes of frames that are read at once; longer ones are read to where they stay."""


class BadFrame(ValueError):
    """What came is no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A head and arrays.

    Attributes:
        place: where the sender's area may be overwritten up to, once the arrays are not needed any more; None if they
            do not lie there.
    """

    head: dict[str, Any]
    arrays: list[Array]
    place: int | None = None


class Area:
    """Memory that two processes share, which one of them writes and the other reads, round and round."""

    def __init__(self, descriptor: int | None = None, size: int = AREA) -> None:
        """Of what has been shared by its descriptor, or new."""
        self.descriptor = os.memfd_create("attention-tensors") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, size)
        self.size = os.fstat(self.descriptor).st_size
        self.bytes = np.frombuffer(mmap.mmap(self.descriptor, self.size), np.uint8)
        self.written = self.read = 0  # since the beginning, what was skipped at the area's end included

    def place(self, size: int) -> int | None:
        """Where to write so many bytes that are read later, as a count of all that was written; None for no room."""
        start = self.written
        if (left := self.size - start % self.size) < size:
            start += left
        if start + size > self.read + self.size:
            return None
        self.written = start + size
        return start

    def part(self, start: int, size: int) -> Array:
        """The bytes at a place.

        Raises:
            BadFrame: if they are not within the area.
        """
        first = start % self.size
        if start < 0 or not 0 <= size <= self.size - first:
            raise BadFrame(f"{size} bytes at {start} are not in an area of {self.size}")
        return self.bytes[first : first + size]

    def close(self) -> None:
        """Let go of the descriptor; the memory goes with the last array that lies in it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _padded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def packed(head: Mapping[str, Any], arrays: Sequence[Array] = (), area: Area | None = None) -> list[bytes | memoryview]:
    """The bytes of a frame, in pieces; of large arrays no copies but the one in `area`."""
    whole = [array if array.flags.c_contiguous else np.ascontiguousarray(array) for array in arrays]
    size = sum(_padded(array.nbytes) for array in whole)
    at = area.place(size) if area is not None and size >= SHARED_FROM else None
    said = {**head, "arrays": [(array.dtype.str, array.shape) for array in whole]} if whole else dict(head)
    if at is not None:
        said["at"] = at
    text = orjson.dumps(said)
    text += b" " * (_padded(len(text)) - len(text))
    if area is not None and at is not None:
        offset = at
        for array in whole:
            area.part(offset, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
            offset += _padded(array.nbytes)
        return [PREFIX.pack(len(text), 0) + text]
    pieces: list[bytes | memoryview] = [PREFIX.pack(len(text), size) + text]
    for array in whole:
        if array.nbytes:
            pieces += [array.reshape(-1).view(np.uint8).data, bytes(_padded(array.nbytes) - array.nbytes)]
    return pieces if size >= SCRATCH else [b"".join(pieces)]


def unpacked(text: memoryview | bytes, body: Array, area: Area | None = None) -> Frame:
    """A frame from its head and body; or its arrays lie in `area`, the sender's.

    Raises:
        BadFrame: if it is none.
    """
    try:
        head = orjson.loads(text)
        forms = head.pop("arrays", [])
        at = head.pop("at", None)
        sizes = [_size(form) for form in forms]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise BadFrame(f"a head that cannot be read: {error}") from error
    size = sum(map(_padded, sizes))
    if at is not None:
        if area is None or type(at) is not int:
            raise BadFrame("arrays in an area that there is not")
        body = area.part(at, size)
    if len(body) != size:
        raise BadFrame(f"{len(body)} bytes for arrays of {size}")
    arrays, offset = [], 0
    for (dtype, shape), taken in zip(forms, sizes, strict=True):
        arrays.append(body[offset : offset + taken].view(DTYPES[dtype]).reshape(shape))
        offset += _padded(taken)
    return Frame(head, arrays, None if at is None else at + size)


def _size(form: Any) -> int:
    dtype, shape = form
    if len(shape) > MOST_AXES or not all(type(axis) is int and axis >= 0 for axis in shape):
        raise ValueError(f"no shape: {shape}")
    elements: int = math.prod(shape)
    return elements * DTYPES[dtype].itemsize


class Link(asyncio.BufferedProtocol):
    """One end of a connection between a worker and the engine."""

    def __init__(
        self,
        take: "Callable[[Link, Frame], None]",
        lost: "Callable[[Link], None]",
        mine: Area | None = None,
        theirs: Area | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        """Call `take` with each frame that comes, and `lost` when no more can.

        Args:
            take: must not fail; a `BadFrame` ends the connection.
            lost: called once.
            mine: where to write large arrays.
            theirs: where the other end does.
            in_place: leave arrays there; then whoever takes a frame must say when it is `done` with it.
        """
        self._take, self._lost, self._mine, self._theirs = take, lost, mine, theirs
        self._in_place = in_place
        self._places: OrderedDict[int, bool] = OrderedDict()  # in the order they came; whether they are needed
        self._transport: asyncio.WriteTransport | None = None
        self._scratch = memoryview(bytearray(SCRATCH))
        self._filled = 0
        self._long: Array | None = None  # a frame that is longer than the scratch memory, and how much of it is head
        self._head = self._got = 0
        self._read = self._said = 0

    def send(self, head: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Say something; whoever has gone hears nothing."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._said != self._read:
            head = {**head, "read": self._read}
            self._said = self._read
        self._transport.writelines(packed(head, arrays, self._mine))

    def done(self, place: int | None) -> None:
        """The arrays of a frame with that place are not needed any more; with the next frame the other end knows."""
        if place is None:
            return
        self._places[place] = False
        while self._places and not next(iter(self._places.values())):
            self._read, _ = self._places.popitem(last=False)

    def close(self) -> None:
        """End it."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]
        """See `asyncio.BaseProtocol`."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = None
        for area in (self._mine, self._theirs):
            if area is not None:
                area.close()
        self._lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._scratch[self._filled :] if self._long is None else self._long.data[self._got :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        try:
            if self._long is None:
                self._filled += nbytes
                self._split()
                return
            self._got += nbytes
            if self._got == len(self._long):
                whole, self._long = self._long, None
                self._deliver(whole[: self._head].data, whole[self._head :])
        except BadFrame:
            self.close()

    def _split(self) -> None:
        """Deliver what is whole, and make room for what is longer than the scratch memory."""
        start = 0
        while self._filled - start >= PREFIX.size:
            head, body = PREFIX.unpack_from(self._scratch, start)
            if head > MOST_HEAD or body > MOST_BODY:
                raise BadFrame(f"a frame of {head} and {body} bytes")
            end = start + PREFIX.size + head + body
            if end > self._filled:
                if end - start > SCRATCH:
                    self._begin(start, head, body)
                    return
                break
            at = start + PREFIX.size
            self._deliver(self._scratch[at : at + head], np.array(self._scratch[at + head : end], np.uint8))
            start = end
        self._scratch[: self._filled - start] = self._scratch[start : self._filled]
        self._filled -= start

    def _begin(self, start: int, head: int, body: int) -> None:
        """The rest of a frame is read to where it stays, head and all."""
        come = self._scratch[start + PREFIX.size : self._filled]
        whole = np.empty(head + body, np.uint8)
        whole[: len(come)] = come
        self._filled, self._got, self._long, self._head = 0, len(come), whole, head

    def _deliver(self, text: memoryview | bytes, body: Array) -> None:
        frame = unpacked(text, body, self._theirs)
        if frame.place is not None:
            self._places[frame.place] = True
            if not self._in_place:
                place, frame = frame.place, Frame(frame.head, [array.copy() for array in frame.arrays])
                self.done(place)
        if (confirmed := frame.head.pop("read", None)) is not None and self._mine is not None:
            self._mine.read = confirmed
        self._take(self, frame)
