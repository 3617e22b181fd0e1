"""What a run found, as one document: what the page shows, and `report.json` and `report.csv` hold.

The keys are described in `docs/loadtest.md`; a change that breaks a reader of them raises SCHEMA.
"""

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson

from loadtest.report import figures
from loadtest.report.counters import Counters
from loadtest.report.plan import OPEN_SHARE, Subject
from loadtest.report.run import Phase, Run, Step

SCHEMA: Final = 1
LATENCIES: Final = (*figures.SHOWN, "mean_ms", "max_ms")
COLUMNS: Final = (
    "subject", "phase", "round", "connections", "asked", "holds", "seconds", "requests", "errors", "rate", *LATENCIES,
    "slo_ms", "generator", "counted", "mean_batch",
)  # fmt: skip
"""Of `report.csv`, and of each entry of `steps`."""

Document = dict[str, Any]


def document(run: Run, *, command: str, started_at: str, machine: Mapping[str, str], cores: str) -> Document:
    """All that was found, without what is said about it."""
    plan = run.plan
    return {
        "schema": SCHEMA,
        "command": command,
        "started_at": started_at,
        "options": {
            "users": plan.users,
            "models": plan.models,
            "tokens": plan.tokens,
            "arrivals": plan.arrivals,
            "seconds": plan.seconds,
            "rounds": plan.rounds,
            "connections": list(plan.ladder),
            "precision": plan.precision,
            "seed": plan.seed,
        },
        "slo": asdict(plan.slo),
        "cores": cores,
        "machine": dict(machine),
        "subjects": [_subject(run, subject) for subject in plan.subjects],
        "steps": [_step(step) for step in run.steps],
    }


def _subject(run: Run, subject: Subject) -> Document:
    mine = [step for step in run.steps if step.subject == subject.name]
    opened, busiest = _of(mine, "open"), _busiest(mine)
    stages = figures.stages([step.samples for step in opened or busiest])
    return {
        **asdict(subject),
        "about": run.about[subject.name],
        "knee": _knee(run, subject.name),
        "closed": _closed(mine),
        "open": _open(opened),
        "stages": stages | _stage_means(opened or busiest) if stages else {},
        "batches": {
            phase: found
            for phase, steps in (("closed", busiest), ("open", opened))
            if (found := _batches(_grown(steps)))
        },
        "kinds": figures.by_name([step.samples for step in opened or busiest]),
        "errors": {
            phase: found
            for phase in ("warm-up", "closed", "search", "confirm", "open")
            if (found := figures.errors([step.samples for step in mine if step.phase == phase]))
        },
        "counted": _counted(mine),
    }


def _of(steps: Iterable[Step], phase: Phase) -> list[Step]:
    return [step for step in steps if step.phase == phase]


def _busiest(steps: Sequence[Step]) -> list[Step]:
    """The closed loops with the most connections."""
    closed = _of(steps, "closed")
    most = max((step.connections for step in closed), default=0)
    return [step for step in closed if step.connections == most]


def _knee(run: Run, name: str) -> Document:
    rounds = run.knees[name]
    rate = run.rate(name)
    held = [step for step in run.steps if step.subject == name and step.phase == "confirm" and step.holds]
    found = {"rate": rate, "lowest": min(rounds, default=0.0), "highest": max(rounds, default=0.0), "rounds": rounds}
    at = [step.figures["slo_ms"] for step in held if step.asked in rounds]
    return found | {"slo_ms": statistics.median(at) if at else None}


def _closed(steps: Sequence[Step]) -> list[Document]:
    found = []
    closed = _of(steps, "closed")
    for connections in dict.fromkeys(step.connections for step in closed):
        some = [step.figures for step in closed if step.connections == connections]
        rates = [one["rate"] for one in some]
        medians = {name: statistics.median(one[name] for one in some) for name in ("rate", *LATENCIES)}
        found.append(
            {"connections": connections, **medians, "rate_lowest": min(rates), "rate_highest": max(rates)}
            | {"errors": sum(int(one["errors"]) for one in some)}
        )
    return found


def _open(steps: Sequence[Step]) -> Document | None:
    if not steps:
        return None
    requests, errors = (sum(int(step.figures[name]) for step in steps) for name in ("requests", "errors"))
    medians = {name: statistics.median(step.figures[name] for step in steps) for name in ("rate", *LATENCIES)}
    return {
        "asked": steps[0].asked,
        "share_of_knee": OPEN_SHARE,
        "requests": requests,
        "errors": errors,
        "error_share": errors / requests if requests else 0.0,
        **medians,
        "curve": figures.curve([step.samples for step in steps]),
    }


def _grown(steps: Iterable[Step]) -> Counters | None:
    """How much the counters grew in all of these together."""
    parts = [step.grown for step in steps if step.grown is not None]
    keys = dict.fromkeys(key for part in parts for key in part.values)
    return Counters({key: sum(part.values.get(key, 0.0) for part in parts) for key in keys}) if parts else None


def _stage_means(steps: Sequence[Step]) -> Document:
    grown = _grown(steps)
    return {"metrics": found} if grown is not None and (found := grown.stage_means_ms()) else {}


def _batches(grown: Counters | None) -> Document | None:
    if grown is None or not (counts := grown.batches()):
        return None
    padded, tokens = grown.total("attention_padded_tokens_total"), grown.total("attention_batch_tokens_sum")
    return {"counts": counts, "mean": grown.mean_batch(), "padding_share": padded / (padded + tokens) if tokens else 0}


def _counted(steps: Sequence[Step]) -> Document | None:
    """Requests by the generator's count and by the service's, and in how many measurements the two differ."""
    shown = [step for step in steps if step.grown is not None]
    pairs = [(figures.answered(step.samples), step.grown.requests()) for step in shown if step.grown is not None]
    if not pairs:
        return None
    return {
        "generator": sum(ours for ours, _ in pairs),
        "service": sum(theirs for _, theirs in pairs),
        "differ": sum(ours != theirs for ours, theirs in pairs),
    }


def _step(step: Step) -> Document:
    found = {
        "subject": step.subject,
        "phase": step.phase,
        "round": step.round,
        "connections": step.connections,
        "asked": step.asked,
        "holds": step.holds,
        **step.figures,
        "counted": None if step.grown is None else step.grown.requests(),
        "mean_batch": None if step.grown is None else step.grown.mean_batch(),
    }
    return {name: found[name] for name in COLUMNS}


def write_json(found: Document, path: Path) -> None:
    """Write all of it; what is not a number is null."""
    path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def write_csv(found: Document, path: Path) -> None:
    """Write a row for each measurement."""
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        rows.writeheader()
        rows.writerows(found["steps"])
