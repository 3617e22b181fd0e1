import asyncio
import contextlib
import gc
import logging
import math
import queue
import threading
import weakref
from functools import partial

import numpy as np
import pytest
from fakes import (
    BrokenRunner,
    FakeClock,
    FakeRunner,
    FakeSlots,
    GatedRunner,
    MiscountingRunner,
    OverflowingRunner,
    PaddingRunner,
    Panic,
    dying,
    numbers_of,
    unit,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from models.errors import InvalidInput, NumericOverflow
from service import slots as slots_module
from service.batcher import HERE_S, MEDIUM_S, MOST_HERE_S, MOST_SEQUENCES, PATIENCE_S, SMALL_S, Batcher
from service.clock import LoopClock
from service.cores import Cores
from service.errors import BackendFailed, ClientGone, ConfigurationError, DeadlineExceeded, Draining, QueueFull
from service.lane import ALONE
from service.metrics import Metrics
from service.slots import LEAST_S, SHARED_S, Run, ThreadSlots, compute
from service.tickets import Limits, Ticket, tell

pytestmark = pytest.mark.anyio

LIMITS = {"requests": 1_000, "sequences": 1_000, "tokens": 1_000, "bytes": 1_000, "batch_sequences": 64}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def no_garbage_collector():
    """Only reference counts free memory while this is on: a circle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Bench:
    """A batcher whose time and slots are in the hands of the test."""

    def __init__(self, slots=1, **limits):
        self.clock, self.metrics = FakeClock(), Metrics()
        self.slots = FakeSlots(self.clock, slots)
        self.batcher = Batcher(self.slots, Limits(**LIMITS | limits), self.clock, self.metrics)

    def submit(self, *units, size=0, timeout=10.0):
        return self.batcher.submit(units, size, self.clock.now + timeout)

    def sample(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"attention_{name}", labels)

    def gauges(self):
        """Requests and sequences that wait, bytes and tokens in flight, busy slots."""
        names = ("queue_requests", "queue_sequences", "inflight_bytes", "inflight_tokens", "busy_slots")
        return tuple(self.sample(name) for name in names)


def answer_of(ticket):
    """The numbers a ticket was answered with, now."""
    return numbers_of(ticket.future.result())


def error_of(ticket):
    return type(ticket.future.exception())


# ---- dispatch


async def test_a_lone_request_is_dispatched_at_once():
    """Window batchers make it wait for company that does not come: 2 to 50 ms."""
    bench, runner = Bench(), FakeRunner()

    ticket = bench.submit(unit(7, runner))

    assert bench.slots.numbers == [[7]]
    assert not ticket.queued
    bench.slots.finish()
    assert answer_of(ticket) == [7]
    assert ticket.started == ticket.submitted


async def test_every_free_slot_is_used_before_anything_waits():
    """Work-conserving: a slot that idles beside a queue is latency for nothing."""
    bench, runner = Bench(slots=2), FakeRunner()

    for number in (1, 2, 3):
        bench.submit(unit(number, runner))

    assert bench.slots.numbers == [[1], [2]]
    bench.slots.finish(1)
    assert bench.slots.numbers == [[1], [2], [3]]


async def test_a_batch_forms_while_all_slots_are_busy():
    """Busy time is what fills batches, no timer."""
    bench, runner = Bench(), FakeRunner()
    tickets = [bench.submit(unit(number, runner)) for number in (1, 2, 3, 4)]

    bench.slots.finish()

    assert bench.slots.numbers == [[1], [2, 3, 4]]
    bench.slots.finish()
    assert [answer_of(ticket) for ticket in tickets] == [[1], [2], [3], [4]]


OTHER = FakeRunner()
ONE = np.ones((2, 2), np.float32)
MASK = np.ones((2, 2), bool)


@pytest.mark.parametrize(
    "different",
    [
        {"length": 3},
        {"runner": OTHER},
        {"return": ("weights",)},
        {"is_causal": True},
        {"mask": MASK},
        {"bias": ONE},
        {"scale": 2.0},
    ],
    ids=lambda different: next(iter(different)),
)
async def test_a_batch_holds_one_key_only(different):
    """What differs in length, layer, graph or scale cannot be stacked, and must not change the others."""
    bench = Bench()
    same = {"runner": FakeRunner(), "length": 2}
    bench.submit(unit(1, **same))

    for number in (2, 3, 4):
        bench.submit(unit(number, **same | (different if number == 3 else {})))
    bench.slots.finish()
    bench.slots.finish()

    assert bench.slots.numbers == [[1], [2, 4], [3]]


async def test_biases_for_one_head_and_for_several_do_not_meet_in_a_batch():
    """They cannot be stacked; both are (·, n, n), so the number of axes does not tell them apart."""
    bench, runner = Bench(), FakeRunner()
    bench.submit(unit(1, runner))
    shapes = {2: (1, 2, 2), 3: (4, 2, 2), 4: (2, 2), 5: (4, 2, 2)}

    tickets = [bench.submit(unit(n, runner, 2, bias=np.ones(shape, np.float32))) for n, shape in shapes.items()]
    bench.slots.finish_all()

    assert bench.slots.numbers == [[1], [2, 4], [3, 5]]
    assert [answer_of(ticket) for ticket in tickets] == [[2], [3], [4], [5]]
    assert bench.sample("batch_failures_total", backend="fake") is None


async def test_lengths_of_one_bucket_share_a_batch_and_their_padding_is_counted():
    """What a GPU computes for nothing is to be seen."""
    bench, runner, exact = Bench(), PaddingRunner(), FakeRunner()
    bench.submit(unit(1, exact, 3))
    for number, length in ((2, 5), (3, 9), (4, 7), (5, 8)):
        bench.submit(unit(number, runner, length))

    bench.slots.finish()
    assert bench.sample("padded_tokens_total", backend="fake") == 0
    bench.slots.finish_all()

    assert bench.slots.numbers == [[1], [2, 4, 5], [3]]
    assert bench.sample("padded_tokens_total", backend="fake") == 3 + 1 + 0 + 3
    assert bench.sample("batch_tokens_sum", backend="fake") == 3 + 5 + 9 + 7 + 8


async def test_one_key_is_served_first_in_first_out():
    """Across batches too: nobody overtakes."""
    bench, runner = Bench(batch_sequences=2), FakeRunner()
    for number in range(7):
        bench.submit(unit(number, runner))

    bench.slots.finish_all()

    assert bench.slots.numbers == [[0], [1, 2], [3, 4], [5, 6]]


async def test_the_oldest_of_all_leads_the_next_batch():
    """Several keys take turns by age, not by the size of their queue."""
    bench, a, b, c = Bench(batch_sequences=2), FakeRunner(), FakeRunner(), FakeRunner()
    for number, runner in enumerate((a, b, a, a, c, a, b, c)):
        bench.submit(unit(number, runner))

    bench.slots.finish_all()

    assert bench.slots.numbers == [[0], [1, 6], [2, 3], [4, 7], [5]]


async def test_no_key_starves_under_a_stream_of_other_work():
    """A rare length must not wait for a common one to run dry: it never does."""
    bench, common, rare = Bench(batch_sequences=2), FakeRunner(), FakeRunner()
    for number in (1, 2, 3):
        bench.submit(unit(number, common))
    ticket = bench.submit(unit(-1, rare))

    for number in range(4, 100, 3):
        for more in range(3):
            bench.submit(unit(number + more, common))
        bench.slots.finish()
        if ticket.future.done():
            break

    assert bench.slots.numbers[:3] == [[1], [2, 3], [-1]]


async def test_a_key_does_not_keep_the_place_of_its_cancelled_head():
    """Else whoever queues behind a request that left would overtake everybody."""
    bench, a, b = Bench(), FakeRunner(), FakeRunner()
    bench.submit(unit(0, a))
    gone = bench.submit(unit(1, a))
    bench.submit(unit(2, b))
    bench.submit(unit(3, a))

    bench.batcher.release(gone)
    bench.slots.finish_all()

    assert bench.slots.numbers == [[0], [2], [3]]


async def test_a_batch_is_limited_by_sequences():
    bench, runner = Bench(batch_sequences=3), FakeRunner(batch_tokens=1_000)
    for number in range(8):
        bench.submit(unit(number, runner))

    bench.slots.finish_all()

    assert [len(numbers) for numbers in bench.slots.numbers] == [1, 3, 3, 1]


@pytest.mark.parametrize(("length", "together"), [(1, 8), (2, 4), (3, 2), (4, 2), (5, 1), (8, 1), (9, 1)])
async def test_a_batch_is_limited_by_the_tokens_that_pay(length, together):
    """Above that, company only delays; a sequence that is longer by itself is computed alone."""
    bench, runner = Bench(), FakeRunner(batch_tokens=8)
    for number in range(10):
        bench.submit(unit(number, runner, length))

    bench.slots.finish()

    assert len(bench.slots.runs[1].units) == together


async def test_a_request_of_several_sequences_is_answered_in_its_own_order():
    """The runs may end in any order; MLServer gave one caller another's rows."""
    bench, runner = Bench(slots=3, batch_sequences=1), FakeRunner()
    ticket = bench.submit(*(unit(number, runner, number) for number in (3, 1, 2)))
    other = bench.submit(unit(9, runner))

    bench.slots.finish(2)
    bench.slots.finish(0)
    assert not ticket.future.done()
    bench.slots.finish_all()

    assert answer_of(ticket) == [3, 1, 2]
    assert [len(answer["outputs"]) for answer, _ in ticket.future.result()] == [3, 1, 2]
    assert answer_of(other) == [9]


async def test_sequences_of_different_requests_share_a_batch():
    bench, runner = Bench(), FakeRunner()
    bench.submit(unit(0, runner))
    one, two = bench.submit(unit(1, runner), unit(2, runner)), bench.submit(unit(3, runner), unit(4, runner))

    bench.slots.finish()
    bench.slots.finish()

    assert bench.slots.numbers == [[0], [1, 2, 3, 4]]
    assert (answer_of(one), answer_of(two)) == ([1, 2], [3, 4])


async def test_a_ticket_spans_from_its_first_start_to_its_last_end():
    """These are the `queue` and `compute` of Server-Timing."""
    bench, runner = Bench(batch_sequences=1), FakeRunner()
    bench.submit(unit(0, runner))
    ticket = bench.submit(unit(1, runner), unit(2, runner))

    for _ in range(3):
        bench.clock.advance(1)
        bench.slots.finish()

    assert (ticket.started - ticket.submitted, ticket.finished - ticket.submitted) == (1, 3)


# ---- limits

WITHIN = {
    "requests": [([1], 0)] * 3,
    "sequences": [([1, 1], 0), ([1], 0)],
    "tokens": [([1], 0), ([2], 0)],
    "bytes": [([1], 1), ([1], 2)],
}
"""For a limit of 3 of each kind, requests (lengths, bytes) that fit together, and leave no room."""


@pytest.mark.parametrize("kind", WITHIN)
async def test_a_limit_is_exact_and_holds_until_release(kind):
    """Not one less, not one more; an answer that has not been sent takes its memory still."""
    bench, runner = Bench(**{kind: 3}), FakeRunner()
    tickets = [
        bench.submit(*(unit(1, runner, length) for length in lengths), size=size) for lengths, size in WITHIN[kind]
    ]

    with pytest.raises(QueueFull, match=f"3 {kind} are in flight and 1 more would pass the limit of 3"):
        bench.submit(unit(2, runner), size=1)
    bench.slots.finish_all()
    with pytest.raises(QueueFull):
        bench.submit(unit(2, runner), size=1)
    assert bench.sample("rejected_total", reason=kind) == 2

    bench.batcher.release(tickets[0])
    bench.submit(unit(2, runner), size=1)


@pytest.mark.parametrize("kind", ["sequences", "tokens", "bytes"])
async def test_a_request_is_accepted_whole_or_not_at_all(kind):
    """The half of a request that would fit is of no use to anyone (text-embeddings-inference#470)."""
    bench, runner = Bench(**{kind: 3}), FakeRunner()
    bench.submit(unit(1, runner), unit(1, runner), size=2)
    before = bench.gauges()

    with pytest.raises(QueueFull):
        bench.submit(unit(2, runner), unit(3, runner), size=2)

    assert bench.gauges() == before
    assert bench.clock.timers == 1
    bench.slots.finish_all()
    assert {2, 3}.isdisjoint(runner.computed)


async def test_cancelled_work_that_runs_counts_until_it_ends():
    """Its memory is in use still: BentoML#5642 freed the place at the 504, and took more than it could hold."""
    bench, runner = Bench(bytes=10), FakeRunner()
    ticket = bench.submit(unit(1, runner), size=10)

    bench.batcher.release(ticket)
    with pytest.raises(QueueFull):
        bench.submit(unit(2, runner), size=1)
    assert bench.gauges() == (0, 0, 10, 1, 1)

    bench.slots.finish()
    bench.submit(unit(3, runner), size=10)


async def test_a_request_that_is_released_while_queued_counts_no_more():
    bench, runner = Bench(requests=2), FakeRunner()
    bench.submit(unit(1, runner))
    ticket = bench.submit(unit(2, runner))

    bench.batcher.release(ticket)

    bench.submit(unit(3, runner))


async def test_releasing_twice_counts_once():
    bench, runner = Bench(), FakeRunner()
    ticket = bench.submit(unit(1, runner), size=5)
    other = bench.submit(unit(2, runner), size=7)
    bench.slots.finish_all()

    bench.batcher.release(ticket)
    bench.batcher.release(ticket)

    assert bench.gauges() == (0, 0, 7, 1, 0)
    bench.batcher.release(other)


def retry_after(bench):
    with pytest.raises(QueueFull) as refused:
        bench.submit(*[unit(0, FakeRunner())] * 1_001)
    return refused.value.retry_after_s


async def test_retry_after_grows_with_the_backlog_and_is_bounded():
    """It is the time the work in flight will take, at the pace so far; a constant would bring all back at once."""
    bench, runner = Bench(), FakeRunner()
    assert retry_after(bench) == 1
    ticket = bench.submit(unit(1, runner))
    bench.clock.advance(2)
    bench.slots.finish()
    bench.batcher.release(ticket)
    waits = []

    for number in range(20):
        bench.submit(unit(number, runner))
        waits.append(retry_after(bench))

    assert waits == [min(30, 2 * tokens) for tokens in range(1, 21)]


async def test_retry_after_counts_on_every_slot():
    bench, runner = Bench(slots=4), FakeRunner()
    ticket = bench.submit(unit(1, runner))
    bench.clock.advance(2)
    bench.slots.finish()
    bench.batcher.release(ticket)

    bench.submit(*(unit(number, runner) for number in range(10)))

    assert retry_after(bench) == 5


# ---- deadlines


async def test_a_queued_request_expires_by_itself_and_is_never_computed():
    """Triton lets it wait for the run before it; infinity computes it for nobody."""
    bench, runner = Bench(), FakeRunner()
    running = bench.submit(unit(1, runner))
    ticket = bench.submit(unit(2, runner), timeout=1)

    bench.clock.advance(0.999)
    assert not ticket.future.done()
    bench.clock.advance(0.001)
    assert error_of(ticket) is DeadlineExceeded
    assert str(ticket.future.exception()) == "not done in time: after 1000 ms the request was still queued"

    bench.slots.finish_all()
    assert runner.computed == [1]
    assert answer_of(running) == [1]
    assert bench.sample("expired_total") == 1


async def test_a_running_request_is_answered_at_its_deadline_and_its_slot_freed_when_the_run_ends():
    """The caller must not wait for a device that hangs, and the device must not get more than it can do."""
    bench, runner = Bench(), FakeRunner()
    ticket = bench.submit(unit(1, runner), timeout=1)
    waiting = bench.submit(unit(2, runner))

    bench.clock.advance(1)

    assert str(ticket.future.exception()) == "not done in time: after 1000 ms the request was being computed"
    bench.batcher.release(ticket)
    assert bench.slots.numbers == [[1]]
    assert bench.gauges() == (1, 1, 0, 2, 1)
    bench.slots.finish()
    assert bench.slots.numbers == [[1], [2]]
    assert bench.gauges() == (0, 0, 0, 1, 1)
    bench.slots.finish()
    assert answer_of(waiting) == [2]


@pytest.mark.parametrize("late_by", [0, 1])
async def test_a_deadline_that_has_passed_is_refused_at_once(late_by):
    bench, runner = Bench(), FakeRunner()

    with pytest.raises(DeadlineExceeded):
        bench.submit(unit(1, runner), timeout=-late_by)

    assert bench.slots.runs == []
    assert bench.gauges() == (0, 0, 0, 0, 0)
    assert bench.clock.timers == 0


async def test_the_deadline_is_checked_again_at_dispatch():
    """A loop that was busy calls its timers late; the device must not pay for that."""
    bench, runner = Bench(), FakeRunner()
    bench.submit(unit(1, runner), timeout=99)
    ticket = bench.submit(unit(2, runner), timeout=1)

    bench.clock.oversleep(1)
    bench.slots.finish()

    assert error_of(ticket) is DeadlineExceeded
    assert bench.gauges() == (0, 0, 0, 2, 0)
    bench.clock.advance(1)
    assert runner.computed == [1]
    assert bench.sample("expired_total") == 1


async def test_expired_work_in_the_middle_of_a_queue_is_left_out_of_the_batch():
    bench, a, b = Bench(), FakeRunner(), FakeRunner()
    bench.submit(unit(0, a))
    late = [bench.submit(unit(n, r), timeout=1) for n, r in ((1, a), (5, b))]
    good = [bench.submit(unit(n, r)) for n, r in ((2, b), (3, a), (4, a))]
    late.append(bench.submit(unit(6, a), timeout=1))
    good.append(bench.submit(unit(7, a)))

    bench.clock.oversleep(1)
    bench.slots.finish_all()

    assert bench.slots.numbers == [[0], [2], [3, 4, 7]]
    assert [error_of(ticket) for ticket in late] == [DeadlineExceeded] * 3
    assert [answer_of(ticket) for ticket in good] == [[2], [3], [4], [7]]


@pytest.mark.parametrize("end", ["its time", "drain", "close"])
async def test_one_timer_serves_all_deadlines_and_outlives_those_who_need_none_any_more(end):
    bench, runner = Bench(), FakeRunner()
    tickets = [bench.submit(unit(1, runner)), bench.submit(unit(2, runner)), bench.submit(unit(3, runner))]

    bench.batcher.cancel(tickets[2], ClientGone("gone"))
    bench.slots.finish_all()
    assert bench.clock.timers == 1, "one serves all of them"
    for ticket in tickets:
        bench.batcher.release(ticket)
    bench.clock.now += 1
    late = bench.submit(unit(4, runner))
    assert bench.clock.timers == 1, "and those that come later"

    if end == "its time":
        bench.clock.advance(9)
        assert not late.future.done()
        assert bench.clock.timers == 1
        bench.clock.advance(1)
        assert error_of(late) is DeadlineExceeded
    else:
        bench.slots.finish_all()
        bench.batcher.release(late)
        await bench.batcher.drain() if end == "drain" else bench.batcher.close()
    assert bench.clock.timers == 0


async def test_each_request_ends_at_its_own_deadline():
    """One timer serves all, set to the first deadline there is, which may belong to a request that ends before."""
    bench, runner = Bench(), FakeRunner()
    bench.submit(unit(0, runner))  # keeps the slot
    late, early, soon, middle = (bench.submit(unit(1, runner), timeout=s) for s in (9, 2, 1, 3))
    bench.batcher.release(soon)

    ended = []
    for _ in range(10):
        ended.append([ticket.ended for ticket in (early, middle, late)])
        bench.clock.advance(1)

    assert ended == [[second >= 2, second >= 3, second >= 9] for second in range(10)]


async def test_an_expired_request_leaves_nothing_of_itself_in_the_queue():
    """Half of it ran; the other half is for nobody any more."""
    bench, runner = Bench(batch_sequences=1), FakeRunner()
    ticket = bench.submit(unit(1, runner), unit(2, runner), unit(3, runner), timeout=1)

    bench.clock.advance(1)
    bench.slots.finish_all()

    assert error_of(ticket) is DeadlineExceeded
    assert runner.computed == [1]


# ---- cancellation


async def test_cancelled_work_is_dropped_from_the_queue_and_never_computed():
    """Ray and LitServe compute it for nobody, which makes a retry storm worse."""
    bench, runner = Bench(), FakeRunner()
    tickets = [bench.submit(unit(number, runner)) for number in (1, 2, 3)]

    bench.batcher.cancel(tickets[1], ClientGone("gone"))

    assert error_of(tickets[1]) is ClientGone
    assert bench.gauges()[:2] == (1, 1)
    bench.slots.finish_all()
    assert runner.computed == [1, 3]
    assert bench.sample("cancelled_total") == 1


async def test_cancelled_work_gives_its_memory_back_at_once(no_garbage_collector):
    """Not when its turn comes, and without the garbage collector's help (ray#21425)."""
    bench, runner = Bench(), FakeRunner()
    bench.submit(unit(1, runner))
    units = [unit(2, runner), unit(3, runner, 2)]
    ticket = bench.submit(*units)
    arrays = [weakref.ref(u.sequence.inputs) for u in units]
    del units
    assert all(array() is not None for array in arrays)

    bench.batcher.cancel(ticket, ClientGone("gone"))

    assert [array() for array in arrays] == [None, None]


async def test_requests_that_left_leave_nothing_behind_while_a_slot_is_busy(no_garbage_collector):
    """A storm of clients that give up during one long run must not grow the queue."""
    bench, runner = Bench(), FakeRunner()
    bench.submit(unit(1, runner))

    def tickets_in_memory():
        return sum(type(thing) is Ticket for thing in gc.get_objects())

    before = tickets_in_memory()
    for number in range(50):
        bench.batcher.release(bench.submit(unit(number, FakeRunner())))

    assert tickets_in_memory() == before


async def test_running_work_is_not_waited_for():
    bench, runner = Bench(), FakeRunner()
    ticket, other = bench.submit(unit(1, runner)), bench.submit(unit(2, runner))

    bench.batcher.cancel(ticket, ClientGone("gone"))

    assert error_of(ticket) is ClientGone
    assert bench.slots.busy == 1
    bench.slots.finish_all()
    assert error_of(ticket) is ClientGone
    assert answer_of(other) == [2]


async def test_the_queued_part_of_a_cancelled_request_is_never_computed():
    bench, runner = Bench(batch_sequences=1), FakeRunner()
    ticket = bench.submit(unit(1, runner), unit(2, runner))

    bench.batcher.release(ticket)
    bench.slots.finish_all()

    assert runner.computed == [1]
    assert bench.gauges() == (0, 0, 0, 0, 0)


async def test_work_whose_task_was_cancelled_is_never_computed():
    """Cancelling a task cancels the future it awaits; what is queued must go with it."""
    bench, runner = Bench(), FakeRunner()
    bench.submit(unit(1, runner), size=1)

    async def request():
        ticket = bench.submit(unit(2, runner), size=2)
        try:
            await ticket.future
        finally:
            bench.batcher.release(ticket)

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    assert bench.gauges()[:2] == (1, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert bench.gauges() == (0, 0, 1, 1, 1)
    assert bench.clock.timers == 1
    bench.slots.finish_all()
    assert runner.computed == [1]


async def test_work_whose_task_was_cancelled_while_it_ran_is_thrown_away(caplog):
    bench, runner = Bench(), FakeRunner()
    ticket = bench.submit(unit(1, runner))
    ticket.future.cancel()

    bench.slots.finish()
    bench.batcher.release(ticket)

    assert bench.gauges() == (0, 0, 0, 0, 0)
    assert not caplog.records


async def test_cancelling_twice_or_after_the_answer_changes_nothing():
    bench, runner = Bench(), FakeRunner()
    answered, queued = bench.submit(unit(1, runner)), bench.submit(unit(2, runner))

    for _ in range(2):
        bench.batcher.cancel(queued, ClientGone("gone"))
    bench.slots.finish_all()
    bench.batcher.cancel(answered, DeadlineExceeded("late"))

    assert answer_of(answered) == [1]
    assert (bench.sample("cancelled_total"), bench.sample("expired_total")) == (1, 0)


async def test_releasing_an_unanswered_request_abandons_it():
    """A handler that fails on the way releases in `finally`: its work must not be computed."""
    bench, runner = Bench(), FakeRunner()
    bench.submit(unit(1, runner))
    ticket = bench.submit(unit(2, runner))
    future = ticket.future

    bench.batcher.release(ticket)

    assert isinstance(future.exception(), ClientGone)
    assert bench.sample("cancelled_total") == 1


async def test_a_request_that_failed_frees_its_memory_when_it_is_released(no_garbage_collector):
    """The error holds the frames that saw it, and they hold the request; that must not become a circle."""
    bench, arrays = Bench(), []

    async def route():
        sequence = unit(2, FakeRunner())
        arrays.append(weakref.ref(sequence.sequence.inputs))
        ticket = bench.submit(sequence, timeout=1)
        bench.clock.advance(1)
        try:
            await ticket.future
        finally:
            bench.batcher.release(ticket)

    bench.submit(unit(1, FakeRunner()))
    with contextlib.suppress(DeadlineExceeded):
        await route()

    assert arrays[0]() is None


# ---- failures


async def test_a_failing_batch_is_bisected_so_that_only_the_sequence_at_fault_fails():
    """In LitServe and mosec all eight get a 500."""
    bench, runner = Bench(), BrokenRunner(5)
    bench.submit(unit(100, runner))
    tickets = [bench.submit(unit(number, runner)) for number in range(8)]

    bench.slots.finish_all()

    assert error_of(tickets[5]) is BackendFailed
    assert [answer_of(tickets[i]) for i in (0, 1, 2, 3, 4, 6, 7)] == [[0], [1], [2], [3], [4], [6], [7]]
    assert runner.batches[1:] == [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7]]
    assert bench.sample("batch_failures_total", backend="fake") == 4  # log2(8), and the sequence itself


async def test_every_sequence_at_fault_fails_and_no_other():
    bench, runner = Bench(), BrokenRunner(1, 2, 6)
    bench.submit(unit(100, runner))
    tickets = [bench.submit(unit(number, runner)) for number in range(7)]

    bench.slots.finish_all()

    failed = [i for i, ticket in enumerate(tickets) if ticket.future.exception()]
    assert failed == [1, 2, 6]
    assert [answer_of(tickets[i]) for i in (0, 3, 4, 5)] == [[0], [3], [4], [5]]


@pytest.mark.parametrize(
    "error", [RuntimeError, MemoryError, Panic, SystemExit, KeyboardInterrupt, ConfigurationError, StopIteration]
)
async def test_whatever_a_runner_raises_one_sequence_fails_and_no_other(error, caplog):
    """Panics of native runtimes need not be an Exception. The cause goes to the log, never to the caller."""
    bench, runner = Bench(), dying(2, error=error)
    bench.submit(unit(0, runner))
    tickets = [bench.submit(unit(number, runner)) for number in (1, 2, 3)]

    bench.slots.finish_all()

    assert [answer_of(tickets[0]), answer_of(tickets[2])] == [[1], [3]]
    assert type(tickets[1].future.exception()) is BackendFailed
    assert str(tickets[1].future.exception()) == "the computation failed on our side; it has been logged"
    assert [record.exc_info[0] for record in caplog.records] == [error]


async def test_a_wrong_number_of_results_gives_nobody_another_ones_answer():
    """MLServer splits by position whatever comes, and answers with others' numbers."""
    bench, runner = Bench(), MiscountingRunner()
    bench.submit(unit(0, runner))
    tickets = [bench.submit(unit(number, runner)) for number in (1, 2, 3)]

    bench.slots.finish_all()

    assert [answer_of(ticket) for ticket in tickets] == [[1], [2], [3]]
    assert bench.sample("batch_failures_total", backend="fake") == 2


async def test_a_wrong_number_of_results_for_one_sequence_fails_it():
    bench = Bench()
    ticket = bench.submit(unit(1, MiscountingRunner(always=True)))

    bench.slots.finish()

    assert error_of(ticket) is BackendFailed


async def test_a_sequence_that_overflows_fails_alone():
    """Its neighbours' numbers are right; the run is not tried again."""
    bench, runner = Bench(), OverflowingRunner()
    bench.submit(unit(0, runner))
    tickets = [bench.submit(unit(number, runner)) for number in (1, -2, 3)]

    bench.slots.finish_all()

    assert error_of(tickets[1]) is NumericOverflow
    assert tickets[1].future.exception().fields[0].pointer == "/inputs/-2"
    assert [answer_of(tickets[0]), answer_of(tickets[2])] == [[1], [3]]
    assert runner.batches == [[0], [1, -2, 3]]


class Nonsense(FakeRunner):
    """Answers the number 2 with something that is no tensor."""

    def one(self, x, batch):
        return {"outputs": None} if x[0, 0] == 2 else super().one(x, batch)


async def test_a_result_that_makes_no_answer_fails_alone_and_is_logged(caplog):
    bench, runner = Bench(), Nonsense()
    bench.submit(unit(0, runner))
    tickets = [bench.submit(unit(number, runner)) for number in (1, 2, 3)]

    bench.slots.finish_all()

    assert error_of(tickets[1]) is BackendFailed
    assert [answer_of(tickets[0]), answer_of(tickets[2])] == [[1], [3]]
    assert [record.exc_info[0] for record in caplog.records] == [AttributeError]


async def test_a_request_fails_as_soon_as_one_of_its_sequences_does():
    """It gets no answer any more: the rest of it is not computed."""
    bench, runner = Bench(batch_sequences=1), BrokenRunner(2)
    ticket = bench.submit(*(unit(number, runner) for number in (1, 2, 3, 4)))
    other = bench.submit(unit(5, runner))

    bench.slots.finish()
    bench.slots.finish()

    assert error_of(ticket) is BackendFailed
    bench.slots.finish_all()
    assert runner.computed == [1, 2, 5]
    assert answer_of(other) == [5]


class Hungry(FakeRunner):
    """Runs out of memory on batches of several, and notes whether what it took last time is free again."""

    def __init__(self):
        super().__init__()
        self.taken, self.free = None, []

    def run(self, batch):
        if self.taken is not None:
            self.free.append(self.taken() is None)
        workspace = np.zeros(1_000)
        self.taken = weakref.ref(workspace)
        if len(batch.inputs) > 1:
            raise MemoryError
        return super().run(batch)


def test_the_memory_of_a_failed_run_is_free_before_its_halves_are_tried(no_garbage_collector):
    """Memory may be what was short: the error's traceback holds it."""
    runner = Hungry()

    verdicts, failures = compute([unit(number, runner) for number in (1, 2, 3, 4)])

    assert numbers_of(verdicts) == [1, 2, 3, 4]
    assert failures == 3
    assert runner.free == [True] * 6


@pytest.mark.parametrize(("runner", "number"), [(OverflowingRunner(), -1), (BrokenRunner(1), 1)])
def test_an_error_does_not_keep_the_batch_in_memory(runner, number, no_garbage_collector, caplog):
    """It lives until its caller has its answer, and a caller's mistakes must not fill the memory."""
    caplog.set_level(logging.CRITICAL + 1)  # records hold the error too
    units = [unit(number, runner), unit(5, runner)]
    arrays = [weakref.ref(u.sequence.inputs) for u in units]

    verdicts, _ = compute(units)
    del units

    assert isinstance(verdicts[0], InvalidInput | BackendFailed)
    assert [array() for array in arrays] == [None, None]


async def test_a_batch_that_cannot_be_measured_is_answered_all_the_same(caplog):
    bench, runner = Bench(), FakeRunner()
    ticket = bench.submit(unit(1, runner, backend=None))
    bench.metrics.batch_tokens_of = None

    bench.slots.finish()

    assert answer_of(ticket) == [1]
    assert "a batch could not be measured" in caplog.text


async def test_a_waiter_that_cannot_be_told_does_not_stop_the_others(caplog):
    """Every waiter is guarded by itself, and the slot is used again."""
    bench, runner = Bench(), FakeRunner()
    bench.submit(unit(0, runner))
    tickets = [bench.submit(unit(number, runner)) for number in (1, 2, 3)]
    bench.slots.finish()
    later = bench.submit(unit(4, runner))

    tickets[0].verdicts = ()
    bench.slots.finish_all()

    assert [answer_of(ticket) for ticket in (*tickets[1:], later)] == [[2], [3], [4]]
    assert "a verdict could not be delivered" in caplog.text


async def test_a_callback_of_a_caller_that_raises_stops_nothing():
    bench, runner, seen = Bench(), FakeRunner(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))

    def broken(_):
        raise RuntimeError("no")

    ticket, later = bench.submit(unit(1, runner)), bench.submit(unit(2, runner))
    ticket.future.add_done_callback(broken)
    bench.slots.finish()
    await asyncio.sleep(0)

    assert [str(error) for error in seen] == ["no"]
    bench.slots.finish()
    assert answer_of(later) == [2]


