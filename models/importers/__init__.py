"""Layers out of other people's checkpoints. To add a family, write its file and name it in `FAMILIES`."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from models.errors import InvalidModel
from models.importers import bert, distilbert, gpt2, llama, multihead, parity, t5, vit
from models.importers.base import Checkpoint, Config, Family, find_block
from models.importers.gguf import GgufCheckpoint
from models.importers.safetensors import SafetensorsCheckpoint
from models.spec import AttentionSpec, Parity, parse_spec
from models.weights import AttentionWeights, checked

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        bert.FAMILY,
        distilbert.FAMILY,
        gpt2.FAMILY,
        llama.FAMILY,
        vit.FAMILY,
        t5.ENCODER,
        t5.DECODER,
        multihead.FAMILY,
    )
}


@dataclass(frozen=True, slots=True)
class Imported:
    """A layer, and what it says of itself; `spec.provenance` tells where it is from."""

    spec: AttentionSpec
    weights: AttentionWeights


def open_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, of which nothing but names and configuration is read yet.

    Raises:
        InvalidModel: if it is neither a GGUF file nor safetensors that can be read.
    """
    if not path.exists():
        raise InvalidModel(f"{path}: no such file or folder")
    return GgufCheckpoint(path) if path.suffix == ".gguf" else SafetensorsCheckpoint(path)


def identify(checkpoint: Checkpoint, family: str | None = None) -> Family:
    """Which family a checkpoint is of: the one of its model type, or `family` if that fits.

    Raises:
        InvalidModel: if it is of none, or not of `family`.
    """
    if family is not None and family not in FAMILIES:
        raise InvalidModel(f"there is no family {family!r}; there are {', '.join(FAMILIES)}")
    stacked = any(re.search(r"(^|\.)(in_proj_weight|q_proj_weight)$", name) for name in checkpoint.names())
    if family == multihead.FAMILY.name or (family is None and stacked and not checkpoint.config.values):
        return multihead.FAMILY
    kind = model_type(checkpoint.config)
    fitting = [found for found in FAMILIES.values() if kind in found.model_types]
    if not fitting:
        known = ", ".join(kind for found in FAMILIES.values() for kind in found.model_types)
        raise InvalidModel(f"{checkpoint.config.where}: model_type {kind!r} is none of those imported: {known}")
    if family is None:
        return fitting[0]
    if FAMILIES[family] not in fitting:
        raise InvalidModel(f"{checkpoint.config.where}: model_type {kind!r} is of the family {fitting[0].name}")
    return FAMILIES[family]


def model_type(config: Config) -> str:
    """What a configuration calls its kind of model, or else what the name of its architecture begins with.

    Raises:
        InvalidModel: if it has neither.
    """
    if not config.values:
        raise InvalidModel("config.json is missing: it says what the tensors mean and how many heads there are")
    if isinstance(kind := config.values.get("model_type"), str):
        return kind
    architectures = config.values.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise InvalidModel(f"{config.where}: neither model_type nor architectures says what it is")
    start = re.split(r"Model|For|LMHead", str(architectures[0]))[0].lower()
    known = {kind.replace("-", ""): kind for family in FAMILIES.values() for kind in family.model_types}
    return known.get(start, start)


def import_layer(
    path: Path,
    layer: int,
    name: str,
    *,
    version: str = "1",
    family: str | None = None,
    num_heads: int | None = None,
    source: str | None = None,
    license: str | None = None,
    check: bool = True,
) -> Imported:
    """Take an attention layer out of a checkpoint.

    Args:
        path: a safetensors or GGUF file, or a folder with config.json and a model in one file or several.
        layer: its number, from 0.
        name: what the layer will be called.
        version: its version.
        family: a name of `FAMILIES`; default: as its configuration says.
        num_heads: for the family `multihead`, whose files do not say.
        source: where the weights come from; default: what the checkpoint calls itself.
        license: their licence; default: what the checkpoint states.
        check: compare it with the library that the checkpoint is made for, where that is installed.

    Raises:
        InvalidModel: if the checkpoint cannot be read, holds something unknown, has no such layer, or if the library
            computes something else.
    """
    checkpoint = open_checkpoint(path)
    found = identify(checkpoint, family)
    if num_heads is not None and found is not multihead.FAMILY:
        raise InvalidModel(f"{checkpoint.config.where} says how many heads there are; leave out --num-heads")
    config = checkpoint.config
    if found.model_types:
        config = Config({**config.values, "model_type": model_type(config)}, config.where)
    block = find_block(checkpoint, found.blocks, layer)
    fields = found.read(block, config, layer, num_heads)
    fields |= {
        "name": name,
        "version": version,
        "description": f"Layer {layer} of a {found.name} checkpoint. Inputs are {found.inputs}.",
        "source": called(checkpoint) if source is None else source,
        "license": checkpoint.license if license is None else license,
    }
    spec = parse_spec(json.dumps(fields), f"{path.name}, layer {layer}")
    weights = checked(spec, block.tensors, f"{path.name}, layer {layer}")
    measured = parity.measure(checkpoint, found, layer, spec, weights) if check else None
    return Imported(_with_provenance(spec, found, layer, checkpoint, measured), weights)


def _with_provenance(
    spec: AttentionSpec, family: Family, layer: int, checkpoint: Checkpoint, measured: Parity | None
) -> AttentionSpec:
    files = {name: _sha256(path) for name, path in sorted(checkpoint.read_files.items())}
    provenance = {"family": family.name, "layer": layer, "files": files, "parity": measured}
    return AttentionSpec.model_validate({**spec.model_dump(), "provenance": provenance})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def called(checkpoint: Checkpoint) -> str:
    """What the checkpoint calls itself, and never a path of this machine."""
    stated: Any = checkpoint.config.values.get("_name_or_path")
    if isinstance(stated, str) and stated:
        local = PurePath(stated).is_absolute() or "\\" in stated or stated.startswith((".", "~"))
        return re.split(r"[/\\]", stated.rstrip("/\\"))[-1] if local else stated
    return checkpoint.path.resolve().name
