"""What a peer is: another model server that is given the same work on the same machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtest.bench.formats import Format

SERVERS: Final = Path(__file__).parent / "servers"
"""The peers' own programs, which run in their own environments."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server and how it is used.

    Attributes:
        name: for tables.
        title: what it is and how it is set up, for people.
        environment: name of its virtual environment; peers may share one.
        requirements: what pip installs there.
        command: program and arguments; `{bin}` is the environment's folder of programs, `{port}` where to listen,
            `{port1}` and `{port2}` two more ports that are free.
        variables: on top of those that every peer gets, `variables_of` in `__main__`; with the same places.
        ready: a path that answers 200 once it is ready.
        formats: by kind, `json` or `binary`.
        skips: names of cases that it cannot do.
        scales: whether it can have several workers.
    """

    name: str
    title: str
    environment: str
    requirements: tuple[str, ...]
    command: tuple[str, ...]
    ready: str
    formats: Mapping[str, Format]
    variables: Mapping[str, str] = field(default_factory=dict)
    skips: frozenset[str] = frozenset()
    scales: bool = False
