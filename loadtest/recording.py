"""What became of each request, taken down while a test runs."""

import array
import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from loadtest.samples import STAGES, Samples
from loadtest.wire import Answer

NAN: Final = float("nan")

_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("due_s", "sent_s", "done_s"), "d"),
        "name": "i",
        "ok": "b",
        "status": "h",
        **dict.fromkeys(("bytes_in", "bytes_out"), "q"),
        **dict.fromkeys(STAGES, "f"),
        "error": "i",
    }
)
"""Columns of numbers: some 70 bytes a request, where lists of objects would take ten times that."""

_SERVER_TIMING: Final = re.compile(rb"\r\nserver-timing: *([^\r]*)", re.IGNORECASE)
_STAGE: Final = re.compile(rb"(\w+);dur=([0-9.]+)")


class Recorder:
    """Collects samples; times are of `time.perf_counter`."""

    def __init__(self) -> None:
        self._columns: dict[str, array.array[Any]] = {name: array.array(kind) for name, kind in _KINDS.items()}
        self._append = [column.append for column in self._columns.values()]
        self._names: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self.begin(time.perf_counter())
        self.end(self._origin)

    def __len__(self) -> int:
        return len(self._columns["due_s"])

    def begin(self, now: float) -> None:
        """Take this time for the origin of all others."""
        self._origin, self._started_at = now, time.time() - (time.perf_counter() - now)
        self._cpu_s = time.process_time()

    def end(self, now: float) -> None:
        """Take this time for the end of the test."""
        self._elapsed_s, self._used_cpu_s = now - self._origin, time.process_time() - self._cpu_s

    def add(
        self,
        name: str,
        *,
        due: float,
        sent: float,
        done: float,
        size: int,
        answer: Answer | None,
        failure: str | None,
    ) -> None:
        """Take down one request; `size` is its body's."""
        values = (
            due - self._origin,
            sent - self._origin,
            done - self._origin,
            self._names.setdefault(name, len(self._names)),
            failure is None,
            answer.status if answer else 0,
            len(answer.body) if answer else 0,
            size,
            *server_timing(answer.head if answer else b""),
            -1 if failure is None else self._errors.setdefault(failure, len(self._errors)),
        )
        for append, value in zip(self._append, values, strict=True):
            append(value)

    def fail(self, index: int, failure: str) -> None:
        """Say afterwards that a request that had been taken for right was not."""
        self._columns["ok"][index] = False
        self._columns["error"][index] = self._errors.setdefault(failure, len(self._errors))

    def samples(self) -> Samples:
        """Everything, once the test has ended."""
        return Samples.of(
            self._columns,
            names=list(self._names),
            errors=list(self._errors),
            client_cpu_s=self._used_cpu_s,
            elapsed_s=self._elapsed_s,
            started_at=self._started_at,
        )


def server_timing(head: bytes) -> tuple[float, ...]:
    """Milliseconds of each of STAGES by the `Server-Timing` of an answer; NaN where it does not say."""
    found = _SERVER_TIMING.search(head)
    if found is None:
        return (NAN,) * len(STAGES)
    told = {name.decode() + "_ms": float(value) for name, value in _STAGE.findall(found[1])}
    return tuple(told.get(stage, NAN) for stage in STAGES)