async def test_those_who_wait_for_a_batch_are_called_in_one_go_and_one_that_fails_stops_nothing(caplog):
    bench, runner, seen = Bench(), FakeRunner(), []
    first, *others = [bench.submit(unit(number, runner)) for number in range(1, 5)]
    for ticket in (first, *others):
        ticket.when_done(lambda ticket=ticket: seen.append((*answer_of(ticket), bench.slots.numbers[-1])) or 1 / 0)
    bench.slots.finish()
    later = bench.submit(unit(5, runner))
    bench.slots.finish()

    # Without a turn of the event loop, and when the next batch has been started.
    assert seen == [(1, [2, 3, 4]), (2, [5]), (3, [5]), (4, [5])]
    assert caplog.messages == ["a waiter failed"] * 4
    bench.slots.finish()
    assert answer_of(later) == [5]


def test_what_waiters_give_back_is_called_when_all_of_them_have_been(caplog):
    called = []

    def waiter(name, *, fails=False, fails_later=False):
        def rest():
            called.append(f"the rest of {name}")
            if fails_later:
                raise ValueError(name)

        def wait():
            called.append(name)
            if fails:
                raise ValueError(name)
            return None if name == "b" else rest

        return wait

    tell([waiter("a", fails_later=True), waiter("b"), waiter("c", fails=True), waiter("d")])

    assert called == ["a", "b", "c", "d", "the rest of a", "the rest of d"]
    assert caplog.messages == ["a waiter failed"] * 2


