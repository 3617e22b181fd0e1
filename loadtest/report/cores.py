"""Cores for the services and cores for the generator, so that neither takes the other's time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where.

    Attributes:
        service: of the services, which are never loaded at the same time; empty if nobody is pinned.
        generator: of the generator; empty likewise.
    """

    service: tuple[int, ...] = ()
    generator: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.service:
            return "not pinned: services and generator share all cores"
        return f"services on {_named(self.service)}, generator on {_named(self.generator)}"


def halves(pin: bool) -> Cores:
    """The first half of the cores we may use for services, the other for the generator; nobody pinned if there is one.

    Systems that cannot pin processes pin nobody.
    """
    if not pin or not hasattr(os, "sched_getaffinity"):
        return Cores()
    ours = sorted(os.sched_getaffinity(0))
    half = len(ours) // 2
    return Cores(tuple(ours[:half]), tuple(ours[half:])) if half else Cores()


@contextmanager
def on(cores: tuple[int, ...]) -> Iterator[None]:
    """Run on these cores until the block ends, with every process that is started in it; on any if there are none."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _named(cores: tuple[int, ...]) -> str:
    several = len(cores) > 1
    whole = cores == tuple(range(cores[0], cores[0] + len(cores)))
    shown = f"{cores[0]}-{cores[-1]}" if several and whole else ", ".join(map(str, cores))
    return f"core{'s' * several} {shown}"
