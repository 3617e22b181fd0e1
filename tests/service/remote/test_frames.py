"""Frames over a socket and through shared memory, whole and broken."""

import asyncio
import os
import socket
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.remote.frames import (
    DTYPES,
    MOST_BODY,
    PREFIX,
    SCRATCH,
    SHARED_FROM,
    Area,
    BadFrame,
    Link,
    packed,
    unpacked,
)

arrays = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
heads = st.dictionaries(
    st.sampled_from(["id", "model", "scale", "rows"]),
    st.none()
    | st.integers(0, 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ä"\\\n x', max_size=9),
)


def whole(pieces):
    """A frame's head and body, as whoever receives them has them."""
    data = b"".join(pieces)
    head, body = PREFIX.unpack_from(data)
    assert len(data) == PREFIX.size + head + body
    return data[PREFIX.size : PREFIX.size + head], np.frombuffer(data[PREFIX.size + head :], np.uint8)


def same(found, given):
    assert len(found) == len(given)
    for one, other in zip(found, given, strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(heads, st.lists(arrays, max_size=5))
def test_what_is_packed_is_unpacked_bit_by_bit(head, given):
    frame = unpacked(*whole(packed(head, given)))

    assert (frame.head, frame.place) == (head, None)
    same(frame.arrays, given)


def test_arrays_that_lie_across_are_straightened():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)

    frame = unpacked(*whole(packed({}, [x.T, x[:, ::2]])))

    same(frame.arrays, [np.ascontiguousarray(x.T), np.ascontiguousarray(x[:, ::2])])


@pytest.fixture
def area():
    made = []

    def make(size=1 << 20):
        made.append(Area(size=size))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_large_arrays_go_through_the_area(area):
    mine = area()
    theirs = Area(descriptor=mine.descriptor)
    x = np.arange(SHARED_FROM, dtype=np.float32)

    text, body = whole(packed({"id": 1}, [x], mine))
    frame = unpacked(text, body, theirs)

    assert body.size == 0
    assert frame.place == mine.written == x.nbytes
    same(frame.arrays, [x])


def test_an_area_goes_round_and_never_over_what_has_not_been_read(area):
    mine = area(1_000)

    assert [mine.place(400) for _ in range(3)] == [0, 400, None]
    mine.read = 400
    assert mine.place(400) == 1_000  # the 200 bytes at its end are skipped
    assert mine.place(1) is None
    mine.read = 1_400
    assert mine.place(1_001) is None
    assert mine.place(600) == 1_400


def test_what_has_no_room_in_the_area_goes_through_the_socket(area):
    mine = area(SHARED_FROM)
    x = np.arange(SHARED_FROM, dtype=np.float32)

    frame = unpacked(*whole(packed({}, [x], mine)))

    assert frame.place is None
    same(frame.arrays, [x])


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (b"", 0),
        (b"no json", 0),
        (b"[]", 0),
        (b'{"arrays": 3}', 0),
        (b'{"arrays": [["<f4"]]}', 0),
        (b'{"arrays": [["<f4", [-1]]]}', 0),
        (b'{"arrays": [["<f4", [1.5]]]}', 6),
        (b'{"arrays": [["<f4", [1, 1, 1, 1, 1]]]}', 64),
        (b'{"arrays": [["|O", [1]]]}', 64),
        (b'{"arrays": [["<f4", [2]]]}', 8),
        (b'{"arrays": [["<f4", [2]]]}', 128),
        (b"{}", 1),
        (b'{"at": 0}', 0),
        (b'{"arrays": [["<f4", [2]]], "at": 0}', 0),
    ],
)
def test_what_is_no_frame_is_told(head, size):
    with pytest.raises(BadFrame):
        unpacked(head, np.zeros(size, np.uint8))


@pytest.mark.parametrize("at", ["-64", "1048570", '"0"', "true", "null"])
def test_places_outside_of_the_area_are_told(area, at):
    head = b'{"arrays": [["<f4", [4]]], "at": %s}' % at.encode()

    with pytest.raises(BadFrame):
        unpacked(head, np.zeros(0, np.uint8), area())


# ---- links


