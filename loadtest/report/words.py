"""What is said about a run: its result in a sentence, and what to be wary of."""

import math
from typing import Any, Final

from loadtest.bench.tables import number
from loadtest.report.plan import Slo
from loadtest.report.results import Document

BUSY: Final = 0.8
"""Share of a core from which on the generator may be the limit."""
FEW_REQUESTS: Final = 1000
"""Of fewer, the 99th percentile is less than ten requests."""
SAME: Final = 1.05
"""Rates closer than the search is precise are not told apart."""
UNSTEADY: Final = 1.25
"""How many times the lowest round the highest may be, before it is warned of."""


def headline(found: Document) -> str:
    """The result, in a sentence or two."""
    slo = str(Slo(**found["slo"]))
    ranked = sorted(found["subjects"], key=lambda subject: -subject["knee"]["rate"])
    first, *others = [(_name(subject), subject["knee"]["rate"]) for subject in ranked]
    if not found["steps"]:
        return "Nothing was measured."
    if not any(subject["knee"]["rounds"] for subject in ranked):
        return f"Broken off before it was known which rate keeps {slo}."
    if not first[1]:
        return f"No rate that was tried keeps {slo}{_alone(ranked)}."
    text = f"{first[0]} holds {_rate(first[1])} requests/s with {slo}"
    if not others:
        return f"{text}."
    second, rate = others[0]
    if not rate:
        return f"{text}; {_and([name for name, _ in others])} keeps it at no rate that was tried."
    if first[1] / rate < max(SAME, 1 + found["options"]["precision"]):
        text += f", {second} about as many ({_rate(rate)})"
    elif ranked[0]["knee"]["lowest"] <= ranked[1]["knee"]["highest"]:
        text += f", {second} {_rate(rate)}; their rounds overlap, so neither is ahead"
    else:
        text += f", {first[1] / rate:.1f} times {second} ({_rate(rate)})"
    rest = [f"{name} {_rate(value) if value else 'none'}" for name, value in others[1:]]
    return f"{text}{f'; {_and(rest)}' if rest else ''}."


def warnings(found: Document, *, stopped: bool = False) -> list[str]:
    """What makes the figures worth less than they look."""
    said = []
    if stopped:
        said.append("The run was broken off; what follows is what had been measured by then.")
    load = float(found["machine"].get("load average before", 0))
    cores = int(found["machine"].get("cores", "1").split()[0])
    if load > cores / 2:
        said.append(f"The machine was busy before the run began (load average {load:.1f} on {cores} cores).")
    if found["cores"].startswith("not pinned") and not any(subject["url"] for subject in found["subjects"]):
        said.append("Services and generator shared the cores, so each took time from the other.")
    for subject in found["subjects"]:
        said += _of(subject, [step for step in found["steps"] if step["subject"] == subject["name"]])
    return said


def _of(subject: Document, steps: list[Document]) -> list[str]:
    said, name = [], _name(subject)
    counted = subject["counted"]
    if steps and counted is None:
        said.append(f"{name} does not show /metrics: its counts, batches and mean stages are missing.")
    elif counted is not None and counted["differ"]:
        said.append(
            f"COUNTS DIFFER: the generator had {counted['generator']:,} answers of {name}, which counted "
            f"{counted['service']:,} requests (in {counted['differ']} measurements). Either somebody else asked it "
            "too, or requests were lost."
        )
    if wrong := sum(count for kinds in subject["errors"].values() for text, count in kinds.items() if is_wrong(text)):
        said.append(f"{name} gave {wrong:,} wrong answers. Its speed is worth nothing.")
    relevant = [step for step in steps if step["phase"] in ("closed", "open") or step["holds"]]
    busiest = max((step["generator"] for step in relevant), default=0.0)
    if busiest > BUSY:
        said.append(
            f"The generator was busy {percent(busiest)} of a core while it asked {name}: "
            "it may be the limit, not the service."
        )
    knee = subject["knee"]
    if knee["lowest"] * UNSTEADY < knee["highest"]:
        said.append(
            f"{name} held between {_rate(knee['lowest'])} and {_rate(knee['highest'])} requests/s from round to round: "
            "something else was going on, or rounds are too short."
        )
    if any(step["phase"] == "open" and not step["holds"] for step in steps):
        said.append(
            f"{name} missed the target at {percent(subject['open']['share_of_knee'])} of the rate that it holds: "
            "something else was going on, then or in the search."
        )
    if subject["open"] and subject["open"]["requests"] < FEW_REQUESTS:
        said.append(
            f"The latencies of {name} rest on {subject['open']['requests']:,} requests; "
            "give --seconds or --rounds more for the last percent."
        )
    if failed := sum(sum(subject["errors"].get(phase, {}).values()) for phase in ("warm-up", "closed", "open")):
        said.append(f"{name} failed {failed:,} requests outside of the search; see Errors.")
    return said


def is_wrong(text: str) -> bool:
    """Whether a failure is an answer whose numbers were not right."""
    return text.startswith("wrong answer")


def percent(share: float) -> str:
    """A share as people write it."""
    return f"{share * 100:.0f} %"


def shown(value: Any) -> str:
    """A figure as the page writes it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    return number(value) if isinstance(value, float) else str(value)


def _name(subject: Document) -> str:
    return "The service" if subject["url"] else str(subject["name"])


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _alone(subjects: list[Document]) -> str:
    """What a lone caller waits, which no rate can be below."""
    alone = [
        f"{_name(subject)} {shown(step['p99_ms'])} ms"
        for subject in subjects
        for step in subject["closed"]
        if step["connections"] == 1
    ]
    return f": with a single connection, p99 is already {_and(alone)}" if alone else ""
