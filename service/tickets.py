"""What the queue gives for a request: a ticket, and who is told of its end. An engine elsewhere gives the same."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from service.messages import Answer
from service.packing import Unit

log = logging.getLogger(__name__)

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be accepted and unanswered at one time, and how large a batch may grow."""

    requests: int
    sequences: int
    tokens: int
    bytes: int
    batch_sequences: int


Waiter = Callable[[], "Callable[[], object] | None"]
"""Is called when a request is done; what it gives back, when those of all other requests of its batch have been too."""


def tell(waiters: Sequence[Waiter]) -> None:
    """Call those who wait, and then what they gave back.

    What sends an answer belongs into the second: each that leaves wakes its client, which wants the core that the other
    answers are to be written on.
    """
    _called([rest for rest in _called(waiters) if rest is not None])


def _called(waiters: Sequence[Callable[[], Found]]) -> list[Found]:
    """What they give back; nothing of one that fails, as the others must not suffer."""
    found = []
    for waiter in waiters:
        try:
            found.append(waiter())
        except Exception:
            log.exception("a waiter failed")
    return found


NO_VERDICT: tuple[Answer, list[int]] = ({}, [])
"""Stands for a verdict that has not come yet."""


@dataclass(slots=True, eq=False)
class Ticket:
    """An accepted request.

    Attributes:
        future: its verdicts, one per unit in order; or the error that ended it. Gone once the ticket is released.
        deadline: when it expires, by the batcher's clock.
        sequences, tokens, bytes: what it counts against the limits.
        submitted, started, finished: by the clock; started when a slot began its first unit.
        batch: sequences of the largest batch that one of its units was computed in.
        waiter: see `when_done`.
    """

    future: "asyncio.Future[list[tuple[Answer, list[int]]]]"
    deadline: float
    sequences: int
    tokens: int
    bytes: int
    submitted: float
    started: float = 0.0
    finished: float = 0.0
    batch: int = 0
    verdicts: list[tuple[Answer, list[int]]] = field(default_factory=list)
    pending: "list[Pending]" = field(default_factory=list)
    waiting: int = 0
    running: int = 0
    remaining: int = 0
    ended: bool = False
    held: bool = True
    waiter: Waiter | None = None

    def when_done(self, waiter: Waiter) -> None:
        """Call `waiter` when the future is done, once and from the event loop; see `tell`.

        Those of one batch are called in one go. A future's own callbacks are each a turn of the event loop's away,
        which costs about as much as to write a small answer.
        """
        if self.future.done():
            self.future.get_loop().call_soon(tell, (waiter,))
        else:
            self.waiter = waiter

    def taken_waiter(self) -> Waiter | None:
        """What is to be called now, if anything. It is not held here any more, as it may hold the ticket: a circle."""
        waiter, self.waiter = self.waiter, None
        return waiter

    @property
    def queued(self) -> bool:
        """Whether some of it still waits for a compute slot."""
        return self.waiting > 0


@dataclass(slots=True, eq=False)
class Pending:
    """A unit in the queue, or running.

    Attributes:
        line: where it waits, by its number.
    """

    number: int
    key: tuple[object, ...]
    unit: Unit
    ticket: Ticket
    index: int
    line: "Line"


Line = OrderedDict[int, Pending]
