"""Compute slots: threads that take a batch and give back one verdict per sequence, whatever the runtime does."""

import asyncio
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Protocol

from models.errors import AttentionError, InvalidInput
from service.cores import Cores
from service.errors import BackendFailed
from service.lane import ALONE, Spread, Team, in_turn
from service.messages import Answer
from service.packing import Unit, answer, batch_of

log = logging.getLogger(__name__)

MOST_KINDS = 4_096
"""Kinds of units whose cost is remembered."""

LEAST_S = 1e-6
"""What a unit takes at the least: twice nothing, which a coarse clock may show, would be nothing for ever."""

SHARED_S = 1e-3
"""A batch that takes longer offers the parts of its work to idle slots: to wake one takes a tenth of that at the most
(`make bench-sharing` measures what it gives). And it takes turns with other long work."""

TURN_S = 10e-3
"""How long a batch or a body waits for its turn: most work is done by then, and beside what is not, it goes on."""

Verdict = tuple[Answer, list[int]] | AttentionError
"""What became of a unit: its answer and the rows that see nothing, or why there is none."""


@dataclass(slots=True, eq=False)
class Run:
    """A batch on its way through a compute slot.

    Attributes:
        units: of one key.
        started, finished: when it was computed, by the monotonic clock, s.
        helped_s: how long other slots have worked for it.
        verdicts: one per unit, in order.
        failures: runs of the backend that failed.
    """

    units: list[Unit]
    started: float = 0.0
    finished: float = 0.0
    helped_s: float = 0.0
    verdicts: list[Verdict] = field(default_factory=list)
    failures: int = 0


class Slots(Protocol):
    """Where batches are computed."""

    @property
    def count(self) -> int:
        """How many at the same time."""

    @property
    def alive(self) -> bool:
        """Whether every slot still takes work."""

    @property
    def idle(self) -> bool:
        """Whether there is a core on which nothing computes."""

    def cost_s(self, unit: Unit) -> float:
        """What one such unit took, s, where it may be computed in the thread that owns the batcher; else infinity."""

    def start(self, run: Run, done: Callable[[Run], None]) -> None:
        """Compute, then call `done` in the thread that owns the batcher."""

    def compute(self, run: Run) -> None:
        """Compute in the thread that calls."""

    def team(self) -> AbstractContextManager[Team]:
        """Who computes the parts of other work."""

    def close(self) -> None:
        """Take no more work."""


def compute(units: Sequence[Unit], spread: Spread = in_turn) -> tuple[list[Verdict], int]:
    """Run a batch; if that fails, each half by itself, so that only the unit at fault fails.

    Args:
        units: of one key.
        spread: what computes the parts of a long sequence.

    Returns:
        A verdict per unit, and how many runs of the backend failed.
    """
    runner = units[0].job.runner
    try:
        results = runner.run(batch_of(units, spread))
        if len(results) != len(units):
            raise BackendFailed(f"{len(results)} results for {len(units)} sequences")
    except BaseException as error:  # noqa: BLE001 - panics of runtimes need not be an Exception; others must not suffer
        if len(units) == 1:
            return [_as_error(error, units[0])], 1
    else:
        verdicts: list[Verdict] = []
        for unit, tensors in zip(units, results, strict=True):
            try:
                verdicts.append(answer(unit, tensors))
            except Exception as error:  # noqa: BLE001 - as above
                verdicts.append(_as_error(error, unit))
        return verdicts, 0
    # Here the error is gone, and with its traceback the memory of the failed run: it may be what was short.
    half = len(units) // 2
    left, right = compute(units[:half], spread), compute(units[half:], spread)
    return left[0] + right[0], left[1] + right[1] + 1


def _as_error(error: BaseException, unit: Unit) -> AttentionError:
    if isinstance(error, InvalidInput):
        return error.with_traceback(None)  # it holds the frames that computed the batch, with all their arrays
    log.error("a sequence of %d tokens failed", unit.length, exc_info=error)
    return BackendFailed("the computation failed on our side; it has been logged")


class _Shared:
    """Parts of one batch that several threads compute, each the next that nobody has begun.

    Attributes:
        helped_s: what parts took that the batch's own thread did not compute, s.
    """

    def __init__(self, parts: Sequence[Callable[[], None]]) -> None:
        self._parts = deque(parts)
        self._lock = threading.Lock()
        self._begun = 0
        self._over = threading.Condition(self._lock)
        self._error: BaseException | None = None
        self.helped_s = 0.0

    def work(self) -> None:
        """Compute parts until there are none left, in the thread whose batch this is."""
        while self._compute_next(helps=False):
            pass

    def help(self) -> bool:
        """Compute one part in another thread; whether there was one."""
        return self._compute_next(helps=True)

    def _compute_next(self, *, helps: bool) -> bool:
        """Compute the next part, if there is one, and say so."""
        with self._lock:
            if not self._parts:
                return False
            part = self._parts.popleft()
            self._begun += 1
        began, error = time.monotonic(), None
        try:
            part()
        except BaseException as caught:  # noqa: BLE001 - it is raised in the thread whose batch this is
            error = caught
        del part
        with self._lock:
            if error is not None:
                self._error = self._error or error
                self._parts.clear()
            if helps:
                self.helped_s += time.monotonic() - began
            self._begun -= 1
            self._over.notify_all()
        return True

    def wait(self) -> None:
        """Wait for the parts that other threads have begun, and raise what any part raised."""
        with self._lock:
            while self._begun:
                self._over.wait()
            error, self._error = self._error, None
        if error is not None:
            raise error