@pytest.mark.parametrize("how", ["cancel", "expire", "close", "answer"])
@pytest.mark.parametrize("late", [False, True])
async def test_who_waits_is_called_once_whatever_ends_the_request(how, late, no_garbage_collector):
    """And not held any more: it may hold the ticket."""
    bench, told = Bench(), []
    ticket = bench.submit(unit(1, FakeRunner()), timeout=1)
    ways = {
        "cancel": lambda: bench.batcher.cancel(ticket, ClientGone("gone")),
        "expire": lambda: bench.clock.advance(1),
        "close": lambda: bench.batcher.close(),
        "answer": lambda: bench.slots.finish_all(),
    }

    def waiter():
        told.append(ticket.future.done())

    held = weakref.ref(waiter)
    if late:
        ways[how]()
    ticket.when_done(waiter)
    assert not told, "not before it may be used"
    del waiter
    for way in (how, *ways):
        ways[way]()
    bench.clock.advance(0)
    await asyncio.sleep(0)

    assert told == [True]
    assert held() is None


@pytest.mark.parametrize("how", ["cancel", "expire", "close", "answer"])
async def test_a_future_is_completed_exactly_once(how, caplog):
    """What ended a request first is what its caller hears; a late result disturbs nobody."""
    bench, runner = Bench(), FakeRunner()
    ticket = bench.submit(unit(1, runner), timeout=1)
    told = []
    ticket.future.add_done_callback(told.append)
    ways = {
        "cancel": lambda: bench.batcher.cancel(ticket, ClientGone("gone")),
        "expire": lambda: bench.clock.advance(1),
        "close": lambda: bench.batcher.close(),
        "answer": lambda: bench.slots.finish_all(),
    }
    expected = {"cancel": ClientGone, "expire": DeadlineExceeded, "close": Draining, "answer": type(None)}

    for way in (how, *ways):
        ways[way]()

    assert error_of(ticket) is expected[how]
    await asyncio.sleep(0)
    assert told == [ticket.future]
    assert not caplog.records


