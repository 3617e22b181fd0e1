"""The numbers of a model, for a process that serves it without holding them: its engine is another process."""

from functools import lru_cache
from pathlib import Path

from models import repository
from models.errors import InvalidModel
from models.repository import EncoderEntry, Entry, ModelEntry
from service.catalog import Loaded, repository_folder, with_builtin
from service.errors import UnservableModel
from service.settings import MIB, Settings


def with_numbers(loaded: Loaded, settings: Settings) -> Entry:
    """The entry of a model with its numbers: those it holds, else those on disk, if they are the ones being served.

    Takes as long as the weights take to be read; the last few are remembered.

    Raises:
        UnservableModel: if the model's folder has changed since it was loaded.
    """
    entry = loaded.entry
    held = entry.weights.word if isinstance(entry, EncoderEntry) else entry.weights.query
    if held.size:
        return entry
    folder = repository_folder(settings)
    return _read(folder, entry.spec.name, entry.spec.version, loaded.digest, settings.max_model_mib * MIB)


@lru_cache(maxsize=4)
def _read(folder: Path | None, name: str, version: str, digest: str, most: int) -> Entry:
    own: list[Entry] = []
    if folder is not None:
        try:
            own, _ = repository.read(folder, name, version, most)
        except (InvalidModel, OSError) as error:
            raise UnservableModel(f"{name}@{version} cannot be read again: {error}") from error
    for entry in with_builtin(own):
        if (entry.spec.name, entry.spec.version) == (name, version) and entry.weights.digest() == digest:
            return entry
    raise UnservableModel(f"the folder of {name}@{version} has changed since it was loaded; load the model again")


def layer_with_numbers(loaded: Loaded, settings: Settings) -> ModelEntry:
    """The same of a layer."""
    entry = with_numbers(loaded, settings)
    assert isinstance(entry, ModelEntry), "whoever asks has looked"
    return entry


def encoder_with_numbers(loaded: Loaded, settings: Settings) -> EncoderEntry:
    """The same of an encoder."""
    entry = with_numbers(loaded, settings)
    assert isinstance(entry, EncoderEntry), "whoever asks has looked"
    return entry