class ThreadSlots:
    """Compute slots that are threads of this process: runtimes release the interpreter's lock while they compute.

    A long sequence comes in parts, which other threads help to compute: idle slots, and where other processes have
    slots too a thread for each of those, as long as there is an idle core. Batches come first: a thread that helps
    looks, before each part, whether there is one for it, or no core left.
    """

    def __init__(
        self, count: int, loop: asyncio.AbstractEventLoop, *, measures: bool = False, cores: Cores | None = None
    ) -> None:
        """Start the threads.

        Args:
            count: batches at the same time.
            loop: which the threads report to.
            measures: whether small work may do without them.
            cores: of all processes of the service; None if this is the only one, with a core for each batch.
        """
        self.count, self._cores = count, Cores(count) if cores is None else cores
        threads = max(count, self._cores.total)
        self._loop, self._measures = loop, measures
        self._costs: dict[tuple[object, ...], float] = {}
        self._turns = threading.Semaphore(count)
        self._runs: queue.SimpleQueue[tuple[Run, Callable[[Run], None]]] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[Literal["run", "close"] | _Shared] = queue.SimpleQueue()
        """What there is to do, in this order; a run is then the first of those."""
        self._threads = [threading.Thread(target=self._serve, name=f"compute-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """See `Slots.alive`."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def idle(self) -> bool:
        """See `Slots.idle`."""
        return self._cores.idle > 0

    def cost_s(self, unit: Unit) -> float:
        """See `Slots.cost_s`."""
        return self._costs.get(unit.kind, math.inf)

    def start(self, run: Run, done: Callable[[Run], None]) -> None:
        """See `Slots.start`."""
        self._runs.put((run, done))
        self._work.put("run")

    def compute(self, run: Run) -> None:
        """See `Slots.compute`."""
        run.started, busy = time.monotonic(), time.thread_time()
        try:
            with self._cores.computing():
                run.verdicts, run.failures = compute(run.units, self._spread_of(run))
        except BaseException as error:
            log.critical("a compute slot survived %r", error, exc_info=error)
            run.verdicts = [BackendFailed("the computation failed on our side") for _ in run.units]
        run.finished = time.monotonic()
        if self._measures:
            self._remember(run, time.thread_time() - busy)

    def _spread_of(self, run: Run) -> Spread:
        """What computes the parts of a run: others too, where it is known to take long or not known at all."""
        if len(self._threads) == 1 or not self._is_long(run):
            return in_turn

        def spread(parts: Sequence[Callable[[], None]]) -> None:
            run.helped_s += self._share(parts)

        return spread

    def _is_long(self, run: Run) -> bool:
        """Whether it is known to take long, or not known at all."""
        return self.cost_s(run.units[0]) * len(run.units) >= SHARED_S

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until there is less long work under way than there are slots, but not for ever.

        More busy threads than cores help nobody, and each keeps the event loop from its core for a while.
        """
        mine = self._turns.acquire(timeout=TURN_S)
        try:
            yield
        finally:
            if mine:
                self._turns.release()

    @contextmanager
    def team(self) -> Iterator[Team]:
        """Who computes the parts of other work than batches: the thread that calls, and slots while a core is idle.

        Until the context ends, the thread that calls counts as one that computes. It may wait for its turn first.
        """
        with self._turn(), self._cores.computing():
            size = min(len(self._threads), self._cores.idle) + 1
            yield Team(self._share, size) if size > 1 else ALONE

    def _share(self, parts: Sequence[Callable[[], None]]) -> float:
        """Compute parts in the thread that calls and in those that are idle; how long these worked, s."""
        shared = _Shared(parts)
        for _ in range(min(len(self._threads), len(parts)) - 1):
            self._work.put(shared)
        shared.work()
        shared.wait()
        return shared.helped_s

    def _remember(self, run: Run, busy_s: float) -> None:
        """What a unit of the run took of the processor, in all threads: what it waited for others is not its cost.

        Half of it is what was remembered before, and neither half is more than twice the other: what is was a hiccup,
        of the machine or of a first time.
        """
        kind, cost = run.units[0].kind, max(LEAST_S, (busy_s + run.helped_s) / len(run.units))
        if len(self._costs) >= MOST_KINDS:
            self._costs.clear()
        before = self._costs.get(kind, cost)
        self._costs[kind] = (min(cost, 2 * before) + min(before, 2 * cost)) / 2

    def close(self) -> None:
        """See `Slots.close`; what is running goes on to its end."""
        for _ in self._threads:
            self._work.put("close")

    def _serve(self) -> None:
        while (item := self._work.get()) != "close":
            if isinstance(item, _Shared):
                self._help(item)
                del item
                continue
            run, done = self._runs.get()
            with self._turn() if self._measures and self._is_long(run) else nullcontext():
                self.compute(run)
            try:
                self._loop.call_soon_threadsafe(done, run)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            del run, done  # do not hold a batch's memory while waiting for the next

    def _help(self, shared: _Shared) -> None:
        more = True
        while more and self._runs.empty() and self._cores.idle:
            with self._cores.computing():
                more = shared.help()