def linked(talk, areas=(None, None), *, in_place=False):
    """Run `talk(one, other)` with two ends, each with a queue `frames` of what comes and an event `lost`."""

    async def run():
        ends = []
        mine, theirs = areas
        for end, own, others in zip(socket.socketpair(), (mine, theirs), (theirs, mine), strict=True):
            frames, lost = asyncio.Queue(), asyncio.Event()
            link = Link(
                lambda _, frame, frames=frames: frames.put_nowait(frame),
                lambda _, lost=lost: lost.set(),
                None if own is None else Area(os.dup(own.descriptor)),
                None if others is None else Area(os.dup(others.descriptor)),
                in_place=in_place,
            )
            link.frames, link.gone = frames, lost
            end.setblocking(False)
            link.transport, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda link=link: link, sock=end
            )
            ends.append(link)
        try:
            return await talk(*ends)
        finally:
            for link in ends:
                link.close()
            for link in ends:
                await link.gone.wait()

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_frames_of_any_length_arrive_whole_and_in_order():
    """One that fits beside others, one as long as all that is read at once, longer ones, none at all."""
    sizes = [0, 1, 100, SCRATCH // 4 - 64, SCRATCH // 4, SCRATCH // 4 + 1, 1_000_000, 3, 0, 2_000_000, 5] * 2

    async def talk(one, other):
        for number, size in enumerate(sizes):
            one.send({"id": number}, [np.full(size, number, np.float32)])
        return [await other.frames.get() for _ in sizes]

    found = linked(talk)

    assert [frame.head for frame in found] == [{"id": number} for number in range(len(sizes))]
    for number, (frame, size) in enumerate(zip(found, sizes, strict=True)):
        same(frame.arrays, [np.full(size, number, np.float32)])


def test_an_area_is_used_again_and_again(area):
    """What has been read is told with the next frame that goes the other way, so there is room for the next."""
    sizes = [30_000] * 40
    shared = (area(1 << 18), area(1 << 18))

    async def talk(one, other):
        found = []
        for number, size in enumerate(sizes):
            one.send({"id": number}, [np.full(size, number, np.float32)])
            found.append(await other.frames.get())
            other.send({"id": number}, found[-1].arrays)
            found.append(await one.frames.get())
        return found, one._mine.written, other._mine.written

    found, *written = linked(talk, shared)

    assert min(written) >= len(sizes) * 4 * sizes[0], "it went through the socket"
    for number, frame in enumerate(found):
        same(frame.arrays, [np.full(sizes[0], number // 2, np.float32)])


@pytest.mark.parametrize("sent", [struct.pack("!IQ", 5, 0) + b"nojs!", struct.pack("!IQ", 1, MOST_BODY + 1)])
def test_what_is_no_frame_ends_the_connection(sent):
    async def talk(one, other):
        one.transport.write(sent)
        await other.gone.wait()

    linked(talk)


def test_who_speaks_to_nobody_is_not_disturbed():
    async def talk(one, other):
        other.close()
        await one.gone.wait()
        one.send({"id": 1}, [np.zeros(3, np.float32)])

    linked(talk)


def test_what_is_left_in_place_is_not_overwritten_before_it_is_done(area):
    """In whatever order frames are done with; meanwhile others go through the socket."""
    size = SHARED_FROM // 4 + 1
    shared = area(1 << 18), area(1 << 18)  # room for three

    async def exchanged(one, other, number):
        one.send({"id": number}, [np.full(size, number, np.float32)])
        return await other.frames.get()

    async def talk(one, other):
        first, second, third = [await exchanged(one, other, number) for number in range(3)]
        in_socket = await exchanged(one, other, 3)
        other.done(second.place)
        other.send({"id": 0})
        await one.frames.get()
        still_in_socket = await exchanged(one, other, 4)
        for frame, number in ((first, 0), (third, 2), (in_socket, 3), (still_in_socket, 4)):
            same(frame.arrays, [np.full(size, number, np.float32)])
        other.done(first.place)
        other.done(None)
        other.send({"id": 0})
        await one.frames.get()
        shared_again = [await exchanged(one, other, number) for number in (5, 6)]
        same(third.arrays, [np.full(size, 2, np.float32)])
        return [frame.place is not None for frame in (first, second, third, in_socket, still_in_socket, *shared_again)]

    assert linked(talk, shared, in_place=True) == [True, True, True, False, False, True, True]
