"""What became of the requests of one model, as the Open Inference Protocol's statistics have it."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """How often something happened, and how long it took in all, ns."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """Count it once more."""
        self.count += 1
        if seconds > 0:
            self.ns += round(seconds * 1e9)


@dataclass(slots=True)
class Statistics:
    """Counts since a model was loaded. Used from the event loop's thread only.

    Attributes:
        success, fail: requests that were answered and that were not, from arrival to answer.
        queue, compute_input, compute_infer, compute_output: stages of the answered ones: waiting, decoding, computing,
            encoding.
        inferences: sequences of the answered ones.
        executions: batches; each holds sequences of one or more requests.
        last_ms: when the last of the answered ones was, in ms since 1970; 0 for never.
    """

    success: Tally = field(default_factory=Tally)
    fail: Tally = field(default_factory=Tally)
    queue: Tally = field(default_factory=Tally)
    compute_input: Tally = field(default_factory=Tally)
    compute_infer: Tally = field(default_factory=Tally)
    compute_output: Tally = field(default_factory=Tally)
    inferences: int = 0
    executions: int = 0
    last_ms: int = 0

    def succeeded(self, seconds: float, stages: Mapping[str, float], sequences: int) -> None:
        """Count an answered request: its time in all, in each stage of `metrics.STAGES`, and its sequences."""
        self.success.add(seconds)
        self.queue.add(stages["queue"])
        self.compute_input.add(stages["decode"])
        self.compute_infer.add(stages["compute"])
        self.compute_output.add(stages["encode"])
        self.inferences += sequences
        self.last_ms = time.time_ns() // 1_000_000

    @classmethod
    def total(cls, parts: Iterable[Mapping[str, Any]]) -> "Statistics":
        """One for several processes, from the fields of each."""
        found = cls()
        for part in parts:
            for name, value in part.items():
                if isinstance(value, Mapping):
                    tally: Tally = getattr(found, name)
                    tally.count += value["count"]
                    tally.ns += value["ns"]
                elif name == "last_ms":
                    found.last_ms = max(found.last_ms, value)
                else:
                    setattr(found, name, getattr(found, name) + value)
        return found