# ---- the end


async def test_drain_refuses_new_work_and_waits_for_what_was_accepted():
    """Accepted means answered, and the answer sent: released."""
    bench, runner = Bench(), FakeRunner()
    tickets = [bench.submit(unit(1, runner)), bench.submit(unit(2, runner))]
    draining = asyncio.create_task(bench.batcher.drain())
    await asyncio.sleep(0)

    with pytest.raises(Draining) as refused:
        bench.submit(unit(3, runner))
    assert refused.value.retry_after_s == 1
    assert bench.sample("rejected_total", reason="draining") == 1
    bench.slots.finish_all()
    assert [answer_of(ticket) for ticket in tickets] == [[1], [2]]
    bench.batcher.release(tickets[0])
    await asyncio.sleep(0)
    assert not draining.done()
    bench.batcher.release(tickets[1])
    await draining


async def test_drain_waits_for_work_that_runs_for_nobody():
    """The slot is in use still: closing the runtime under it would crash."""
    bench, runner = Bench(), FakeRunner()
    bench.batcher.release(bench.submit(unit(1, runner)))
    draining = asyncio.create_task(bench.batcher.drain())
    await asyncio.sleep(0)

    assert not draining.done()
    bench.slots.finish()
    await draining


async def test_draining_twice_or_when_idle_returns_at_once():
    bench, runner = Bench(), FakeRunner()
    ticket = bench.submit(unit(1, runner))
    bench.slots.finish()
    bench.batcher.release(ticket)

    await bench.batcher.drain()
    await bench.batcher.drain()

    with pytest.raises(Draining):
        bench.submit(unit(1, runner))


