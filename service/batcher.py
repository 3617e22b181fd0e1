"""The queue: work is dispatched the moment a compute slot is free, and batches form while all slots are busy.

One object, used from one thread (the event loop's), owns all state. There is no window and no idle wait: a lone request
starts at once.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from functools import partial

from models.errors import AttentionError
from service.clock import Clock, Timer
from service.errors import ClientGone, DeadlineExceeded, Draining, QueueFull
from service.metrics import Metrics
from service.packing import Unit, batch_limit
from service.slots import Run, Slots, Verdict
from service.tickets import NO_VERDICT, Limits, Line, Pending, Ticket, Waiter, tell

log = logging.getLogger(__name__)

HERE_S = 200e-6
"""A unit that takes no longer is computed in the event loop's own thread. To hand it to another and back takes half of
that (`make bench ARGS=choices`), and there it is costlier: the core has to fetch first what it is computed with."""

MOST_HERE_S = 300e-6
"""About how long a batch of such units may keep the event loop; so may a unit while no core is idle, for which a thread
would wait."""

SMALL_S = 1e-3
"""A request that takes no longer is small."""

MEDIUM_S = 10e-3
"""One that takes no longer, or probably so, is not large: one batch of a large one takes as long."""

MOST_SEQUENCES = 8
"""Sequences that a request has at most which is not large."""

PATIENCE_S = 0.5e-3
"""If no slot becomes free for so long, the small requests that wait are computed in the event loop's thread."""


