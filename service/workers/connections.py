"""The supervisor's side of connections: accepted, handed to the worker that has fewest, saved from one that died."""

import asyncio
import contextlib
import logging
import socket
import struct
from collections import deque

from service.errors import WorkerLost
from service.problems import MEDIA_TYPE, Dialect, whole_answer
from service.workers.states import PLACES, State, States

log = logging.getLogger(__name__)

PLACE = struct.Struct("!I")
"""A message about a connection is its place; one to a worker carries its descriptor too."""

GIVEN_BACK = 1 << 31
"""Set in a worker's message if the connection is whole, and another worker may have it."""

ACCEPT_AT_ONCE = 64
TRY_AGAIN_S = 0.05
LINGER_S = 2.0
"""How long a dead worker's client may go on to send before its connection is closed: see `observe.LINGER_S`."""


class Seat:
    """A worker as connections see it.

    Attributes:
        link: what connections are handed over by.
        taking: whether it may have new ones.
        ready: whether it should, before those that are not.
        open: how many it has.
        turn: when it was last handed one; of workers with equally many, the one that waited longest is next.
    """

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.taking = True
        self.ready = False
        self.open = self.turn = 0


class Connections:
    """Every open connection, from when it is accepted until it is closed."""

    def __init__(self, states: States) -> None:
        """Share `states` with the workers."""
        self._states = states
        self._free = deque(range(PLACES))
        self._held: dict[int, socket.socket] = {}
        self._seats: list[Seat] = []
        self._of: dict[int, Seat] = {}
        self._homeless: deque[int] = deque()
        self._turns = 0
        self._retry: asyncio.TimerHandle | None = None
        self._listener: socket.socket | None = None
        self._farewells: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def listen(self, listener: socket.socket) -> None:
        """Accept what comes."""
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def stop_listening(self) -> None:
        """Accept nothing more; what is open stays."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def seat(self, seat: Seat) -> None:
        """A worker has come."""
        self._seats.append(seat)
        asyncio.get_running_loop().add_reader(seat.link, self._hear, seat)
        self.settle()

    def unseat(self, seat: Seat) -> None:
        """A worker has ended: its connections go to the others, except those it was about to answer.

        Of these, the ones that have seen nothing of an answer are answered here: not now, try again.
        """
        if seat not in self._seats:
            return
        self._hear(seat)  # what it said last
        asyncio.get_running_loop().remove_reader(seat.link)
        seat.link.close()
        self._seats.remove(seat)
        for place in [place for place, owner in self._of.items() if owner is seat]:
            del self._of[place]
            state = self._states[place]
            if state in (State.HANDED, State.IDLE):
                self._homeless.append(place)
            else:
                self._farewell(place, apologise=state == State.ASKED)
        self.settle()

    def settle(self) -> None:
        """Hand over what waits for a worker, as far as there are any."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        while self._homeless:
            if not self._hand_over(self._homeless[0]):
                self._retry = asyncio.get_running_loop().call_later(TRY_AGAIN_S, self.settle)
                return
            self._homeless.popleft()

    async def close(self) -> None:
        """Close what is open, once last words have been said."""
        self.stop_listening()
        if self._farewells:
            await asyncio.wait(self._farewells)
        for place in list(self._held):
            self._forget(place)
        for seat in self._seats:
            asyncio.get_running_loop().remove_reader(seat.link)
            seat.link.close()

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(ACCEPT_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:  # out of descriptors: those who wait in the backlog are served when some close
                log.error("cannot accept a connection: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                loop.call_later(1.0, self._resume)
                return
            if not self._free:
                connection.close()
                continue
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            place = self._free.popleft()
            self._held[place] = connection
            if not self._hand_over(place):
                self._homeless.append(place)
                self.settle()

    def _resume(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _hand_over(self, place: int) -> bool:
        """Give a connection to the worker that has fewest, of those that are ready if any is."""
        for seat in sorted((s for s in self._seats if s.taking), key=lambda s: (not s.ready, s.open, s.turn)):
            self._states[place] = State.HANDED
            try:
                socket.send_fds(seat.link, [PLACE.pack(place)], [self._held[place].fileno()])
            except OSError:  # it reads nothing, or has ended a moment ago
                continue
            self._of[place] = seat
            seat.open += 1
            self._turns += 1
            seat.turn = self._turns
            return True
        return False

    def _hear(self, seat: Seat) -> None:
        """What a worker says of its connections: closed, or given back."""
        while True:
            try:
                message = seat.link.recv(PLACE.size)
            except (BlockingIOError, ConnectionError):
                return
            if not message:
                asyncio.get_running_loop().remove_reader(seat.link)
                return
            (place,) = PLACE.unpack(message)
            given_back, place = bool(place & GIVEN_BACK), place & ~GIVEN_BACK
            if self._of.pop(place, None) is None:
                continue
            seat.open -= 1
            if given_back:
                self._homeless.append(place)
                self.settle()
            else:
                self._forget(place)

    def _forget(self, place: int) -> None:
        self._held.pop(place).close()
        self._free.append(place)

    def _farewell(self, place: int, *, apologise: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._part(place, apologise=apologise))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _part(self, place: int, *, apologise: bool) -> None:
        connection, loop = self._held[place], asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            if apologise:
                async with asyncio.timeout(LINGER_S):
                    await loop.sock_sendall(connection, apology())
                    connection.shutdown(socket.SHUT_WR)
                    while await loop.sock_recv(connection, 1 << 16):
                        pass
        self._forget(place)


def apology() -> bytes:
    """A whole answer to a request that nobody has read but the worker that died.

    Whether its client reads `detail` or, under `/v2`, `error`, is not known here, so it has both.
    """
    error = WorkerLost("the process that held the request has ended, and another takes its place", retry_after_s=1)
    request_id, answer = whole_answer(error, Dialect(MEDIA_TYPE, text="error"))
    log.error("request %s was lost with its worker", request_id, extra={"request_id": request_id})
    return answer