async def test_close_ends_what_waits_and_stops_the_slots():
    """Whoever still waits hears why, at once."""
    bench, runner = Bench(), FakeRunner()
    tickets = [bench.submit(unit(1, runner)), bench.submit(unit(2, runner))]

    bench.batcher.close()
    bench.batcher.close()

    assert [error_of(ticket) for ticket in tickets] == [Draining, Draining]
    assert bench.slots.closed
    bench.slots.finish_all()
    assert runner.computed == [1]
    with pytest.raises(Draining):
        bench.submit(unit(3, runner))


# ---- what can be seen from outside


async def test_the_oldest_run_tells_how_long_a_device_has_been_at_it():
    """Readiness depends on it: a device that hangs must not look healthy."""
    bench, runner = Bench(slots=2), FakeRunner()
    assert bench.batcher.oldest_run_s() == 0
    bench.submit(unit(1, runner))
    bench.clock.advance(3)
    bench.submit(unit(2, runner))
    bench.clock.advance(2)

    assert bench.batcher.oldest_run_s() == 5
    bench.slots.finish(0)
    assert bench.batcher.oldest_run_s() == 2
    bench.slots.finish(0)
    assert bench.batcher.oldest_run_s() == 0


async def test_the_batcher_is_alive_while_its_slots_are():
    bench = Bench()

    assert bench.batcher.alive
    bench.slots.alive = False
    assert not bench.batcher.alive


async def test_gauges_tell_the_truth_at_every_step():
    """They are read when scraped; a counter that drifts is worse than none."""
    bench, runner = Bench(slots=2, batch_sequences=2), FakeRunner()
    assert bench.sample("slots") == 2
    assert bench.gauges() == (0, 0, 0, 0, 0)

    a = bench.submit(unit(1, runner, 3), size=10)
    assert bench.gauges() == (0, 0, 10, 3, 1)
    b = bench.submit(*(unit(number, runner, 2) for number in range(5)), size=20)
    assert bench.gauges() == (1, 3, 30, 13, 2)  # the first of b took the free slot, with its neighbour
    c = bench.submit(unit(9, runner), size=5, timeout=1)
    assert bench.gauges() == (2, 4, 35, 14, 2)
    bench.slots.finish(0)
    assert bench.gauges() == (2, 2, 35, 14, 2)
    bench.clock.advance(1)
    assert bench.gauges() == (1, 1, 35, 14, 2)
    bench.batcher.release(c)
    assert bench.gauges() == (1, 1, 30, 13, 2)
    bench.slots.finish(1)
    assert bench.gauges() == (0, 0, 30, 13, 2)
    bench.batcher.release(b)
    assert bench.gauges() == (0, 0, 30, 13, 2)
    bench.slots.finish_all()
    assert bench.gauges() == (0, 0, 10, 3, 0)
    bench.batcher.release(a)
    assert bench.gauges() == (0, 0, 0, 0, 0)


async def test_the_size_of_every_batch_is_published():
    """So that users can see whether batching happens (mosec#338)."""
    bench, runner = Bench(), FakeRunner()
    bench.submit(*(unit(number, runner, 3, backend="eager") for number in range(4)))

    bench.slots.finish_all()

    sums = {name: bench.sample(f"batch_{name}_sum", backend="eager") for name in ("sequences", "tokens")}
    assert sums == {"sequences": 4, "tokens": 12}
    assert bench.sample("batch_sequences_count", backend="eager") == len(bench.slots.runs)


# ---- real threads, real time


# ---- small work, without a thread


def small(bench, *numbers, cost=HERE_S):
    bench.slots.costs |= dict.fromkeys(numbers, cost)


async def test_small_work_is_computed_in_the_same_turn_without_a_slot_of_its_own():
    """Waking a thread and being woken by it takes longer than the work."""
    bench, runner = Bench(), FakeRunner()
    small(bench, 1)

    ticket = bench.submit(unit(1, runner))
    assert bench.slots.numbers == []
    bench.clock.advance(0)

    assert bench.slots.numbers == [[1]]
    assert bench.slots.busy == 0
    assert answer_of(ticket) == [1]
    assert bench.gauges()[-1] == 0


async def test_small_work_that_came_together_is_computed_together():
    """All that the event loop read in one turn is one batch, and none waits for a later one."""
    bench, runner = Bench(), FakeRunner()
    small(bench, 1, 2, 3, 4, cost=HERE_S / 10)

    tickets = [bench.submit(unit(number, runner)) for number in (1, 2, 3)]
    bench.clock.advance(0)
    late = bench.submit(unit(4, runner))
    bench.clock.advance(0)

    assert bench.slots.numbers == [[1, 2, 3], [4]]
    assert [answer_of(ticket) for ticket in (*tickets, late)] == [[1], [2], [3], [4]]


async def test_several_that_wait_take_in_what_comes_meanwhile_as_long_as_something_does():
    """A batch costs as much beside its computation as a few requests; a lone request is not kept waiting for any."""
    bench, runner = Bench(), FakeRunner()
    small(bench, *range(1, 7), cost=HERE_S / 10)

    def comes(number, *others):
        """One comes between two turns of the event loop, and the others behind it, each a turn later."""

        def come():
            bench.submit(unit(number, runner))
            if others:
                comes(*others)

        bench.clock.call_soon(come)

    bench.submit(unit(1, runner))
    bench.submit(unit(2, runner))
    comes(3, 4)
    bench.clock.advance(0)
    bench.submit(unit(5, runner))
    comes(6)
    bench.clock.advance(0)

    assert bench.slots.numbers == [[1, 2, 3, 4], [5], [6]]


@pytest.mark.parametrize("why", ["a full batch", "the oldest has waited for long"])
async def test_what_comes_meanwhile_is_not_waited_for_without_end(why):
    bench, runner = Bench(batch_sequences=2 if why == "a full batch" else 64), FakeRunner()
    small(bench, 1, 2, 3, cost=HERE_S / 10)

    bench.submit(unit(1, runner))
    bench.submit(unit(2, runner))
    bench.clock.call_soon(lambda: bench.submit(unit(3, runner)))
    if why != "a full batch":
        bench.clock.oversleep(MOST_HERE_S)  # to read the second took so long
    bench.clock.advance(0)

    assert bench.slots.numbers == [[1, 2], [3]]


async def test_the_event_loop_is_never_kept_for_long():
    """A batch ends where its work would; the rest has its turn after whatever else is due."""
    bench, runner = Bench(), FakeRunner()
    numbers = list(range(1, 11))
    small(bench, *numbers)

    for number in numbers:
        bench.submit(unit(number, runner))
    bench.clock.advance(0)

    most = 1 + int(MOST_HERE_S / HERE_S)
    assert max(map(len, bench.slots.numbers)) <= most
    assert [number for run in bench.slots.numbers for number in run] == numbers


