"""Where layers come from: those that ship with the project, and a folder of the user's own.

A repository is a folder of `NAME/` or `NAME/VERSION/`, each with `spec.json` and, unless the spec holds a seed or the
weights themselves, `weights.safetensors`. Links may lead anywhere within the repository, and nowhere else.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models import weights as weights_module
from models.errors import InvalidModel
from models.spec import NAME, AttentionSpec, parse_spec
from models.weights import AttentionWeights

BUILTIN_FOLDER = Path(__file__).parent / "specs"
BUILT_IN = "built-in"
"""Origin of the layers that ship with the project."""

MIB = 1 << 20
MAX_SPEC_BYTES = MIB
MAX_WEIGHTS_BYTES = 4096 * MIB


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
        _entry(parse_spec(path.read_bytes(), path.name), None, BUILT_IN, MAX_WEIGHTS_BYTES)
        for path in sorted(BUILTIN_FOLDER.glob("*.json"))
    ]


def scan(folder: Path, max_bytes: int = MAX_WEIGHTS_BYTES) -> tuple[list[ModelEntry], list[BrokenEntry]]:
    """Read every entry of a repository; one that cannot be read is reported, never fatal.

    Args:
        folder: the repository.
        max_bytes: most bytes of an entry's weights.

    Raises:
        InvalidModel: if `folder` itself is not a folder that can be read.
    """
    return _read_all(folder, _places(_folder(folder)), max_bytes)


def read(
    folder: Path, name: str, version: str = "", max_bytes: int = MAX_WEIGHTS_BYTES
) -> tuple[list[ModelEntry], list[BrokenEntry]]:
    """Read the entries of one name, or of one version of it; both lists are empty if there are none.

    Args:
        folder: the repository.
        name: from anywhere, such as a URL: what does not match `spec.NAME` never touches the file system.
        version: likewise; empty for every version.
        max_bytes: most bytes of an entry's weights.

    Raises:
        InvalidModel: if `folder` itself is not a folder that can be read.
    """
    place = _folder(folder) / name
    if not NAME.fullmatch(name) or (version and not NAME.fullmatch(version)) or not place.is_dir():
        return [], []
    places = [found for found in _versions(folder, place) if not version or found in (place, place / version)]
    good, broken = _read_all(folder, places, max_bytes)
    return [entry for entry in good if version in ("", entry.spec.version)], broken


def names(folder: Path) -> list[str]:
    """What the folders of a repository are called, as far as a model may be called that, whatever is in them.

    Raises:
        InvalidModel: if `folder` itself is not a folder that can be read.
    """
    return [place.name for place in _subfolders(_folder(folder)) if NAME.fullmatch(place.name)]


def _folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise InvalidModel(f"the model repository {folder} is not a folder")
    return folder


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _places(folder: Path) -> Iterator[Path]:
    for name in _subfolders(folder):
        yield from _versions(folder, name)


def _versions(folder: Path, name: Path) -> list[Path]:
    """The entries in the folder of a name: one per version, or the folder itself."""
    try:
        if not _is_inside(folder, name) or (name / "spec.json").exists():
            return [name]
        return _subfolders(name) or [name]
    except OSError:  # such as a lost+found: `_read` fails the same way, and that is reported
        return [name]


def _read_all(folder: Path, places: Iterable[Path], max_bytes: int) -> tuple[list[ModelEntry], list[BrokenEntry]]:
    good: dict[str, ModelEntry] = {}
    broken: list[BrokenEntry] = []
    for place in places:
        origin = str(place.relative_to(folder))
        try:
            entry = _read(folder, place, origin, max_bytes)
            if entry.spec.id in good:
                raise InvalidModel(f"{entry.spec.id} is already served from {good[entry.spec.id].origin}")
            good[entry.spec.id] = entry
        except (InvalidModel, OSError, MemoryError) as error:
            broken.append(BrokenEntry(origin, str(error)))
    return list(good.values()), broken


def _read(folder: Path, place: Path, origin: str, max_bytes: int) -> ModelEntry:
    if not _is_inside(folder, place):
        raise InvalidModel("the folder is a link that leads out of the repository")
    file = _plain(folder, place / "spec.json")
    if file is None:
        raise InvalidModel("spec.json is missing")
    if file.stat().st_size > MAX_SPEC_BYTES:
        raise InvalidModel(f"spec.json is larger than {MAX_SPEC_BYTES} bytes")
    spec = parse_spec(file.read_bytes(), f"{origin}/spec.json")
    parts = Path(origin).parts
    if spec.name != parts[0] or (len(parts) > 1 and spec.version != parts[1]):
        raise InvalidModel(f"spec.json calls itself {spec.id}, but stands in the folder {origin}")
    return _entry(spec, _plain(folder, place / "weights.safetensors"), origin, max_bytes)


def _is_inside(folder: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _plain(folder: Path, path: Path) -> Path | None:
    """The path of a plain file within the repository, or None if there is nothing.

    Raises:
        InvalidModel: if there is something else: reading a pipe would never end.
    """
    if not path.exists():
        return None
    if not _is_inside(folder, path):
        raise InvalidModel(f"{path.name} is a link that leads out of the repository")
    if not path.is_file():
        raise InvalidModel(f"{path.name} is not a file")
    return path


def _entry(spec: AttentionSpec, file: Path | None, origin: str, max_bytes: int) -> ModelEntry:
    if spec.seed is not None:
        if (size := weights_module.size(spec)) > max_bytes:
            raise InvalidModel(
                f"the weights would take {math.ceil(size / MIB)} MiB; {max_bytes // MIB} MiB are allowed"
            )
        weights = weights_module.seeded(spec, spec.seed)
    elif spec.weights is not None:
        for name, rows in spec.weights.items():
            if len({len(row) for row in rows}) > 1:
                raise InvalidModel(f"{spec.id}: {name} has rows of different lengths")
        tensors = {name: np.array(rows, np.float64) for name, rows in spec.weights.items()}
        weights = weights_module.checked(spec, tensors, spec.id)
    elif file is not None:
        if (size := file.stat().st_size) > max_bytes:
            raise InvalidModel(f"{file.name} takes {math.ceil(size / MIB)} MiB; {max_bytes // MIB} MiB are allowed")
        weights = weights_module.load(spec, file)
    else:
        raise InvalidModel("weights.safetensors is missing, and spec.json holds neither seed nor weights")
    return ModelEntry(spec, weights, origin)
