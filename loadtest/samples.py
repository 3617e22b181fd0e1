"""One entry for each request of a load test, in a file that other programs read: `--samples FILE.npz`.

Locust's own statistics keep histograms; what is asked afterwards (which requests waited for a stall, where the service
spent their time, what two runs have in common) needs the requests themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Texts = npt.NDArray[np.str_]

STAGES: Final = ("decode_ms", "queue_ms", "compute_ms", "encode_ms")
"""The stages of `Server-Timing`, in the order in which a request passes them."""

_DTYPES: Final[dict[str, type[np.generic]]] = {
    **dict.fromkeys(("due_s", "sent_s", "done_s"), np.float64),
    "name": np.int32,
    "ok": np.bool_,
    "status": np.int16,
    **dict.fromkeys(("bytes_in", "bytes_out"), np.int64),
    **dict.fromkeys(STAGES, np.float32),
    "error": np.int32,
}
"""The arrays with an entry for each request."""
_TEXTS: Final = ("names", "errors")
_SCALARS: Final = ("client_cpu_s", "elapsed_s", "started_at")


@dataclass(frozen=True, slots=True)
class Samples:
    """What became of each request of a load test; all arrays but `names` and `errors` have one entry for each.

    Attributes:
        due_s: when it was due, seconds since the test began; in a closed loop when it was sent.
        sent_s: when its first byte was sent, same origin; of one that never was, when that was given up.
        done_s: when its answer was there, or it was given up, same origin.
        name: index into `names`.
        ok: whether it was answered, and rightly as far as that was checked.
        status: HTTP status; 0 where there was no answer.
        bytes_in: length of the answer's body.
        bytes_out: length of the request's body.
        decode_ms: time the service took to read the request; NaN where it did not say.
        queue_ms: time the request waited for a slot; NaN likewise.
        compute_ms: time to compute; NaN likewise.
        encode_ms: time to write the answer; NaN likewise.
        error: index into `errors`; -1 where there was none.
        names: what requests are counted as.
        errors: why requests failed, each text once.
        client_cpu_s: processor time of the generator during the test; of several, their sum.
        elapsed_s: how long the test took.
        started_at: when it began, seconds since 1970.
    """

    due_s: Doubles
    sent_s: Doubles
    done_s: Doubles
    name: Indices
    ok: npt.NDArray[np.bool_]
    status: npt.NDArray[np.int16]
    bytes_in: Counts
    bytes_out: Counts
    decode_ms: Floats
    queue_ms: Floats
    compute_ms: Floats
    encode_ms: Floats
    error: Indices
    names: Texts
    errors: Texts
    client_cpu_s: float
    elapsed_s: float
    started_at: float

    def __post_init__(self) -> None:
        count = len(self.due_s)
        for name in _DTYPES:
            shape = getattr(self, name).shape
            if shape != (count,):
                raise ValueError(f"{name} has shape {shape}, expected ({count},) as due_s has")
        for name, texts, lowest in (("name", self.names, 0), ("error", self.errors, -1)):
            index = getattr(self, name)
            if count and not (lowest <= index.min() and index.max() < len(texts)):
                raise ValueError(f"{name} points outside of its {len(texts)} texts")

    def __len__(self) -> int:
        return len(self.due_s)

    @property
    def latency_s(self) -> Doubles:
        """From when each was due to its answer, (requests,): what somebody who wanted it then has waited."""
        return self.done_s - self.due_s

    @property
    def service_s(self) -> Doubles:
        """From when each was sent to its answer, (requests,)."""
        return self.done_s - self.sent_s

    @classmethod
    def of(cls, columns: Mapping[str, Any], **rest: Any) -> "Samples":
        """Make arrays of the right kinds from lists: `columns` has the entries of requests, `rest` the other fields."""
        arrays: dict[str, Any] = {name: np.asarray(columns[name], dtype) for name, dtype in _DTYPES.items()}
        texts: dict[str, Any] = {name: np.asarray(rest.pop(name), np.str_) for name in _TEXTS}
        return cls(**arrays, **texts, **rest)

    def save(self, path: Path) -> None:
        """Write an .npz file of exactly this name, compressed; it is there as a whole or not at all."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            np.savez_compressed(file, **values)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Samples":
        """Read what `save` wrote.

        Raises:
            OSError: if there is no such file.
            ValueError: if the file is not one of samples; the message says what is wrong.
        """
        try:
            with np.load(path, allow_pickle=False) as archive:
                found = {field.name: archive[field.name] for field in fields(cls)}
            scalars = {name: float(found.pop(name)) for name in _SCALARS}
        except KeyError as error:
            raise ValueError(f"{path} has no {error.args[0]}, so it is no file of samples") from error
        except (ValueError, TypeError, EOFError, BadZipFile) as error:  # whatever NumPy takes it for
            raise ValueError(f"{path} is no file of samples, which are .npz archives") from error
        return cls.of(found, names=found.pop("names"), errors=found.pop("errors"), **scalars)


def merge(parts: Sequence[Samples]) -> Samples:
    """Put together what several generators saw in one test; its origin is the earliest of theirs.

    Their clocks are taken to agree. Requests are in the order in which they were due.

    Raises:
        ValueError: if there is no part.
    """
    if not parts:
        raise ValueError("give at least one part")
    start = min(part.started_at for part in parts)
    names = sorted({str(name) for part in parts for name in part.names})
    errors = sorted({str(text) for part in parts for text in part.errors})
    moved = [_moved(part, part.started_at - start, names, errors) for part in parts]
    columns = {name: np.concatenate([getattr(part, name) for part in moved]) for name in _DTYPES}  # (requests,)
    order = np.argsort(columns["due_s"], kind="stable")  # (requests,)
    return Samples(
        **{name: column[order] for name, column in columns.items()},
        names=np.asarray(names, np.str_),
        errors=np.asarray(errors, np.str_),
        client_cpu_s=sum(part.client_cpu_s for part in parts),
        elapsed_s=max(part.started_at - start + part.elapsed_s for part in parts),
        started_at=start,
    )


def _moved(part: Samples, by_s: float, names: Sequence[str], errors: Sequence[str]) -> Samples:
    """The same requests, with times since another origin and indices into other texts."""
    name_at = np.array([names.index(name) for name in part.names], np.int32)  # (names of the part,)
    error_at = np.array([*(errors.index(text) for text in part.errors), -1], np.int32)  # one more: -1 stays -1
    return replace(
        part,
        due_s=part.due_s + by_s,
        sent_s=part.sent_s + by_s,
        done_s=part.done_s + by_s,
        name=name_at[part.name] if len(part) else part.name,
        error=error_at[part.error],
        names=np.asarray(names, np.str_),
        errors=np.asarray(errors, np.str_),
    )
