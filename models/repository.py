"""Where layers come from: those that ship with the project, and a folder of the user's own.

A repository is a folder of `NAME/` or `NAME/VERSION/`, each with `spec.json` and, unless the spec holds a seed or the
weights themselves, `weights.safetensors`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models import weights as weights_module
from models.errors import InvalidModel
from models.spec import AttentionSpec, parse_spec
from models.weights import AttentionWeights

BUILTIN_FOLDER = Path(__file__).parent / "specs"
MAX_SPEC_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A layer that can be served.

    Attributes:
        origin: `built-in`, or the folder it was read from, relative to the repository.
    """

    spec: AttentionSpec
    weights: AttentionWeights
    origin: str


@dataclass(frozen=True, slots=True)
class BrokenEntry:
    """A folder that should hold a layer but does not, and why."""

    origin: str
    reason: str


def builtin() -> list[ModelEntry]:
    """The layers that ship with the project."""
    return [
        _entry(parse_spec(path.read_bytes(), path.name), None, "built-in")
        for path in sorted(BUILTIN_FOLDER.glob("*.json"))
    ]


def scan(folder: Path) -> tuple[list[ModelEntry], list[BrokenEntry]]:
    """Read every entry of a repository; one that cannot be read is reported, never fatal.

    Raises:
        InvalidModel: if `folder` itself is not a folder that can be read.
    """
    if not folder.is_dir():
        raise InvalidModel(f"the model repository {folder} is not a folder")
    good: dict[str, ModelEntry] = {}
    broken: list[BrokenEntry] = []
    for place in _places(folder):
        origin = str(place.relative_to(folder))
        try:
            entry = _read(place, origin)
            if entry.spec.id in good:
                raise InvalidModel(f"{entry.spec.id} is already served from {good[entry.spec.id].origin}")
            good[entry.spec.id] = entry
        except (InvalidModel, OSError, MemoryError) as error:
            broken.append(BrokenEntry(origin, str(error)))
    return list(good.values()), broken


def _places(folder: Path) -> Iterator[Path]:
    for name in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        try:
            nested = not (name / "spec.json").exists()
            versions = sorted(p for p in name.iterdir() if p.is_dir() and not p.name.startswith(".")) if nested else []
        except OSError:  # such as a lost+found: `_read` fails the same way, and that is reported
            versions = []
        yield from versions or [name]


def _read(place: Path, origin: str) -> ModelEntry:
    file = place / "spec.json"
    if not file.exists():
        raise InvalidModel("spec.json is missing")
    if file.stat().st_size > MAX_SPEC_BYTES:
        raise InvalidModel(f"spec.json is larger than {MAX_SPEC_BYTES} bytes")
    spec = parse_spec(file.read_bytes(), f"{origin}/spec.json")
    parts = Path(origin).parts
    if spec.name != parts[0] or (len(parts) > 1 and spec.version != parts[1]):
        raise InvalidModel(f"spec.json calls itself {spec.id}, but stands in the folder {origin}")
    return _entry(spec, place / "weights.safetensors", origin)


def _entry(spec: AttentionSpec, file: Path | None, origin: str) -> ModelEntry:
    if spec.seed is not None:
        weights = weights_module.seeded(spec, spec.seed)
    elif spec.weights is not None:
        for name, rows in spec.weights.items():
            if len({len(row) for row in rows}) > 1:
                raise InvalidModel(f"{spec.id}: {name} has rows of different lengths")
        tensors = {name: np.array(rows, np.float64) for name, rows in spec.weights.items()}
        weights = weights_module.checked(spec, tensors, spec.id)
    elif file is not None and file.exists():
        weights = weights_module.load(spec, file)
    else:
        raise InvalidModel("weights.safetensors is missing, and spec.json holds neither seed nor weights")
    return ModelEntry(spec, weights, origin)
