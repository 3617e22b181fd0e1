"""A share of the answers computed again on another backend, to see in production whether backends still agree.

It looks on where a request has its verdicts, the one place at which unit and answer are both known and nothing of the
request is left to compute. As a callback of the future, whatever goes wrong in it cannot reach the answer.
"""

import asyncio
import logging
import queue
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from models.errors import NumericOverflow
from models.types import F32
from service.backends.base import Runner
from service.catalog import Catalog
from service.messages import Answer, TopK
from service.metrics import Metrics
from service.packing import Unit, answer, batch_of
from service.parity import relative_difference

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """An answered sequence that is computed again.

    Attributes:
        model: name and version.
        unit: as it was computed.
        twin: the same for the other backend.
        answer: what the caller got.
    """

    model: tuple[str, str]
    unit: Unit
    twin: Unit
    answer: Answer


class Shadow:
    """Computes again, in one thread of its own and one sequence at a time; those sampled meanwhile are skipped.

    All state belongs to the event loop's thread, so that a layer cannot be unloaded between the question whether it is
    still served and the publication of its difference.
    """

    def __init__(
        self,
        catalog: Catalog,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        share: float,
        most_bytes: int,
        draw: Callable[[], float] | None = None,
    ) -> None:
        """Start the thread.

        Args:
            catalog: where the other backend's runners are.
            metrics: where differences and outcomes go.
            loop: whose thread alone may call this object.
            share: of the answered sequences, above 0.
            most_bytes: skip a sequence whose tensors take more: this memory comes on top of what is in flight.
            draw: a number in [0, 1) for each sequence, sampled where it is below `share`. By default seeded random
                ones: counting off every n-th would only ever meet one kind of a traffic that alternates.
        """
        self._catalog, self._metrics, self._loop = catalog, metrics, loop
        self._share, self._most_bytes = share, most_bytes
        self._draw = draw or random.Random(0).random
        self._busy = self._stopped = False
        self._ended = asyncio.Event()
        self._logged: set[type[BaseException]] = set()  # the thread's own
        self._work: queue.SimpleQueue[Sample | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="shadow", daemon=True).start()

    def watch(
        self,
        future: "asyncio.Future[list[tuple[Answer, list[int]]]]",
        model: tuple[str, str],
        units: Sequence[Unit],
        sizes: Sequence[int],
    ) -> None:
        """Sample a request once it is answered.

        Args:
            future: its verdicts, one per unit.
            model: name and version.
            units: its sequences.
            sizes: bytes that each of them takes to compute.
        """
        future.add_done_callback(partial(self._answered, model, units, sizes))

    def stop(self) -> None:
        """Begin nothing from now on."""
        if not self._stopped:
            self._stopped = True
            self._work.put(None)

    async def drain(self) -> None:
        """Stop, and wait for a computation under way: a thread inside a runtime can bring down an ending process."""
        self.stop()
        await self._ended.wait()

    def _answered(
        self,
        model: tuple[str, str],
        units: Sequence[Unit],
        sizes: Sequence[int],
        future: "asyncio.Future[list[tuple[Answer, list[int]]]]",
    ) -> None:
        if self._stopped or future.cancelled() or future.exception() is not None:
            return
        for unit, size, (answered, _) in zip(units, sizes, future.result(), strict=True):
            if self._draw() < self._share:
                self._take(model, unit, size, answered)

    def _take(self, model: tuple[str, str], unit: Unit, size: int, answered: Answer) -> None:
        other = "eager" if unit.job.backend == "onnx" else "onnx"
        runner = self._catalog.runners(*model).get(other)
        if self._busy or size > self._most_bytes or runner is None or not self._serves(model, unit):
            self._count("skipped")
            return
        self._busy = True
        twin = Unit(replace(unit.job, runner=runner, backend=other), unit.sequence, unit.pointer)
        self._work.put(Sample(model, unit, twin, answered))

    def _serves(self, model: tuple[str, str], unit: Unit) -> bool:
        """Whether a unit's layer is still the one of that name; if not, its series has been removed for good."""
        return self._catalog.runners(*model).get(unit.job.backend) is unit.job.runner

    def _done(self, sample: Sample, outcome: float | str) -> None:
        """The thread is free again, and tells the difference or why there is none."""
        self._busy = False
        if isinstance(outcome, str):
            self._count(outcome)
        elif not self._serves(sample.model, sample.unit):
            self._count("skipped")
        else:
            pair = "-".join(sorted((sample.unit.job.backend, sample.twin.job.backend)))
            self._metrics.add_shadow(*sample.model, pair, outcome)
            self._count("compared")

    def _count(self, outcome: str) -> None:
        self._metrics.shadow_sequences.labels(outcome).inc()

    def _serve(self) -> None:
        try:
            while (sample := self._work.get()) is not None:
                self._loop.call_soon_threadsafe(self._done, sample, self._compare(sample))
                del sample  # do not hold a sequence's memory while waiting for the next
            self._loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _compare(self, sample: Sample) -> float | str:
        if self._stopped:
            return "skipped"
        try:
            return drift(sample)
        except BaseException as error:  # panics of runtimes need not be an Exception, and the thread must outlive them
            if (kind := type(error)) not in self._logged:
                self._logged.add(kind)
                log.error(
                    "no second answer; further errors that are %s are only counted", kind.__name__, exc_info=error
                )
            return "failed"


def drift(sample: Sample) -> float:
    """Compute again, and compare with what the caller got: the largest relative difference of a tensor.

    Infinite where the other backend overflows float32, which the caller's did not.
    """
    runner: Runner = sample.twin.job.runner
    (tensors,) = runner.run(batch_of([sample.twin]))
    try:
        again, _ = answer(sample.twin, tensors)
    except NumericOverflow:
        return float("inf")
    # Softmax makes of an absolute error of a score a relative one of a weight: no score is so small that less counts.
    largest = {name: 1.0 for name in again if name.rpartition(".")[2] == "scores"}
    return relative_difference(_numbers(again), _numbers(sample.answer), largest)


def _numbers(answered: Answer) -> dict[str, F32]:
    """The tensors; of sparse weights the values alone, as near ties may stand in another order."""
    return {name: t.values if isinstance(t, TopK) else t for name, t in answered.items()}
