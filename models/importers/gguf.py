"""Checkpoints in GGUF, quantised or not, under the names and configuration the same model has as safetensors."""

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from models.errors import InvalidModel
from models.importers.base import Config
from models.types import F32

MODULES = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}
ARCHITECTURES = ("llama", "qwen2")
FIELDS = {
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "context_length": "max_position_embeddings",
}
HARMLESS = ("attention.layer_norm_rms_epsilon", "attention.value_length", "rope.dimension_count", "rope.scaling.type")


class GgufCheckpoint:
    """A GGUF file of the architecture `llama` or `qwen2`.

    Raises:
        InvalidModel: if the package `gguf` is missing, the file cannot be read or is of another architecture, or its
            metadata say something about attention that is not known here.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._gguf = importlib.import_module("gguf")
        except ImportError as error:
            message = f"{path.name}: the package gguf reads such files. Run: pip install self-attention-service[gguf]"
            raise InvalidModel(message) from error
        try:
            reader = self._gguf.GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise InvalidModel(f"{path.name}: not readable as GGUF: {error}") from error
        self.path = path
        self.read_files = {path.name: path}
        fields = {name: f.contents() for name, f in reader.fields.items() if not name.startswith("tokenizer.")}
        self.config = _config(fields, path.name)
        self.license = str(fields.get("general.license", ""))
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        if "rope_freqs.weight" in tensors:
            raise InvalidModel("tensor 'rope_freqs.weight' scales each rotation by itself; import the safetensors")
        self._tensors = {_name(name): tensor for name, tensor in tensors.items()}

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        return self._tensors.keys()

    def read(self, name: str) -> F32:
        """One tensor, dequantised.

        Queries and keys of a `llama` file are stored for pairs (2i, 2i + 1); their rows are put back into the order of
        pairs (i, i + head_dim / 2), which the configuration stands for.
        """
        tensor = self._tensors[name]
        try:
            found = self._gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            kind = tensor.tensor_type.name
            raise InvalidModel(f"tensor {tensor.name!r} has dtype {kind}, which cannot be read: {error}") from error
        floats: F32 = np.asarray(found, np.float32)
        swapped = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(tensor.name.split(".")[2])
        if swapped is None or self.config.values["model_type"] != "llama":
            return floats
        heads = self.config.integer(swapped)
        if len(floats) % (2 * heads):
            raise InvalidModel(f"tensor {tensor.name!r} has {len(floats)} rows, which {heads} heads cannot share")
        pairs = floats.reshape(heads, -1, 2, *floats.shape[1:])  # (heads, head_dim / 2, 2, …)
        return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(floats.shape))


def _name(name: str) -> str:
    """`blk.3.attn_q.weight` as `model.layers.3.self_attn.q_proj.weight`; other parts of a model keep their names."""
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or not parts[2].startswith("attn_") or parts[2] == "attn_norm":
        return name
    return f"model.layers.{parts[1]}.self_attn.{MODULES.get(parts[2], parts[2])}.{parts[3]}"


def _config(fields: dict[str, Any], where: str) -> Config:
    """The metadata as a config.json has them."""
    kind = fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise InvalidModel(f"{where}: architecture {kind!r} is none of {', '.join(ARCHITECTURES)}")
    own = {name.removeprefix(f"{kind}."): value for name, value in fields.items() if name.startswith(f"{kind}.")}
    for name in own:
        if name.startswith(("attention.", "rope.")) and name not in (*FIELDS, *HARMLESS):
            raise InvalidModel(f"{where}: {kind}.{name} is something an imported layer cannot express")
    values = {theirs: own[name] for name, theirs in FIELDS.items() if name in own}
    if own.get("rope.scaling.type", "none") != "none":
        raise InvalidModel(f"{where}: {kind}.rope.scaling.type is not none; import the safetensors")
    values.setdefault("num_key_value_heads", values.get("num_attention_heads"))
    if "head_dim" not in values and "rope.dimension_count" in own:
        values["head_dim"] = own["rope.dimension_count"]
    for name in ("rope.dimension_count", "attention.value_length"):
        if own.get(name, values.get("head_dim")) != values.get("head_dim"):
            raise InvalidModel(f"{where}: {kind}.{name} {own[name]} is not the width of a head")
    return Config(values | {"model_type": kind, "_name_or_path": fields.get("general.name")}, where)
