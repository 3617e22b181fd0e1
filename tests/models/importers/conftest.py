"""Fixtures: a configuration and tensors other than those that were saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file


@pytest.fixture
def rewrite_config() -> Callable[..., None]:
    """Change fields of a folder's config.json; `...` removes one."""

    def rewrite(folder: Path, **changes: Any) -> None:
        file = folder / "config.json"
        values = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))

    return rewrite


@pytest.fixture
def rewrite_tensors() -> Callable[[Path, dict[str, torch.Tensor | None]], None]:
    """Change tensors of a folder's model.safetensors; None removes one."""

    def rewrite(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
        file = folder / "model.safetensors"
        tensors = {name: tensor for name, tensor in (load_file(file) | changes).items() if tensor is not None}
        save_file(tensors, file)

    return rewrite
