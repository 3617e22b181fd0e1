"""Connections between clients, the supervisor and workers that are sockets here."""

import asyncio
import json
import socket

import pytest

from service.workers.connections import GIVEN_BACK, PLACE, Connections, Seat, apology
from service.workers.states import State, States


class FakeWorker:
    """The other end of a seat: takes what it is handed, and may say what becomes of it."""

    def __init__(self, connections, *, ready=True):
        ours, self.link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.link.setblocking(False)
        self.seat = Seat(ours)
        self.seat.ready = ready
        self.taken = {}
        connections.seat(self.seat)

    def take(self):
        """Everything that has been handed over so far."""
        try:
            while True:
                message, descriptors, _, _ = socket.recv_fds(self.link, PLACE.size, 1)
                if not message:
                    return self
                self.taken[PLACE.unpack(message)[0]] = socket.socket(fileno=descriptors[0])
        except BlockingIOError:
            return self

    def say(self, place, flag=0):
        self.link.send(PLACE.pack(place | flag))

    def close(self):
        self.link.close()
        for connection in self.taken.values():
            connection.close()


class Stage:
    """A supervisor's connections, and a listening socket."""

    def __init__(self):
        self.states = States()
        self.connections = Connections(self.states)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.address = self.listener.getsockname()
        self.connections.listen(self.listener)
        self.opened = []

    def worker(self, **fields):
        worker = FakeWorker(self.connections, **fields)
        self.opened.append(worker)
        return worker

    async def clients(self, count):
        """So many that connect, one after the other."""
        found = []
        for _ in range(count):
            before = len(self.connections)
            client = socket.create_connection(self.address)
            client.settimeout(5)
            found.append(client)
            await until(lambda before=before: len(self.connections) > before)
        self.opened += found
        return found


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def on_stage(play):
    async def run():
        stage = Stage()
        try:
            await play(stage)
        finally:
            for thing in stage.opened:
                thing.close()
            await stage.connections.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_connections_are_spread_evenly():
    async def play(stage):
        workers = [stage.worker() for _ in range(3)]
        await stage.clients(12)

        assert [len(worker.take().taken) for worker in workers] == [4, 4, 4]

    on_stage(play)


def test_connections_that_come_one_at_a_time_are_spread_too():
    """Also by clients that close theirs before the next one opens."""

    async def play(stage):
        workers = [stage.worker() for _ in range(2)]
        order = []
        for _ in range(6):
            await stage.clients(1)
            holder = next(worker for worker in workers if worker.seat.open)
            ((place, connection),) = holder.take().taken.items()
            order.append(workers.index(holder))
            connection.close()
            holder.taken.clear()
            holder.say(place)
            await until(lambda: not len(stage.connections))

        assert order == [0, 1, 0, 1, 0, 1]

    on_stage(play)


def test_whoever_is_ready_comes_first_and_whoever_takes_nothing_gets_nothing():
    async def play(stage):
        loading, ready, leaving = stage.worker(ready=False), stage.worker(), stage.worker()
        leaving.seat.taking = False
        await stage.clients(3)
        assert [len(worker.take().taken) for worker in (loading, ready, leaving)] == [0, 3, 0]

        ready.seat.taking = False
        await stage.clients(2)
        assert [len(worker.take().taken) for worker in (loading, ready, leaving)] == [2, 3, 0]

    on_stage(play)


def test_a_client_that_comes_before_any_worker_waits_for_one():
    async def play(stage):
        (client,) = await stage.clients(1)
        worker = stage.worker()
        await until(lambda: worker.take().taken)
        (connection,) = worker.taken.values()
        connection.sendall(b"hello")

        assert client.recv(5) == b"hello"

    on_stage(play)


def test_a_connection_is_closed_once_its_worker_says_that_it_is_over():
    """The supervisor holds it open until then."""

    async def play(stage):
        worker = stage.worker()
        (client,) = await stage.clients(1)
        ((place, connection),) = worker.take().taken.items()
        connection.close()
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)
        worker.say(place)
        await until(lambda: not len(stage.connections))
        client.settimeout(5)

        assert client.recv(1) == b""
        assert worker.seat.open == 0

    on_stage(play)


@pytest.mark.parametrize("state", [State.HANDED, State.IDLE])
def test_a_connection_on_which_nothing_goes_on_outlives_its_worker(state):
    async def play(stage):
        first = stage.worker()
        (client,) = await stage.clients(1)
        ((place, connection),) = first.take().taken.items()
        stage.states[place] = state
        client.sendall(b"request")
        second = stage.worker()
        connection.close()
        stage.connections.unseat(first.seat)
        await until(lambda: second.take().taken)

        assert second.taken[place].recv(7) == b"request"
        assert stage.states[place] == State.HANDED
        assert second.seat.open == 1

    on_stage(play)


def test_a_request_that_died_with_its_worker_is_answered_try_again():
    async def play(stage):
        worker = stage.worker()
        (client,) = await stage.clients(1)
        (place,) = worker.take().taken
        stage.states[place] = State.ASKED
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nx")  # some of it nobody has read
        worker.close()
        stage.connections.unseat(worker.seat)
        reply = await asyncio.to_thread(client.makefile("rb").readline)

        assert reply == b"HTTP/1.1 503 Service Unavailable\r\n"
        client.close()
        await until(lambda: not len(stage.connections))

    on_stage(play)


def test_an_answer_that_had_begun_is_cut_off():
    """Nothing else can be said any more."""

    async def play(stage):
        worker = stage.worker()
        (client,) = await stage.clients(1)
        (place,) = worker.take().taken
        stage.states[place] = State.ANSWERING
        worker.close()
        stage.connections.unseat(worker.seat)

        assert await asyncio.to_thread(client.recv, 1) == b""

    on_stage(play)


def test_what_a_worker_said_before_it_died_is_heard():
    async def play(stage):
        worker = stage.worker()
        (client,) = await stage.clients(1)
        (place,) = worker.take().taken
        stage.states[place] = State.ASKED
        worker.say(place)
        worker.close()
        stage.connections.unseat(worker.seat)

        assert client.recv(1) == b""  # closed, and no apology

    on_stage(play)


def test_a_connection_that_is_given_back_goes_to_another_worker():
    async def play(stage):
        first = stage.worker()
        (client,) = await stage.clients(1)
        ((place, connection),) = first.take().taken.items()
        second = stage.worker()
        first.seat.taking = False
        connection.close()
        first.say(place, GIVEN_BACK)
        await until(lambda: second.take().taken)
        second.taken[place].sendall(b"here")

        assert client.recv(4) == b"here"
        assert (first.seat.open, second.seat.open) == (0, 1)

    on_stage(play)


def test_the_apology_is_a_whole_answer_of_the_documented_shape():
    head, _, body = apology().partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    problem = json.loads(body)

    assert lines[0] == "HTTP/1.1 503 Service Unavailable"
    assert int(headers["content-length"]) == len(body)
    assert (headers["retry-after"], headers["connection"]) == ("1", "close")
    assert (problem["type"], problem["status"]) == ("/problems/worker-lost", 503)
    assert problem["instance"] == headers["x-request-id"]
    assert problem["error"] == problem["detail"]  # where clients of /v2 look