@pytest.mark.parametrize("cost", [HERE_S * 1.01, math.inf])
async def test_work_that_is_not_small_or_not_known_goes_to_a_thread(cost):
    bench, runner = Bench(), FakeRunner()
    small(bench, 1, cost=cost)

    bench.submit(unit(1, runner))

    assert bench.slots.busy == 1


@pytest.mark.parametrize(
    ("idle", "cost", "here"),
    [
        (True, HERE_S, True),
        (True, MOST_HERE_S, False),
        (False, MOST_HERE_S, True),
        (False, MOST_HERE_S * 1.01, False),
    ],
)
async def test_what_a_thread_would_find_no_core_for_is_computed_here(idle, cost, here):
    bench, runner = Bench(), FakeRunner()
    small(bench, 1, cost=cost)
    bench.slots.idle = idle

    ticket = bench.submit(unit(1, runner))
    bench.clock.advance(0)

    assert bench.slots.busy == (not here)
    assert ticket.future.done() is here


async def test_small_work_waits_for_no_slot():
    """It takes none, so it delays nobody; behind the many sequences of a large request it would wait for seconds."""
    bench, runner, other = Bench(), FakeRunner(), FakeRunner()
    small(bench, 3)
    first, second = bench.submit(unit(1, other)), bench.submit(unit(2, other))
    third = bench.submit(unit(3, runner))
    bench.clock.advance(0)

    assert bench.slots.numbers == [[1], [3]]
    assert answer_of(third) == [3]
    assert bench.slots.busy == 1

    bench.slots.finish()
    bench.slots.finish()
    assert (answer_of(first), answer_of(second)) == ([1], [2])


async def test_work_that_turns_out_to_be_longer_goes_to_a_thread():
    """What was small when it was queued need not be so any more."""
    bench, runner = Bench(), FakeRunner()
    small(bench, 1)
    ticket = bench.submit(unit(1, runner))
    small(bench, 1, cost=HERE_S * 2)

    bench.clock.advance(0)

    assert bench.slots.busy == 1
    bench.slots.finish()
    assert answer_of(ticket) == [1]


def large_request(bench, count=64):
    """Many sequences of a request that is computed in batches of four; the first has begun."""
    runner, numbers = FakeRunner(), range(1_000, 1_000 + count)
    small(bench, *numbers, cost=SMALL_S)
    return bench.submit(*(unit(number, runner) for number in numbers))


@pytest.mark.parametrize("cost", [MOST_HERE_S * 1.01, SMALL_S * 1.01, MEDIUM_S, math.inf])
async def test_nothing_waits_for_all_the_sequences_of_a_larger_request(cost):
    """Nor does what is not known: it is the first of its length, and no longer than what is."""
    bench, runner = Bench(batch_sequences=4), FakeRunner()
    large_request(bench)
    bench.clock.now += SMALL_S
    bench.slots.finish()
    small(bench, 1, cost=cost)

    ticket = bench.submit(unit(1, runner))
    bench.slots.finish()
    bench.slots.finish()

    assert answer_of(ticket) == [1]
    assert bench.slots.numbers[2:] == [[1], [1_008, 1_009, 1_010, 1_011]]


@pytest.mark.parametrize(
    ("count", "length", "cost"),
    [(1, 1, MEDIUM_S * 1.01), (4, 1, MEDIUM_S / 3), (MOST_SEQUENCES + 1, 1, math.inf), (1, 50, math.inf)],
)
async def test_a_large_request_waits_for_those_before_it(count, length, cost):
    """One that takes long, or has many sequences, or a long one, as far as the pace so far tells what it takes."""
    bench, runner = Bench(batch_sequences=4), FakeRunner()
    first = large_request(bench, 12)
    bench.clock.now += SMALL_S * 4
    bench.slots.finish()
    small(bench, *range(count), cost=cost)
    medium = bench.submit(unit(500, runner, 7))  # of a length that nobody knows either, but short

    bench.submit(*(unit(number, runner, length) for number in range(count)))
    while not first.future.done():
        bench.slots.finish()

    assert answer_of(medium) == [500]
    assert all(number >= 500 for run in bench.slots.numbers[:4] for number in run)


async def test_large_requests_have_their_turn_under_a_stream_of_smaller_ones():
    bench, runner = Bench(batch_sequences=4), FakeRunner()
    large = large_request(bench, 12)
    small(bench, *range(100), cost=MOST_HERE_S * 2)
    small(bench, *range(100, 200), cost=SMALL_S * 2)

    for number in range(100):
        bench.submit(unit(number, FakeRunner()))
        bench.submit(unit(number + 100, runner, 2))
        bench.slots.finish()
        if large.future.done():
            break

    assert len(bench.slots.runs) == 1 + 2 * 3 + 1  # each of its two other batches behind one of both kinds


async def test_work_that_turns_out_to_be_long_waits_for_a_slot_with_its_like():
    """It is in the way of no small work, nor behind all that is larger."""
    bench, runner = Bench(batch_sequences=4), FakeRunner()
    large_request(bench)
    small(bench, 1, 2)
    slow = bench.submit(unit(1, runner))
    bench.submit(unit(2, FakeRunner()))
    small(bench, 1, cost=SMALL_S * 1.01)
    bench.clock.advance(PATIENCE_S)

    bench.slots.finish()

    assert bench.slots.numbers[1:] == [[2], [1]]
    bench.slots.finish()
    assert answer_of(slow) == [1]


async def test_small_work_that_fails_fails_alone():
    """The halves are tried again here too."""
    bench, runner = Bench(), BrokenRunner(2)
    small(bench, 1, 2, 3, cost=HERE_S / 10)

    tickets = [bench.submit(unit(number, runner)) for number in (1, 2, 3)]
    bench.clock.advance(0)

    assert [answer_of(tickets[0]), answer_of(tickets[2])] == [[1], [3]]
    assert error_of(tickets[1]) is BackendFailed


async def test_small_work_that_expires_or_is_cancelled_before_its_turn_is_not_computed():
    bench, runner = Bench(), FakeRunner()
    small(bench, 1, 2)
    gone, late = bench.submit(unit(1, runner)), bench.submit(unit(2, runner), timeout=0.5)
    bench.batcher.cancel(gone, ClientGone("left"))
    bench.clock.now += 1

    bench.clock.advance(0)

    assert runner.computed == []
    assert (error_of(gone), error_of(late)) == (ClientGone, DeadlineExceeded)


async def test_threads_remember_what_work_took():
    """Only where they are told to: on a GPU nothing is computed in the event loop's thread."""
    for measures in (False, True):
        slots = ThreadSlots(1, asyncio.get_running_loop(), measures=measures)
        asked = unit(1, FakeRunner())
        assert slots.cost_s(asked) == math.inf

        slots.compute(Run([asked]))

        assert (slots.cost_s(asked) < math.inf) is measures
        assert slots.cost_s(unit(1, FakeRunner())) == math.inf  # another layer
        slots.close()


class Workshop:
    """A batcher with real compute threads; `close` waits for their end."""

    def __init__(self, count):
        loop = asyncio.get_running_loop()
        self.slots, self.clock, self.metrics = ThreadSlots(count, loop), LoopClock(loop), Metrics()
        self.batcher = Batcher(self.slots, Limits(**LIMITS), self.clock, self.metrics)

    def submit(self, *units, timeout=30.0):
        return self.batcher.submit(units, 0, self.clock.time() + timeout)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.batcher.close()
        for thread in self.slots._threads:
            await asyncio.to_thread(thread.join, 30)
            assert not thread.is_alive()


async def test_threads_compute_side_by_side_and_batches_form_meanwhile():
    async with Workshop(2) as workshop:
        runner = GatedRunner()
        tickets = [workshop.submit(unit(number, runner)) for number in (1, 2)]
        for _ in tickets:
            assert await asyncio.to_thread(runner.entered.acquire, timeout=30)
        assert workshop.batcher.oldest_run_s() > 0

        tickets += [workshop.submit(unit(number, runner)) for number in (3, 4, 5)]
        assert tickets[2].queued
        runner.gate.release(10)
        answers = [numbers_of(await ticket.future) for ticket in tickets]

        assert answers == [[1], [2], [3], [4], [5]]
        assert sorted(runner.batches, key=len) in ([[1], [2], [3, 4, 5]], [[2], [1], [3, 4, 5]])
        assert all(ticket.submitted <= ticket.started <= ticket.finished for ticket in tickets)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, Panic, SystemExit])
async def test_a_compute_thread_survives_whatever_a_runner_raises(error):
    """In infinity the first exception ends all serving, and health stays 200."""
    async with Workshop(1) as workshop:
        runner = dying(1, error=error)
        for _ in range(3):
            with pytest.raises(BackendFailed):
                await workshop.submit(unit(1, runner)).future
            assert numbers_of(await workshop.submit(unit(2, runner)).future) == [2]

        assert workshop.batcher.alive


