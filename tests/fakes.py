"""Stand-ins with which time, threads and runtimes do what a test says, when it says so."""

import heapq
import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from models.types import SequenceInput
from service.messages import Options
from service.packing import Job, Unit
from service.slots import Run, Verdict, compute

EMBED_DIM = 2
"""Width of the embeddings that `unit` makes."""


@dataclass(order=True)
class FakeTimer:
    when: float
    number: int
    callback: Callable = field(compare=False)
    arguments: tuple = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self):
        self.cancelled, self.arguments = True, ()  # it holds nobody in memory, as the real one does not


class FakeClock:
    """Time that passes only in `advance`; it starts at a time that is not 0, as the real one does."""

    def __init__(self, now=1_000.0):
        self.now = now
        self._timers = []
        self._numbers = itertools.count()

    @property
    def timers(self):
        """How many callbacks are still to come."""
        return sum(not timer.cancelled for timer in self._timers)

    def time(self):
        return self.now

    def call_at(self, when, callback, *arguments):
        timer = FakeTimer(when, next(self._numbers), callback, arguments)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon(self, callback):
        return self.call_at(self.now, callback)

    def advance(self, seconds):
        """Let time pass, and call what has become due, in order, each at its own time."""
        end = self.now + seconds
        while self._timers and self._timers[0].when <= end:
            timer = heapq.heappop(self._timers)
            self.now = max(self.now, timer.when)
            if not timer.cancelled:
                timer.callback(*timer.arguments)
        self.now = end

    def oversleep(self, seconds):
        """Let time pass without calling anybody: the loop is busy elsewhere."""
        self.now += seconds


class FakeSlots:
    """Compute slots without threads: a run ends when the test calls `finish`.

    Attributes:
        idle: whether a core is.
        runs: every run that was ever started or computed, in order.
        costs: of units that are small, by their numbers, s.
        on_start: called with each run before it is taken; for checks at the moment of dispatch.
    """

    def __init__(self, clock, count=1):
        self.count, self.alive, self.closed = count, True, False
        self.idle = True
        self.runs: list[Run] = []
        self.costs: dict[float, float] = {}
        self.on_start: Callable[[Run], object] = lambda run: None
        self._clock = clock
        self._busy: list[tuple[Run, Callable[[Run], None]]] = []

    @property
    def busy(self):
        return len(self._busy)

    @property
    def numbers(self):
        """What each run that was ever started holds, as the numbers its units were made with."""
        return [[number_of(unit) for unit in run.units] for run in self.runs]

    def cost_s(self, unit):
        return self.costs.get(number_of(unit), math.inf)

    def compute(self, run):
        self.runs.append(run)
        run.started = run.finished = self._clock.time()
        run.verdicts, run.failures = compute(run.units)

    def start(self, run, done):
        assert self.busy < self.count, "more work than slots"
        self.on_start(run)
        run.started = self._clock.time()
        self.runs.append(run)
        self._busy.append((run, done))

    def finish(self, index=0, *, verdicts: "list[Verdict] | None" = None):
        """End a run, the oldest unless said otherwise: computed here and now, or with the verdicts given."""
        run, done = self._busy.pop(index)
        run.verdicts, run.failures = compute(run.units) if verdicts is None else (verdicts, 0)
        run.finished = self._clock.time()
        done(run)

    def finish_all(self):
        while self._busy:
            self.finish()

    def close(self):
        self.closed = True


class FakeRunner:
    """A layer whose outputs are its inputs, and whose weights are equal for all columns. It counts what it computes.

    Attributes:
        batches: the numbers of each batch it was asked to run.
    """

    def __init__(self, batch_tokens=64):
        self.batch_tokens = batch_tokens
        self.batches = []

    exact = True

    def bucket(self, n):
        return n

    def holds_scores(self, n, wanted):
        return True

    @property
    def computed(self):
        """The numbers of every sequence it was asked to compute."""
        return [number for batch in self.batches for number in batch]

    def run(self, batch):
        self.batches.append([float(x[0, 0]) for x in batch.inputs])
        for group in (batch.masks, batch.biases):
            assert group is None or len({array.shape for array in group}) == 1, "a batch holds arrays of one shape"
        return [self.one(x, batch) for x in batch.inputs]

    def one(self, x, batch):
        n = len(x)
        makers = {"outputs": lambda: x.copy(), "weights": lambda: np.full((1, n, n), 1 / n, np.float32)}
        return {name: makers.get(name, lambda: np.zeros((1, n, n), np.float32))() for name in batch.wanted}

    def warm(self):
        pass


class PaddingRunner(FakeRunner):
    """Computes sequences padded to a multiple of 4 tokens, as a GPU's runners do with other steps."""

    exact = False

    def bucket(self, n):
        return -(-n // 4) * 4


class BrokenRunner(FakeRunner):
    """Raises if one of certain numbers is in the batch."""

    def __init__(self, *numbers, error=RuntimeError, batch_tokens=64):
        super().__init__(batch_tokens)
        self.numbers, self.error = set(numbers), error

    def run(self, batch):
        results = super().run(batch)
        if self.numbers.intersection(self.batches[-1]):
            raise self.error("the device fell over")
        return results


class MiscountingRunner(FakeRunner):
    """Forgets a sequence of every batch of several, and of every batch if `always`."""

    def __init__(self, *, always=False):
        super().__init__()
        self.always = always

    def run(self, batch):
        results = super().run(batch)
        return results[1:] if self.always or len(results) > 1 else results


class OverflowingRunner(FakeRunner):
    """Answers negative numbers with infinity."""

    def one(self, x, batch):
        tensors = super().one(x, batch)
        if x[0, 0] < 0:
            tensors["outputs"][:] = np.inf
        return tensors


class GatedRunner(FakeRunner):
    """Tells when it is at work, and goes on when it is let go. For tests with real threads."""

    def __init__(self, batch_tokens=64):
        super().__init__(batch_tokens)
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def run(self, batch):
        self.entered.release()
        assert self.gate.acquire(timeout=30), "nobody opened the gate"
        return super().run(batch)


class Panic(BaseException):
    """What runtimes raise that think of themselves as beyond an Exception."""


def dying(*numbers, error=Panic):
    """A runner that dies of certain numbers."""
    return BrokenRunner(*numbers, error=error)


def options(**fields):
    return Options(**{"return": ("outputs",), **fields})


def unit(
    number, runner, length=1, *, backend="fake", mask=None, bias=None, is_causal=False, scale=1.0, window=None, **fields
):
    """A sequence all of whose embeddings are `number`, so that its answer can be told from any other."""
    chosen = options(**fields)
    job = Job(runner, backend, chosen, chosen.wanted, is_causal, scale, window)
    inputs = np.full((length, EMBED_DIM), number, np.float32)
    return Unit(job, SequenceInput(inputs, mask, bias), f"/inputs/{number}")


def number_of(unit):
    return float(unit.sequence.inputs[0, 0])


def numbers_of(verdicts):
    """The numbers of answered units, by their outputs; the answer must be of one number throughout."""
    numbers = []
    for answer, _ in verdicts:
        (number,) = set(answer["outputs"].ravel().tolist())
        numbers.append(number)
    return numbers