class Batcher:
    """Admission, order, batches and deadlines.

    Units wait in three lines, those of small, of medium and of large requests, so that none waits for all the units of
    larger ones before it. The next batch is led by the unit that has waited longest in its line, the lines taking
    turns, and joined by those of its key behind it: no key and no size can starve another. What only takes a moment
    needs no slot.
    """

    def __init__(self, slots: Slots, limits: Limits, clock: Clock, metrics: Metrics) -> None:
        """Serve through `slots`; `clock` is a `LoopClock` outside of tests."""
        self._slots, self._limits, self._clock, self._metrics = slots, limits, clock, metrics
        self._small, self._medium, self._large = Line(), Line(), Line()
        self._lines = (self._small, self._medium, self._large)
        self._led = 0  # the line whose turn was the last
        self._freed = 0.0
        self._by_key: dict[tuple[object, ...], Line] = {}
        self._number = 0
        self._free = slots.count
        self._draining = False
        self._soon: Timer | None = None
        self._seen = 0  # small requests that waited a turn of the event loop ago, if more were to join them
        self._overdue: Timer | None = None
        self._watched = math.inf  # the first deadline there is a timer for
        self._watcher: Timer | None = None
        self._running: dict[Run, list[Pending]] = {}
        self._waiters: list[Waiter] = []  # of requests that have been computed
        self._tickets: set[Ticket] = set()
        self._sequences = self._tokens = self._bytes = 0
        self._token_seconds = 0.0
        self._idle = asyncio.Event()  # set when nothing is left to drain
        metrics.watch(metrics.queued, lambda: sum(ticket.queued for ticket in list(self._tickets)))
        metrics.watch(metrics.queued_sequences, lambda: sum(map(len, self._lines)))
        metrics.watch(metrics.inflight_bytes, lambda: self._bytes)
        metrics.watch(metrics.inflight_tokens, lambda: self._tokens)
        metrics.watch(metrics.busy_slots, lambda: slots.count - self._free)
        metrics.slots.set(slots.count)

    @property
    def alive(self) -> bool:
        """Whether work that is submitted will be computed."""
        return self._slots.alive

    def oldest_run_s(self) -> float:
        """How long the longest of the running batches has been at it, s; 0 if none runs."""
        now = self._clock.time()
        return max((now - run.started for run in self._running if run.started), default=0.0)

    def submit(self, units: Sequence[Unit], size: int, deadline: float) -> Ticket:
        """Accept a request, all of it or none.

        Args:
            units: its sequences.
            size: its bytes in and out.
            deadline: when its answer is no longer wanted, by the clock.

        Returns:
            A ticket; await its future, then `release` it when the answer has been sent.

        Raises:
            Draining: while the service stops.
            DeadlineExceeded: if the deadline has passed already.
            QueueFull: if it does not fit beside what is in flight.
        """
        now = self._clock.time()
        if self._draining:
            self._metrics.rejected.labels("draining").inc()
            raise Draining("the service is shutting down; try another replica", retry_after_s=1)
        if now >= deadline:
            self._metrics.expired.inc()
            raise DeadlineExceeded("the deadline passed before the request could be queued")
        tokens, cost = 0, 0.0
        for unit in units:
            tokens += unit.length
            cost += self._slots.cost_s(unit)
        sequences, limits = len(units), self._limits
        if (
            len(self._tickets) >= limits.requests
            or self._sequences + sequences > limits.sequences
            or self._tokens + tokens > limits.tokens
            or self._bytes + size > limits.bytes
        ):
            raise self._full(sequences, tokens, size)
        ticket = Ticket(asyncio.get_running_loop().create_future(), deadline, sequences, tokens, size, submitted=now)
        ticket.remaining = sequences
        ticket.verdicts = [NO_VERDICT] * sequences
        self._tickets.add(ticket)
        self._sequences += sequences
        self._tokens += tokens
        self._bytes += size
        line = self._line_of(sequences, tokens, cost)
        small = line is self._small
        for index, unit in enumerate(units):
            pending = Pending(self._number, unit.key, unit, ticket, index, line)
            self._enqueue(pending)
            self._number += 1
        if not small or (self._soon is None and not self._takes_a_moment(pending)):
            self._dispatch()
        elif self._soon is None:  # it is looked at in a moment, with what comes until then
            self._soon = self._clock.call_soon(self._compute_soon)
        if not ticket.ended and deadline < self._watched:
            self._watch(deadline)
        return ticket

    def cancel(self, ticket: Ticket, error: AttentionError) -> None:
        """End a request now, if it has not ended: what is queued is dropped, what runs is not waited for."""
        if ticket.ended:
            return
        if not ticket.future.done():  # it is where the task that awaited it has been cancelled
            ticket.future.set_exception(error)
            ticket.future.exception()  # whoever abandoned the request will not ask for it
        if (waiter := ticket.taken_waiter()) is not None:
            self._clock.call_soon(partial(tell, (waiter,)))
        if isinstance(error, ClientGone):
            self._metrics.cancelled.inc()
        elif isinstance(error, DeadlineExceeded):
            self._metrics.expired.inc()
        self._settle(ticket)

    def release(self, ticket: Ticket) -> None:
        """Say that the answer has been sent, or is not wanted: its memory no longer counts once nothing of it runs."""
        if not ticket.ended:
            self.cancel(ticket, ClientGone("the request was abandoned"))
        if ticket.held:
            ticket.held = False
            del ticket.future  # its error holds the frames that saw it, and they hold the ticket: a circle
            self._forget(ticket)

    def refuse(self) -> None:
        """Accept nothing from now on."""
        self._draining = True

    async def drain(self) -> None:
        """Refuse new work, and wait until all that was accepted has been answered and released."""
        self.refuse()
        if self._tickets:
            await self._idle.wait()
        self._unwatch()

    def close(self) -> None:
        """Stop the compute slots, and end whatever is still waiting."""
        self.refuse()
        for ticket in list(self._tickets):
            self.cancel(ticket, Draining("the service has stopped", retry_after_s=1))
        self._unwatch()
        self._slots.close()

    def _full(self, sequences: int, tokens: int, size: int) -> QueueFull:
        """Count that a request does not fit, and say by which limit."""
        limits = self._limits
        unit, used, more, most = next(
            (unit, used, more, most)
            for unit, used, more, most in (
                ("requests", len(self._tickets), 1, limits.requests),
                ("sequences", self._sequences, sequences, limits.sequences),
                ("tokens", self._tokens, tokens, limits.tokens),
                ("bytes", self._bytes, size, limits.bytes),
            )
            if used + more > most
        )
        self._metrics.rejected.labels(unit).inc()
        return QueueFull(
            f"{used} {unit} are in flight and {more} more would pass the limit of {most}",
            retry_after_s=self._retry_after_s(),
        )

    def _retry_after_s(self) -> float:
        """The time the work in flight will take, by the pace so far; 1 to 30 s."""
        return min(30.0, max(1.0, self._tokens * self._token_seconds / self._slots.count))

    def _line_of(self, sequences: int, tokens: int, cost_s: float) -> Line:
        """Where a request waits: what it takes, infinite if that is not known, is then judged by the pace so far."""
        if sequences > MOST_SEQUENCES:
            return self._large
        if cost_s <= SMALL_S:
            return self._small
        probable_s = tokens * self._token_seconds if cost_s == math.inf else cost_s
        return self._medium if probable_s <= MEDIUM_S else self._large

    def _enqueue(self, pending: Pending) -> None:
        pending.ticket.pending.append(pending)
        pending.ticket.waiting += 1
        pending.line[pending.number] = pending
        same = self._by_key.get(pending.key)
        if same is None:
            same = self._by_key[pending.key] = Line()
        same[pending.number] = pending

    def _dequeue(self, pending: Pending) -> None:
        pending.ticket.waiting -= 1
        del pending.line[pending.number]
        same = self._by_key[pending.key]
        del same[pending.number]
        if not same:
            del self._by_key[pending.key]

    def _dispatch(self) -> None:
        """Start batches while there are free slots and work; what takes a moment is computed here, soon."""
        while self._free and (lead := self._lead()) is not None:
            self._free -= 1
            self._slots.start(self._taken(lead, self._limits.batch_sequences), self._done)
        if (small := self._first(self._small)) is None:
            return
        if self._takes_a_moment(small):
            if self._soon is None:
                self._soon = self._clock.call_soon(self._compute_soon)
        elif self._overdue is None:
            self._overdue = self._clock.call_at(self._freed + PATIENCE_S, self._compute_overdue)

    def _lead(self) -> Pending | None:
        """The unit that leads the next batch for a slot: the oldest of a line, the lines taking turns."""
        for behind in range(1, len(self._lines) + 1):
            number = (self._led + behind) % len(self._lines)
            line = self._lines[number]
            first = self._first(line) if line else None
            if first is not None and not (line is self._small and self._takes_a_moment(first)):
                self._led = number
                return first
        return None

    def _takes_a_moment(self, pending: Pending) -> bool:
        cost = self._slots.cost_s(pending.unit)
        return cost <= HERE_S or (cost <= MOST_HERE_S and not self._slots.idle)

    def _compute_soon(self) -> None:
        """By now, all that came in the same turn of the event loop is in the queue, and batches with it."""
        self._soon = None
        small = self._first(self._small)
        if small is not None and self._takes_a_moment(small):
            if self._more_come(small):
                self._soon = self._clock.call_soon(self._compute_soon)
                return
            self._compute_here(small)
        self._dispatch()
        self._tell()

    def _more_come(self, oldest: Pending) -> bool:
        """Whether what comes in another turn is to join those that wait: there are several, and more than a turn ago.

        A batch costs as much beside its computation as several requests do. But the oldest does not wait for long.
        """
        seen, self._seen = self._seen, len(self._small)
        waited_s = self._clock.time() - oldest.ticket.submitted
        more = max(seen, 1) < self._seen < self._limits.batch_sequences and waited_s < MOST_HERE_S
        if not more:
            self._seen = 0
        return more

    def _compute_overdue(self) -> None:
        """No slot may have become free for a while: then small requests do without."""
        self._overdue = None
        small = self._first(self._small)
        if small is not None and self._clock.time() >= self._freed + PATIENCE_S:
            self._compute_here(small)
        self._dispatch()
        self._tell()

    def _compute_here(self, small: Pending) -> None:
        """Compute a batch of small units without a thread and without a slot."""
        cost = self._slots.cost_s(small.unit)
        if cost > SMALL_S:  # it has turned out to be more
            small.line = self._medium
            self._medium[small.number] = self._small.pop(small.number)
            return
        run = self._taken(small, min(self._limits.batch_sequences, 1 + int(MOST_HERE_S / (cost + 1e-9))))
        self._slots.compute(run)
        self._conclude(run)

    def _taken(self, oldest: Pending, most_sequences: int) -> Run:
        """A run of the oldest unit and those of its key that fit beside it."""
        batch: list[Pending] = []
        limit = batch_limit(oldest.unit, most_sequences)
        same = self._by_key[oldest.key]
        pending: Pending | None = oldest
        while pending is not None and len(batch) < limit:
            self._dequeue(pending)
            pending.ticket.running += 1
            batch.append(pending)
            pending = self._first(same) if same else None
        run = Run([pending.unit for pending in batch])
        self._running[run] = batch
        return run

    def _first(self, waiting: Line) -> Pending | None:
        """The oldest that has not expired. Those that have are ended here, before their timer says so."""
        if not waiting:
            return None
        now = self._clock.time()
        while waiting:
            pending = next(iter(waiting.values()))
            if pending.ticket.deadline > now:
                return pending
            self._expire(pending.ticket)
        return None

    def _done(self, run: Run) -> None:
        """A slot is free again. Called by the slots; must not fail."""
        self._free += 1
        self._freed = self._clock.time()
        self._conclude(run)
        self._dispatch()
        self._tell()

    def _tell(self) -> None:
        """Call those who wait for what has been computed, now that what comes next is under way."""
        waiters, self._waiters = self._waiters, []
        tell(waiters)

    def _conclude(self, run: Run) -> None:
        """Deliver what a run made. Must not fail, so each waiter is guarded by itself."""
        batch = self._running.pop(run)
        try:
            self._measure(run)
        except Exception:
            log.exception("a batch could not be measured")
        for pending, verdict in zip(batch, run.verdicts, strict=True):
            try:
                self._deliver(pending, verdict, run)
            except Exception:
                log.exception("a verdict could not be delivered")

    def _measure(self, run: Run) -> None:
        job, tokens = run.units[0].job, sum([unit.length for unit in run.units])
        backend = job.backend
        self._metrics.batch_sequences_of(backend).observe(len(run.units))
        self._metrics.batch_tokens_of(backend).observe(tokens)
        self._metrics.padded_tokens_of(backend).inc(sum([unit.bucket for unit in run.units]) - tokens)
        if run.failures:
            self._metrics.batch_failures.labels(backend).inc(run.failures)
        if job.statistics is not None:
            job.statistics.executions += 1
        pace = (run.finished - run.started) / tokens
        self._token_seconds = pace if not self._token_seconds else 0.9 * self._token_seconds + 0.1 * pace

    def _deliver(self, pending: Pending, verdict: Verdict, run: Run) -> None:
        ticket = pending.ticket
        ticket.running -= 1
        ticket.remaining -= 1
        if not ticket.ended and not ticket.future.done():
            ticket.started = min(ticket.started, run.started) if ticket.started else run.started
            ticket.finished = max(ticket.finished, run.finished)
            ticket.batch = max(ticket.batch, len(run.units))
            if isinstance(verdict, AttentionError):
                self.cancel(ticket, verdict)
            else:
                ticket.verdicts[pending.index] = verdict
                if not ticket.remaining:
                    ticket.future.set_result(ticket.verdicts)
                    self._settle(ticket)
                    if (waiter := ticket.taken_waiter()) is not None:
                        self._waiters.append(waiter)
        if not ticket.held:
            self._forget(ticket)

    def _expire(self, ticket: Ticket) -> None:
        waited = self._clock.time() - ticket.submitted
        state = "was still queued" if ticket.queued else "was being computed"
        self.cancel(ticket, DeadlineExceeded(f"not done in time: after {waited * 1e3:.0f} ms the request {state}"))

    def _watch(self, deadline: float) -> None:
        """Look at the deadlines when this one passes, the first of all: one timer serves every ticket.

        It is left to come when all have ended before: to look once for nothing costs less than a timer for each.
        """
        self._unwatch()
        self._watched, self._watcher = deadline, self._clock.call_at(deadline, self._look)

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watched, self._watcher = math.inf, None

    def _look(self) -> None:
        """End what has passed its deadline. The first of those left may be that of a ticket that ends before."""
        now = self._clock.time()
        self._watched, self._watcher = math.inf, None
        left = math.inf
        for ticket in [ticket for ticket in self._tickets if not ticket.ended]:
            if ticket.deadline <= now:
                self._expire(ticket)
            else:
                left = min(left, ticket.deadline)
        if left < math.inf:
            self._watch(left)

    def _settle(self, ticket: Ticket) -> None:
        """The request has its result or its error."""
        ticket.ended = True
        if ticket.waiting:
            for pending in ticket.pending:
                if pending.number in pending.line:
                    self._dequeue(pending)
        ticket.pending, ticket.verdicts = [], []

    def _forget(self, ticket: Ticket) -> None:
        if ticket.held or ticket.running or ticket not in self._tickets:
            return
        self._tickets.remove(ticket)
        self._sequences -= ticket.sequences
        self._tokens -= ticket.tokens
        self._bytes -= ticket.bytes
        if self._draining and not self._tickets:
            self._idle.set()