async def test_a_compute_thread_survives_a_fault_of_its_own(monkeypatch, caplog):
    """Even where bisecting fails, everybody hears of it and the next batch is computed."""
    async with Workshop(1) as workshop:
        with monkeypatch.context() as patch:
            patch.setattr(slots_module, "compute", lambda units, spread: 1 / 0)
            with pytest.raises(BackendFailed):
                await workshop.submit(unit(1, FakeRunner())).future
        assert "a compute slot survived ZeroDivisionError" in caplog.text

        assert numbers_of(await workshop.submit(unit(2, FakeRunner())).future) == [2]
        assert workshop.batcher.alive


class PartedRunner(FakeRunner):
    """Work in parts: each tells that it has begun, then waits for the test to let it end.

    Attributes:
        begun: has the names of the threads that began a part.
        gates: one for each part, set when it may end.
        fails: parts that raise, by their place.
    """

    def __init__(self, parts=3, fails=()):
        super().__init__()
        self.parts, self.fails = parts, fails
        self.begun, self.ended = queue.SimpleQueue(), []
        self.gates = [threading.Event() for _ in range(parts)]

    def run(self, batch):
        def part(i):
            self.begun.put(threading.current_thread().name)
            assert self.gates[i].wait(30)
            if i in self.fails:
                raise RuntimeError("a part failed")
            self.ended.append(i)

        batch.spread([partial(part, i) for i in range(self.parts)])
        return super().run(batch)

    def release(self, *parts):
        for i in parts or range(self.parts):
            self.gates[i].set()

    async def beginnings(self, count):
        """The names of the threads that begin the next parts."""
        return {await asyncio.to_thread(self.begun.get, timeout=30) for _ in range(count)}


async def test_idle_slots_help_with_the_parts_of_a_lone_run():
    """A lone long sequence must not leave every core but one idle."""
    async with Workshop(3) as workshop:
        runner = PartedRunner(parts=5)
        ticket = workshop.submit(unit(1, runner))

        assert len(await runner.beginnings(3)) == 3

        runner.release()
        assert numbers_of(await ticket.future) == [1]
        assert sorted(runner.ended) == [0, 1, 2, 3, 4]


async def test_a_slot_that_helps_leaves_for_a_run():
    """Help is what idle slots do: whoever comes next waits for one part, not for the whole of another's work."""
    async with Workshop(2) as workshop:
        long, short = PartedRunner(parts=4), GatedRunner()
        helped = workshop.submit(unit(1, long))
        assert len(await long.beginnings(2)) == 2

        other = workshop.submit(unit(2, short))
        assert not short.entered.acquire(blocking=False)
        long.release(0, 1)  # one of the two is the helper's

        assert await asyncio.to_thread(short.entered.acquire, timeout=30)
        long.release()
        assert numbers_of(await helped.future) == [1]
        short.gate.release()
        assert numbers_of(await other.future) == [2]


async def test_busy_slots_do_not_help():
    """Where there is work for every slot, each has one sequence; offers that nobody took are worth nothing later."""
    async with Workshop(2) as workshop:
        short, long = GatedRunner(), PartedRunner(parts=3)
        busy = workshop.submit(unit(1, short))
        assert await asyncio.to_thread(short.entered.acquire, timeout=30)
        lone = workshop.submit(unit(2, long))

        long.release()
        assert numbers_of(await lone.future) == [2]
        assert len(await long.beginnings(3)) == 1

        short.gate.release(10)
        assert numbers_of(await busy.future) == [1]
        assert numbers_of(await workshop.submit(unit(3, short)).future) == [3]


async def test_an_idle_core_of_another_process_helps_until_that_computes():
    """Two processes with a slot each share two cores: a lone sequence has both, and each of two has one."""
    counts = memoryview(bytearray(2))
    slots = ThreadSlots(1, asyncio.get_running_loop(), cores=Cores(2, counts, 0))
    runner = PartedRunner(parts=5)
    computed = asyncio.create_task(asyncio.to_thread(slots.compute, Run([unit(1, runner)])))
    assert len(await runner.beginnings(2)) == 2

    counts[1] = 1  # the other process begins
    runner.release()
    await computed
    slots.close()

    assert sorted(runner.ended) == [0, 1, 2, 3, 4]
    assert not any(runner.begun.get().startswith("compute-") for _ in range(3)), "it went on to help"
    assert list(counts) == [0, 1]


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_part_that_fails_fails_its_run(slots, caplog):
    """In whichever thread: the parts that have begun end, the others never begin, and the slots go on."""
    async with Workshop(slots) as workshop:
        runner = PartedRunner(parts=50, fails=(0, 1))
        runner.release()

        with pytest.raises(BackendFailed):
            await workshop.submit(unit(1, runner)).future

        assert "a part failed" in caplog.text
        assert len(runner.ended) < 50
        assert numbers_of(await workshop.submit(unit(2, FakeRunner())).future) == [2]


async def test_what_other_slots_did_counts_as_what_work_took():
    """Else work would seem small because it is shared, and be shared no more for that."""
    slots = ThreadSlots(2, asyncio.get_running_loop(), measures=True)
    runner = PartedRunner(parts=2)
    run = Run([unit(1, runner)])
    computed = asyncio.create_task(asyncio.to_thread(slots.compute, run))
    assert len(await runner.beginnings(2)) == 2

    runner.release()
    await computed
    slots.close()

    assert run.helped_s > 0
    assert run.helped_s <= slots.cost_s(run.units[0]) <= run.finished - run.started + run.helped_s


async def test_one_hiccup_does_not_make_work_seem_long():
    """When it did, what had taken 0.1 ms a thousand times was queued behind all the sequences of large requests."""
    slots, asked = ThreadSlots(1, asyncio.get_running_loop(), measures=True), unit(1, FakeRunner())
    slots.close()

    def took(seconds):
        slots._remember(Run([asked]), seconds)
        return slots.cost_s(asked)

    assert took(1e-4) == 1e-4
    assert took(1.0) <= 2e-4
    assert took(1e-4) < 1.3e-4
    for _ in range(50):
        last = took(1.0)
    assert last == pytest.approx(1.0, rel=1e-3)  # what is not a hiccup comes again
    assert took(1e-4) < 2e-4  # and so for what was long at first
    assert took(0.0) >= LEAST_S / 2
    for _ in range(50):
        last = took(1.0)
    assert last == pytest.approx(1.0, rel=1e-3)


async def test_work_that_is_known_to_be_small_is_not_shared():
    """To wake a thread costs more than it saves."""
    slots = ThreadSlots(2, asyncio.get_running_loop(), measures=True)
    runner = PartedRunner(parts=2)
    runner.release()
    for _ in range(20):  # the first times, nobody knows yet; a slow moment fades
        slots.compute(Run([unit(1, runner)]))
    while not runner.begun.empty():
        runner.begun.get()
    slots._costs[unit(1, runner).kind] = SHARED_S / 2

    slots.compute(Run([unit(1, runner)]))
    slots.close()

    assert await runner.beginnings(2) == {threading.current_thread().name}


async def test_idle_slots_help_whoever_reads_and_writes():
    """As many as there are idle cores; a core is taken meanwhile."""
    counts = memoryview(bytearray(2))
    slots = ThreadSlots(1, asyncio.get_running_loop(), cores=Cores(3, counts, 0))
    both = threading.Barrier(3)
    seen = set()

    def part():
        both.wait(30)
        seen.add(threading.current_thread().name)

    def work():
        with slots.team() as team:
            assert list(counts) == [1, 0]
            team.spread([part] * team.size)
            return team.size

    assert await asyncio.to_thread(work) == 3
    slots.close()

    assert len(seen) == 3
    assert list(counts) == [0, 0]


async def test_who_reads_and_writes_is_alone_where_all_cores_compute():
    counts = memoryview(bytearray(2))
    slots = ThreadSlots(1, asyncio.get_running_loop(), cores=Cores(2, counts, 0))
    counts[1] = 1

    with slots.team() as team:
        assert team is ALONE
    slots.close()


class Turn:
    """Someone who reads or writes a long body, until told to end."""

    def __init__(self, slots):
        self.begun, self.end = threading.Event(), threading.Event()
        self._slots = slots
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        with self._slots.team():
            self.begun.set()
            self.end.wait(30)

    def over(self):
        self.end.set()
        self._thread.join()


async def test_long_work_takes_turns(monkeypatch):
    """As many at a time as there are slots, bodies and batches; and the turn is handed on."""
    monkeypatch.setattr(slots_module, "TURN_S", 30)
    slots = ThreadSlots(1, asyncio.get_running_loop(), measures=True, cores=Cores(2))
    runner, done = GatedRunner(), asyncio.get_running_loop().create_future()
    first = Turn(slots)
    assert first.begun.wait(30)

    slots.start(Run([unit(1, runner)]), done.set_result)
    assert not runner.entered.acquire(timeout=0.05)
    first.over()
    assert runner.entered.acquire(timeout=30)
    second = Turn(slots)
    assert not second.begun.wait(0.05)

    runner.gate.release()
    assert numbers_of((await done).verdicts) == [1]
    assert second.begun.wait(30)
    second.over()
    slots.close()


