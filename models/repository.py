"""Where layers and encoders come from: those that ship with the project, and a folder of the user's own.

A repository is a folder of `NAME/` or `NAME/VERSION/`, each with `spec.json` and, unless the spec holds a seed or the
weights themselves, `weights.safetensors`. A folder with `encoder.json`, `weights.safetensors` and `tokenizer.json` is a
whole encoder instead. Links may lead anywhere within the repository, and nowhere else.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from models import encoder_weights
from models import weights as weights_module
from models.encoder_spec import EncoderSpec, parse_encoder_spec
from models.encoder_weights import EncoderWeights
from models.errors import InvalidModel
from models.spec import NAME, AttentionSpec, parse_spec
from models.tokenizer import Tokenizer
from models.weights import AttentionWeights

BUILTIN_FOLDER = Path(__file__).parent / "specs"
BUILT_IN = "built-in"
"""Origin of the layers that ship with the project."""

SPEC_FILES = ("spec.json", "encoder.json")
"""What says that a folder holds a layer, or an encoder."""

MIB = 1 << 20
MAX_SPEC_BYTES = MIB
MAX_TOKENIZER_BYTES = 64 * MIB
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
class EncoderEntry:
    """An encoder that can be served.

    Attributes:
        tokenizer: the content of its tokenizer.json, which `models.tokenizer` has read once without complaint.
        origin: the folder it was read from, relative to the repository.
    """

    spec: EncoderSpec
    weights: EncoderWeights
    tokenizer: bytes
    origin: str


Entry = ModelEntry | EncoderEntry


@dataclass(frozen=True, slots=True)
class BrokenEntry:
    """A folder that should hold a layer or an encoder but does not, and why."""

    origin: str
    reason: str


def builtin() -> list[ModelEntry]:
    """The layers that ship with the project."""
    return [
        _entry(parse_spec(path.read_bytes(), path.name), None, BUILT_IN, MAX_WEIGHTS_BYTES)
        for path in sorted(BUILTIN_FOLDER.glob("*.json"))
    ]


def scan(folder: Path, max_bytes: int = MAX_WEIGHTS_BYTES) -> tuple[list[Entry], list[BrokenEntry]]:
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
) -> tuple[list[Entry], list[BrokenEntry]]:
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


def write(folder: Path, entry: Entry, *, replace: bool = False) -> Path:
    """Add a layer or an encoder to a repository, as `NAME/VERSION/`; readers see all of it or nothing.

    Args:
        folder: the repository; made if it is not there.
        entry: what to add.
        replace: whether an entry of that name and version makes room.

    Returns:
        The entry's folder.

    Raises:
        InvalidModel: if there is such an entry already, or one without versions that takes the place of all of them.
    """
    spec = entry.spec
    place = folder / spec.name / spec.version
    if any((place.parent / file).exists() for file in SPEC_FILES):
        raise InvalidModel(f"{place.parent} holds a model itself, so there can be no versions in it; move it first")
    if place.exists() and not replace:
        raise InvalidModel(f"{place} exists already; give another name or version, or --force to replace it")
    folder.mkdir(parents=True, exist_ok=True)
    # A folder whose name begins with a dot is no entry, and a rename within one repository happens at once.
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as name:
        made, old = Path(name) / "new", Path(name) / "old"
        made.mkdir()
        described = spec.model_dump_json(indent=1, exclude_defaults=True) + "\n"
        if isinstance(entry, EncoderEntry):
            (made / "encoder.json").write_text(described)
            (made / "tokenizer.json").write_bytes(entry.tokenizer)
        else:
            (made / "spec.json").write_text(described)
        save_file(entry.weights.tensors(), made / "weights.safetensors")
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            place.rename(old)
        made.rename(place)
    return place


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
        if not _is_inside(folder, name) or any((name / file).exists() for file in SPEC_FILES):
            return [name]
        return _subfolders(name) or [name]
    except OSError:  # such as a lost+found: `_read` fails the same way, and that is reported
        return [name]


def _read_all(folder: Path, places: Iterable[Path], max_bytes: int) -> tuple[list[Entry], list[BrokenEntry]]:
    good: dict[str, Entry] = {}
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


def _read(folder: Path, place: Path, origin: str, max_bytes: int) -> Entry:
    if not _is_inside(folder, place):
        raise InvalidModel("the folder is a link that leads out of the repository")
    weights = _plain(folder, place / "weights.safetensors")
    if weights is not None and (size := weights.stat().st_size) > max_bytes:
        raise InvalidModel(f"{weights.name} takes {math.ceil(size / MIB)} MiB; {max_bytes // MIB} MiB are allowed")
    if _plain(folder, place / "encoder.json") is not None:
        return _read_encoder(folder, place, weights, origin)
    spec = parse_spec(_content(folder, place / "spec.json", MAX_SPEC_BYTES), f"{origin}/spec.json")
    _check_place(spec, "spec.json", origin)
    return _entry(spec, weights, origin, max_bytes)


def _read_encoder(folder: Path, place: Path, weights: Path | None, origin: str) -> EncoderEntry:
    if (place / "spec.json").exists():
        raise InvalidModel("there are spec.json and encoder.json: a folder holds a layer or an encoder")
    spec = parse_encoder_spec(_content(folder, place / "encoder.json", MAX_SPEC_BYTES), f"{origin}/encoder.json")
    _check_place(spec, "encoder.json", origin)
    tokenizer = _content(folder, place / "tokenizer.json", MAX_TOKENIZER_BYTES)
    Tokenizer(tokenizer, spec.vocab_size)
    if weights is None:
        raise InvalidModel("weights.safetensors is missing")
    return EncoderEntry(spec, encoder_weights.load(spec, weights), tokenizer, origin)


def _content(folder: Path, path: Path, most: int) -> bytes:
    file = _plain(folder, path)
    if file is None:
        raise InvalidModel(f"{path.name} is missing")
    if file.stat().st_size > most:
        raise InvalidModel(f"{path.name} is larger than {most} bytes")
    return file.read_bytes()


def _check_place(spec: AttentionSpec | EncoderSpec, file: str, origin: str) -> None:
    parts = Path(origin).parts
    if spec.name != parts[0] or (len(parts) > 1 and spec.version != parts[1]):
        raise InvalidModel(f"{file} calls itself {spec.id}, but stands in the folder {origin}")


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
        weights = weights_module.load(spec, file)
    else:
        raise InvalidModel("weights.safetensors is missing, and spec.json holds neither seed nor weights")
    return ModelEntry(spec, weights, origin)
