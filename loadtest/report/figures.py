"""What is reported of the requests of a measurement. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from loadtest.report.plan import Slo
from loadtest.samples import STAGES, Doubles, Floats, Samples

PERCENTS: Final = (50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 92.5, 95.0, 97.0, 98.0, 99.0, 99.5, 99.8, 99.9)
"""Where the curve of latencies has its points."""
SHOWN: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}
"""The percentiles in tables, and in files of thresholds."""
ACHIEVED: Final = 0.98
"""Share of the requests due that has to be answered soon enough for a rate to count as held."""
RAMP_S: Final = 0.3
"""The beginning of a closed loop, while users are still being started."""

Figures = dict[str, float]


def latencies(samples: Samples) -> Figures:
    """Percentiles, mean and maximum of the latency from when requests were due, ms; NaN where there is none."""
    found = {name: percentile_ms(samples, percent) for name, percent in SHOWN.items()}
    ms = samples.latency_s * 1e3 if len(samples) else np.full(1, np.nan)  # (requests,)
    return found | {"mean_ms": float(ms.mean()), "max_ms": float(ms.max())}


def percentile_ms(samples: Samples, percent: float) -> float:
    """A percentile of the latency from when requests were due, ms; NaN where there is none."""
    return float(np.percentile(samples.latency_s, percent)) * 1e3 if len(samples) else float("nan")


def curve(runs: Sequence[Samples]) -> dict[str, float]:
    """Latency in ms at each of PERCENTS, of several runs together; without percentiles that lie above all requests."""
    ms = np.concatenate([run.latency_s for run in runs]) * 1e3 if runs else np.empty(0)  # (requests,)
    kept = [percent for percent in PERCENTS if len(ms) * (1 - percent / 100) >= 1 - 1e-9]
    return {f"{percent:g}": float(np.percentile(ms, percent)) for percent in kept}


def closed_rate(samples: Samples) -> float:
    """Right answers a second of a closed loop: those that came after RAMP_S and before the last request was sent."""
    if not len(samples):
        return 0.0
    begin, end = samples.sent_s.min() + RAMP_S, samples.sent_s.max()
    if end <= begin:  # one request each, perhaps: all there is, over the time it took
        begin, end = samples.sent_s.min(), samples.done_s.max()
    inside = samples.ok & (samples.done_s > begin) & (samples.done_s <= end)  # (requests,)
    return float(inside.sum() / (end - begin))


def open_rate(samples: Samples, asked: float, slo: Slo) -> float:
    """Right answers a second of an open loop that came before the last request was due, or at most `slo` after it."""
    if not len(samples):
        return 0.0
    soon = samples.ok & (samples.done_s <= samples.due_s.max() + slo.ms / 1e3)  # (requests,)
    return float(soon.sum() / len(samples)) * asked


def holds(samples: Samples, asked: float, slo: Slo) -> bool:
    """Whether a rate was held: all answers right, enough of them in time, and the percentile kept."""
    if not len(samples) or not samples.ok.all():
        return False
    kept = percentile_ms(samples, slo.percent) <= slo.ms
    return kept and open_rate(samples, asked, slo) >= ACHIEVED * asked


def answered(samples: Samples) -> int:
    """Requests that got an answer, of whatever status."""
    return int((samples.status > 0).sum())


def generator_share(samples: Samples) -> float:
    """Share of one core that the generator was busy."""
    return samples.client_cpu_s / samples.elapsed_s if samples.elapsed_s else 0.0


def errors(runs: Sequence[Samples]) -> dict[str, int]:
    """How often requests failed, by why, the most frequent first."""
    found: Counter[str] = Counter()
    for run in runs:
        counts = np.bincount(run.error[run.error >= 0], minlength=len(run.errors))  # (texts,)
        found.update({str(text): int(count) for text, count in zip(run.errors, counts, strict=True) if count})
        if unnamed := int((~run.ok & (run.error < 0)).sum()):
            found["failed without a reason"] += unnamed
    return dict(found.most_common())


def stages(runs: Sequence[Samples]) -> dict[str, Figures]:
    """Where the time of requests goes, in ms, from `Server-Timing`, over all answers that have one.

    `waiting` is from when a request was due until it was sent, and `outside` what no stage counts after that: sockets,
    HTTP, routing, and the generator itself.

    Returns:
        `median` and `mean` over all, and `slowest`, the mean over the hundredth that took longest; each by stage.
        Empty if no answer has the header.
    """
    parts = [_parts(run) for run in runs]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    if not columns or not len(columns["latency"]):
        return {}
    latency = columns.pop("latency")  # (answers,)
    slow = latency >= np.percentile(latency, 99)
    return {
        "median": {name: float(np.median(values)) for name, values in columns.items()},
        "mean": {name: float(values.mean()) for name, values in columns.items()},
        "slowest": {name: float(values[slow].mean()) for name, values in columns.items()},
    }


def _parts(run: Samples) -> dict[str, Doubles | Floats]:
    """Each stage, what is outside of them, and the latency, in ms, of the answers that say it, (answers,) each."""
    named = {stage: getattr(run, stage) for stage in STAGES}  # (requests,) each
    there = run.ok & ~np.isnan(sum(named.values()))  # (requests,)
    found = {stage: values[there].astype(np.float64) for stage, values in named.items()}
    found = {"waiting_ms": (run.sent_s - run.due_s)[there] * 1e3} | found
    latency = run.latency_s[there] * 1e3  # (answers,)
    return found | {"outside_ms": np.maximum(0.0, latency - sum(found.values())), "latency": latency}


def by_name(runs: Sequence[Samples]) -> dict[str, Figures]:
    """Requests, failures and latency of each kind of request that the suite counts apart."""
    found = {}
    for name in dict.fromkeys(str(name) for run in runs for name in run.names):
        mine = [run.name == list(run.names).index(name) for run in runs if name in run.names]
        of = [run for run in runs if name in run.names]
        ms = np.concatenate([run.latency_s[at] for run, at in zip(of, mine, strict=True)]) * 1e3  # (requests,)
        failed = sum(int((~run.ok[at]).sum()) for run, at in zip(of, mine, strict=True))
        if len(ms):
            found[name] = {
                "requests": len(ms),
                "errors": failed,
                "p50_ms": float(np.percentile(ms, 50)),
                "p99_ms": float(np.percentile(ms, 99)),
            }
    return found
