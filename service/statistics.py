"""What became of the requests of one model, as the Open Inference Protocol's statistics have it."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tally:
    """How often something happened, and how long it took in all, ns."""

    count: int = 0
    ns: int = 0


@dataclass(slots=True)
class Statistics:
    """Counts since a model was loaded. Used from the event loop's thread only.

    Attributes:
        answered, failed: requests that were answered and that were not.
        answered_s, failed_s: from arrival to answer, of all of them together.
        decode_s, queue_s, compute_s, encode_s: stages of the answered ones, together.
        inferences: sequences of the answered ones.
        executions: batches; each holds sequences of one or more requests.
        last_ms: when the last of the answered ones was, in ms since 1970; 0 for never.
    """

    answered: int = 0
    failed: int = 0
    answered_s: float = 0.0
    failed_s: float = 0.0
    decode_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0
    inferences: int = 0
    executions: int = 0
    last_ms: int = 0

    def succeeded(self, seconds: float, stages: Mapping[str, float], sequences: int) -> None:
        """Count an answered request: its time in all, in each stage of `metrics.STAGES`, and its sequences."""
        self.answered += 1
        self.answered_s += seconds
        self.decode_s += stages["decode"]
        self.queue_s += stages["queue"]
        self.compute_s += stages["compute"]
        self.encode_s += stages["encode"]
        self.inferences += sequences
        self.last_ms = time.time_ns() // 1_000_000

    def refused(self, seconds: float) -> None:
        """Count a request that was not answered, `seconds` after it had arrived."""
        self.failed += 1
        self.failed_s += seconds

    @property
    def success(self) -> Tally:
        """The answered ones, from arrival to answer."""
        return self._of_answered(self.answered_s)

    @property
    def fail(self) -> Tally:
        """The others."""
        return Tally(self.failed, round(self.failed_s * 1e9))

    @property
    def queue(self) -> Tally:
        """Waiting."""
        return self._of_answered(self.queue_s)

    @property
    def compute_input(self) -> Tally:
        """Decoding."""
        return self._of_answered(self.decode_s)

    @property
    def compute_infer(self) -> Tally:
        """Computing."""
        return self._of_answered(self.compute_s)

    @property
    def compute_output(self) -> Tally:
        """Encoding."""
        return self._of_answered(self.encode_s)

    def _of_answered(self, seconds: float) -> Tally:
        return Tally(self.answered, round(max(0.0, seconds) * 1e9))

    @classmethod
    def total(cls, parts: Iterable[Mapping[str, Any]]) -> "Statistics":
        """One for several processes, from the fields of each."""
        found = cls()
        for part in parts:
            for name, value in part.items():
                mine = getattr(found, name)
                setattr(found, name, max(mine, value) if name == "last_ms" else mine + value)
        return found
