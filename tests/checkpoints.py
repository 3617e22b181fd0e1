"""Tiny encoders of the library transformers with numbers drawn anew, and what it says of them."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.encoders import word_pieces

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", minversion="5.0", reason="a library to compare with")
    transformers.utils.logging.disable_progress_bar()

SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 300,
}


def write_checkpoint(
    folder: Path, model: str, *, dtype: torch.dtype = torch.float32, shard: str = "1GB", **config: Any
) -> Path:
    """Write config.json, model.safetensors and tokenizer.json of a model class such as `BertModel`."""
    kind = getattr(transformers, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = kind(kind.config_class(**SIZES | config))
        redraw(made)
        made.to(dtype).save_pretrained(folder, max_shard_size=shard)
    (folder / "tokenizer.json").write_bytes(word_pieces())
    return folder


def redraw(model: nn.Module) -> None:
    """Draw every number anew: as made, attention is all but uniform and biases are zeros."""
    random = np.random.RandomState(0)
    for name, parameter in model.named_parameters():
        numbers = random.standard_normal(parameter.shape)
        if name.endswith("LayerNorm.weight"):
            numbers = 1 + 0.3 * numbers
        elif parameter.ndim == 2 and "embeddings" not in name:
            numbers *= 1.5 / np.sqrt(parameter.shape[1])
        parameter.data = torch.tensor(numbers.astype(np.float32))


def library(folder: Path, dtype: torch.dtype) -> nn.Module:
    """The library's own model of a folder, without a head."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoModel.from_pretrained(
            folder, attn_implementation="eager", dtype=dtype, local_files_only=True
        ).eval()


def library_run(model: nn.Module, ids: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Attention weights of each layer, (b, h, n, n), and hidden states before, between and after layers, (b, n, d)."""
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        found = model(torch.tensor(ids), output_attentions=True, output_hidden_states=True)
    return [t.numpy() for t in found.attentions], [t.numpy() for t in found.hidden_states]


def change_config(folder: Path, **changes: Any) -> None:
    """Edit a config.json; None takes a field away."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def largest(found: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest absolute difference."""
    return float(np.max([np.abs(a - b).max() for a, b in zip(found, want, strict=True)]))  # `max` may lose a NaN