@pytest.mark.parametrize("known", ["short", "other device", "late"])
async def test_what_is_short_or_has_waited_needs_no_turn(known, monkeypatch):
    """A GPU's batches need no core; and nobody waits until the longest body has been read."""
    monkeypatch.setattr(slots_module, "TURN_S", 0.01 if known == "late" else 30)
    slots = ThreadSlots(1, asyncio.get_running_loop(), measures=known != "other device", cores=Cores(2))
    run, done = Run([unit(1, FakeRunner())]), asyncio.get_running_loop().create_future()
    if known == "short":
        slots._costs[run.units[0].kind] = SHARED_S / 2
    reading = Turn(slots)
    assert reading.begun.wait(30)

    slots.start(run, done.set_result)

    assert numbers_of((await done).verdicts) == [1]
    assert not reading.end.is_set()
    reading.over()
    slots.close()


async def test_a_slot_that_died_shows():
    """Readiness must turn 503, not stay 200 while the queue fills (infinity#609, MLServer#707)."""

    class Mortal(ThreadSlots):
        def _serve(self):
            self._work.get()

    slots = Mortal(2, asyncio.get_running_loop())
    assert slots.alive

    slots.close()
    slots._threads[0].join(30)

    assert not slots.alive


async def test_a_deadline_on_the_real_clock_ends_a_request_while_a_thread_is_busy():
    """Triton's fires only after the running inference ends (server#7512)."""
    async with Workshop(1) as workshop:
        runner = GatedRunner()
        running = workshop.submit(unit(1, runner))
        assert await asyncio.to_thread(runner.entered.acquire, timeout=30)

        queued = workshop.submit(unit(2, runner), timeout=0.01)
        with pytest.raises(DeadlineExceeded):
            await queued.future
        assert not running.future.done()

        runner.gate.release(10)
        assert numbers_of(await running.future) == [1]
        assert runner.computed == [1]


def test_a_compute_thread_ends_quietly_when_its_loop_is_gone():
    """A run that outlives the service must not end in a traceback."""
    loop, runner, ran = asyncio.new_event_loop(), GatedRunner(), []
    slots = ThreadSlots(1, loop)
    slots.start(slots_module.Run([unit(1, runner)]), ran.append)
    assert runner.entered.acquire(timeout=30)

    loop.close()
    runner.gate.release()
    slots._threads[0].join(30)

    assert not slots._threads[0].is_alive()
    assert ran == []


# ---- any order of events


class Record:
    """What the model knows of a request."""

    def __init__(self, ticket_units, size, deadline, *, large):
        self.units, self.size, self.deadline, self.large = ticket_units, size, deadline, large
        self.ticket = self.future = None
        self.outcome = None  # or the class of the error, or "answered"
        self.running, self.missing = 0, len(ticket_units)
        self.released = False

    @property
    def tokens(self):
        return sum(u.length for u in self.units)

    @property
    def counts(self):
        return not self.released or self.running > 0


class Complaints(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record.getMessage())


class AnyOrder(RuleBasedStateMachine):
    """Submit, cancel, release, finish and let time pass in any order, beside a model so simple that it is right."""

    tickets = Bundle("tickets")

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.bench = Bench(slots=2, requests=6, sequences=9, tokens=25, bytes=20, batch_sequences=3)
        self.bench.slots.on_start = self.check_start
        self.runners = [OverflowingRunner(batch_tokens=6), OverflowingRunner(batch_tokens=100)]
        self.records, self.waiting, self.numbers = [], [], 0
        self.large_led = True
        self.complaints = Complaints()
        logging.getLogger("service").addHandler(self.complaints)

    def teardown(self):
        async def end():
            self.bench.slots.on_start = lambda run: None
            self.bench.slots.finish_all()
            for record in self.records:
                self.bench.batcher.release(record.ticket)
            async with asyncio.timeout(30):  # or what has gone wrong would end in a wait without end
                await self.bench.batcher.drain()
            assert all(record.future.done() for record in self.records)

        try:
            self.loop.run_until_complete(end())
            assert self.seen() == (0, 0, 0, 0, 0)
            assert self.bench.clock.timers == 0
            assert self.complaints.records == []
        finally:
            logging.getLogger("service").removeHandler(self.complaints)
            self.loop.close()

    def seen(self):
        metrics = self.bench.metrics
        gauges = (
            metrics.queued,
            metrics.queued_sequences,
            metrics.inflight_bytes,
            metrics.inflight_tokens,
            metrics.busy_slots,
        )
        return tuple(gauge.collect()[0].samples[0].value for gauge in gauges)

    def end(self, record, outcome):
        """It ends, unless it has ended: nothing of it waits any more."""
        if record.outcome is None:
            record.outcome = outcome
            self.waiting = [(u, r) for u, r in self.waiting if r is not record]

    def check_start(self, run):
        """The oldest of the large requests or of the others, in turns, leads those of its key; none was given up."""
        oldest = {large: next((u for u, r in self.waiting if r.large is large), None) for large in (True, False)}
        if oldest[not self.large_led] is not None:
            self.large_led = not self.large_led
        lead = oldest[self.large_led]
        most = max(1, min(3, lead.job.runner.batch_tokens // lead.length))
        of_key = [(u, r) for u, r in self.waiting if u.key == lead.key]
        expected = sorted(of_key, key=lambda item: item[0] is not lead)[:most]
        assert [id(u) for u in run.units] == [id(u) for u, _ in expected]
        for item in expected:
            assert item[1].outcome is None
            assert item[1].deadline > self.bench.clock.now
            item[1].running += 1
            self.waiting.remove(item)

    @rule(
        target=tickets,
        lengths=st.lists(st.sampled_from([1, 2, 5]), min_size=1, max_size=3),
        runner=st.integers(0, 1),
        bad=st.booleans(),
        size=st.integers(0, 6),
        timeout=st.integers(1, 8),
        large=st.booleans(),
    )
    def submit(self, lengths, runner, bad, size, timeout, large):
        units = []
        for length in lengths:
            self.numbers += 1
            number = -self.numbers if bad else self.numbers
            units.append(unit(number, self.runners[runner], length))
            small(self.bench, number, cost=(MEDIUM_S * 1.01 if large else MEDIUM_S * 0.99) / len(lengths))
        counted = [r for r in self.records if r.counts]
        fits = (
            len(counted) < 6
            and sum(len(r.units) for r in counted) + len(units) <= 9
            and sum(r.tokens for r in counted) + sum(lengths) <= 25
            and sum(r.size for r in counted) + size <= 20
        )
        record = Record(units, size, self.bench.clock.now + timeout, large=large)

        async def submit():
            return self.bench.submit(*units, size=size, timeout=timeout)

        if not fits:
            with pytest.raises(QueueFull):
                self.loop.run_until_complete(submit())
            return record  # never accepted: every other rule leaves it alone
        self.waiting += [(u, record) for u in units]
        record.ticket = self.loop.run_until_complete(submit())
        record.future = record.ticket.future
        self.records.append(record)
        return record

    @rule(record=tickets)
    def cancel(self, record):
        if record.ticket is not None:
            self.bench.batcher.cancel(record.ticket, ClientGone("gone"))
            self.end(record, ClientGone)

    @rule(record=consumes(tickets))
    def release(self, record):
        if record.ticket is not None:
            self.bench.batcher.release(record.ticket)
            self.end(record, ClientGone)
            record.released = True

    @rule(which=st.integers(0, 1))
    def finish(self, which):
        slots = self.bench.slots
        if which >= slots.busy:
            return
        run = slots._busy[which][0]
        owners = {id(u): r for r in self.records for u in r.units}
        for u in run.units:
            record = owners[id(u)]
            record.running -= 1
            record.missing -= 1
            if u.sequence.inputs[0, 0] < 0:
                self.end(record, NumericOverflow)
            elif not record.missing:
                self.end(record, "answered")
        slots.finish(which)

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds):
        for record in self.records:
            if record.deadline <= self.bench.clock.now + seconds:
                self.end(record, DeadlineExceeded)
        self.bench.clock.advance(seconds)

    @invariant()
    def gauges_tell_the_truth(self):
        counted = [r for r in self.records if r.counts]
        assert self.seen() == (
            len({id(r) for _, r in self.waiting}),
            len(self.waiting),
            sum(r.size for r in counted),
            sum(r.tokens for r in counted),
            self.bench.slots.busy,
        )

    @invariant()
    def no_slot_idles_while_work_waits(self):
        assert not self.waiting or self.bench.slots.busy == self.bench.slots.count

    @invariant()
    def every_request_ended_as_it_should_and_only_once(self):
        for record in self.records:
            if record.outcome is None:
                assert not record.future.done()
            elif record.outcome == "answered":
                expected = [float(u.sequence.inputs[0, 0]) for u in record.units]
                assert numbers_of(record.future.result()) == expected
            else:
                assert type(record.future.exception()) is record.outcome


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
