"""What a caller wants of an exercise, made into its terms: every option checked, every default filled in."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidOption
from service.tutor.exercise import Mode, Terms
from service.tutor.exercises.levels import DEFAULT_LEVEL, LEVELS, WHOLE, Level
from service.tutor.steps import STEPS

MODES: tuple[Mode, ...] = ("guided", "whiteboard")

LIMITS = {
    "seed": (0, 2**53 - 1),  # what every JSON reader takes for the same whole number
    "tokens": (1, 16),
    "embed_dim": (1, 16),
    "head_dim": (1, 16),
    "value_dim": (1, 16),
    "num_heads": (1, 4),
    "decimals": (0, 6),
}
"""Smallest and largest of each number."""

DEFAULTS: Mapping[str, Any] = {
    "tokens": 4, "embed_dim": 5, "head_dim": 3, "value_dim": 3, "num_heads": 1, "is_causal": False,
}  # fmt: skip
"""Sizes that tell the most mistakes apart: 2 × 2, as textbooks have it, makes a wrong scale the right one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asks for; None where it leaves the choice."""

    level: str | None = None
    mode: str | None = None
    tokens: int | None = None
    embed_dim: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    num_heads: int | None = None
    is_causal: bool | None = None
    decimals: int | None = None
    ask: Sequence[str] | None = None


def terms_of(wanted: Wanted, generator: str, seed: int, draw: int = 0, part: int = 1) -> Terms:
    """The terms of what is wanted.

    Raises:
        InvalidOption: with the option that cannot be had, and what can.
    """
    level = _one_of("level", DEFAULT_LEVEL if wanted.level is None else wanted.level, LEVELS)
    mode = _one_of("mode", "guided" if wanted.mode is None else wanted.mode, {mode: mode for mode in MODES})
    if mode == "whiteboard" and not level.whole:
        whole = ", ".join(each.id for each in LEVELS.values() if each.whole)
        raise InvalidOption.at("/mode", f"a whiteboard is for the whole recipe; levels with all of it are {whole}")
    if part not in (1, 2) or (part == 2 and mode != "whiteboard"):
        raise InvalidOption.at("/part", "only a whiteboard has a second part")
    _within("seed", seed)
    sizes = {name: _option(level, name, getattr(wanted, name)) for name in DEFAULTS}
    decimals = level.decimals if wanted.decimals is None else wanted.decimals
    _within("decimals", decimals)
    return Terms(
        generator=generator,
        seed=seed,
        draw=draw,
        level=level.id,
        mode=mode,
        part=part,
        decimals=decimals,
        ask=_asked(level, mode, wanted.ask, is_causal=sizes["is_causal"]),
        **sizes,
    )


def _one_of(name: str, value: object, known: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise InvalidOption.at(f"/{name}", f"there is no {name} {str(value)[:64]!r}; there are {', '.join(known)}")
    return known[value]


def _within(name: str, value: object) -> None:
    least, most = LIMITS[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidOption.at(f"/{name}", f"expected a whole number from {least} to {most}, got {str(value)[:64]}")


def _option(level: Level, name: str, value: Any) -> Any:
    if name in level.fixed:
        if value is not None and (value != level.fixed[name] or isinstance(value, bool) != (name == "is_causal")):
            raise InvalidOption.at(f"/{name}", f"at the level {level.id} it is {str(level.fixed[name]).lower()}")
        return level.fixed[name]
    value = DEFAULTS[name] if value is None else value
    if name == "is_causal":
        if not isinstance(value, bool):
            raise InvalidOption.at("/is_causal", "expected a boolean")
    else:
        _within(name, value)
    return value


def _asked(level: Level, mode: Mode, wanted: Sequence[str] | None, *, is_causal: bool) -> tuple[str, ...]:
    """The steps asked, in the order of the recipe."""
    possible = _within_reach(level.given, masked=is_causal)
    if wanted is None:
        return tuple(step for step in level.asks if step in possible)
    if mode == "whiteboard":
        raise InvalidOption.at("/ask", f"a whiteboard asks for all of {', '.join(WHOLE)}")
    if not isinstance(wanted, Sequence) or isinstance(wanted, str) or not wanted:
        raise InvalidOption.at("/ask", "expected a list with at least one step")
    for index, step in enumerate(wanted):
        if step not in possible or step in wanted[:index]:
            raise InvalidOption.at(
                f"/ask/{index}", f"{str(step)[:64]!r} cannot be asked here, or not twice; {', '.join(possible)} can"
            )
    return tuple(step for step in possible if step in wanted)


def _within_reach(given: Collection[str], *, masked: bool) -> tuple[str, ...]:
    """The steps that can be worked from what is given."""
    had, found = set(given), list[str]()
    for step in STEPS.values():
        if step.id in had or (step.id == "masked_scores" and not masked):
            continue
        needs = [each for each in step.needs if masked or each != "masked_scores"]
        if (needs or not given) and had.issuperset(needs):
            had.add(step.id)
            found.append(step.id)
    return tuple(found)
