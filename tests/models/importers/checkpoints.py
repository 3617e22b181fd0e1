"""Tiny random checkpoints, and the law that holds for a layer imported from any of them."""

import json
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.eager import SelfAttention
from models.importers import Imported, identify, import_layer, open_checkpoint, parity
from models.masks import visible
from tests.library import quiet

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", minversion="5.0", reason="a library to compare with")

EXACT = 1e-12  # the reference and the library, both in float64
ROUNDED = 1e-5  # our torch module and the library, both in float32
MISTAKEN = 1e-3

SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save(folder: Path, model: str, dtype: torch.dtype = torch.float32, shard: str = "1GB", **config: Any) -> Path:
    """Write a random model of the class `model`, its numbers drawn anew: as made, attention is all but uniform."""
    kind = getattr(transformers, model)
    with quiet(False):
        made = kind(kind.config_class(**config))
        random = np.random.RandomState(0)
        for name, parameter in made.named_parameters():
            numbers = random.standard_normal(parameter.shape)
            if parameter.ndim >= 2:
                numbers *= 1.5 / math.sqrt(min(parameter.shape))
            elif "norm" in name.lower() and name.endswith("weight"):
                numbers = 1 + 0.3 * numbers
            parameter.data = torch.tensor(numbers, dtype=torch.float32)
        made.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder


@dataclass(frozen=True)
class Beside:
    """An imported layer, and what its library makes of the same layer.

    Attributes:
        imported: the layer.
        exact: the library's run in float64.
        rounded: its run in float32.
    """

    imported: Imported
    exact: parity.Run
    rounded: parity.Run


def beside_library(path: Path, layer: int, **options: Any) -> Beside:
    """Import a layer, and run it in its library."""
    imported = import_layer(path, layer, "m", **options)
    heads, checkpoint = imported.spec.num_heads, open_checkpoint(path)
    family = identify(checkpoint, options.get("family"))
    with quiet(exact=family.library is not None):  # torch itself insists on nothing
        exact = parity.run_library(checkpoint, family, layer, heads, "float64")
    rounded = parity.run_library(checkpoint, family, layer, heads)
    assert exact is not None
    assert rounded is not None
    return Beside(imported, exact, rounded)


def assert_imports(path: Path, layer: int, **options: Any) -> Imported:
    """Import a layer, and hold it against the library in float64, and as it is served, in float32."""
    found = beside_library(path, layer, **options)
    rounded, spec, weights = found.rounded, found.imported.spec, found.imported.weights

    assert spec.provenance.parity.library == rounded.library
    assert {"weights", "outputs", "projected"} == spec.provenance.parity.differences.keys()
    _, difference = parity.compare(found.exact, spec, weights)
    assert difference <= EXACT

    narrow = parity.narrowed(spec)
    n = len(rounded.inputs)
    keep = visible(n, None, is_causal=narrow.is_causal, window=narrow.window)
    ours = SelfAttention(narrow, weights)(
        torch.tensor(rounded.inputs[None], dtype=torch.float32),
        torch.tensor(spec.effective_scale, dtype=torch.float32),
        None if keep is None else torch.tensor(keep[None]),
    )
    for got, want in (
        (ours.weights, rounded.weights),
        (ours.outputs, rounded.outputs),
        (ours.projected, rounded.projected),
    ):
        assert np.abs(got[0].numpy() - want).max() / np.abs(want).max() <= ROUNDED
    return found.imported


def rewrite_config(folder: Path, **changes: Any) -> None:
    """Change fields of a folder's config.json; `...` removes one."""
    file = folder / "config.json"
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))


def rewrite_tensors(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Change tensors of a folder's model.safetensors; None removes one."""
    file = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in (load_file(file) | changes).items() if tensor is not None}
    save_file(tensors, file)
