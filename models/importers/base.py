"""What a checkpoint is, what a family is, and how a layer's tensors are taken out of a checkpoint.

A checkpoint names its tensors and reads them one by one, so that a file of many gigabytes costs no more than the layer.
A family knows how one kind of model calls, shapes and uses the tensors of an attention layer. Whatever a family was not
told to expect, in the configuration or among the tensors, is refused: wrong numbers look like right ones.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from models.errors import InvalidModel
from models.types import F32


class Config:
    """A model's configuration, whose fields are there and of the right kind or an error that names them."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def _number(self, kind: type | tuple[type, ...], names: tuple[str, ...], default: Any, least: float) -> Any:
        for name in names:
            if name in self:
                value = self.values[name]
                fits = isinstance(value, kind) and not isinstance(value, bool)
                if not fits or not value >= least:
                    what = f"a whole number of {least} or more" if kind is int else "a positive number"
                    raise self.fault(name, f"is not {what}")
                return value
        if default is None:
            raise InvalidModel(f"{self.where}: {names[0]} is missing")
        return default

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of `names` that is there and not null; `default` if none is and there is one."""
        found: int = self._number(int, names, default, least)
        return found

    def number(self, *names: str, default: float | None = None) -> float:
        """Like `integer`, for any positive number."""
        return float(self._number((int, float), names, default, least=sys.float_info.min))

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean; null is `default`."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(name, "is neither true nor false")
        return value

    def nested(self, name: str) -> "Config | None":
        """The object of that name; None if it is missing or null."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(name, "is not an object")
        return Config(value, f"{self.where}: {name}")

    def stated(self, *names: str) -> None:
        """Refuse to guess: each of `names` must be there, though it may be null."""
        for name in names:
            if name not in self.values:
                raise InvalidModel(f"{self.where}: {name} is missing")

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse any value of `name` but `allowed` ones, null or none at all."""
        value = self.values.get(name)
        if value is not None and value not in allowed:
            raise self.fault(name, "is something an imported layer cannot express")

    def fault(self, name: str, what: str) -> InvalidModel:
        """The error for a field."""
        return InvalidModel(f"{self.where}: {name} {json.dumps(self.values.get(name), default=str)} {what}")


class Checkpoint(Protocol):
    """A file or folder of named tensors.

    Attributes:
        path: what the user named.
        config: the model's configuration; empty where there is none.
        license: the licence it states, or "".
        read_files: the files something was read from so far, by the name that provenance gives them.
    """

    path: Path
    config: Config
    license: str
    read_files: dict[str, Path]

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        ...

    def read(self, name: str) -> F32:
        """One tensor.

        Raises:
            InvalidModel: if it cannot be read, or is of another dtype than floats; the message names it.
        """
        ...


@dataclass(slots=True)
class Block:
    """The attention tensors of one layer of a checkpoint; what is not taken by the end is refused.

    Attributes:
        checkpoint: where they are.
        prefix: what their names have in common.
        left: the rest of the names of those not taken yet.
        tensors: those taken, as ours: y = x W + b.
    """

    checkpoint: Checkpoint
    prefix: str
    left: set[str]
    tensors: dict[str, F32] = field(default_factory=dict)

    def read(self, name: str, *shape: int) -> F32:
        """Take a tensor as it is.

        Raises:
            InvalidModel: if it is missing, or of another shape or dtype.
        """
        full = self.prefix + name
        if name not in self.left:
            raise InvalidModel(f"tensor {full!r} is missing")
        self.left.remove(name)
        tensor = self.checkpoint.read(full)
        if tensor.shape != shape:
            raise InvalidModel(f"tensor {full!r} has shape {tensor.shape}, but the configuration makes it {shape}")
        return tensor

    def linear(self, ours: str, theirs: str, outs: int, ins: int, *, bias: bool) -> None:
        """Take the weight (outs, ins), and the bias (outs,) if there is to be one, of a `torch.nn.Linear`."""
        self.tensors[ours] = self.read(f"{theirs}.weight", outs, ins).T
        if bias:
            self.tensors[f"{ours}_bias"] = self.read(f"{theirs}.bias", outs)

    def finish(self, *known: str) -> None:
        """Refuse what is left, but for names that begin with one of `known` and change no number."""
        unknown = sorted(name for name in self.left if not name.startswith(known))
        if unknown:
            raise InvalidModel(f"tensor {self.prefix + unknown[0]!r} is none that this family knows")


def find_block(checkpoint: Checkpoint, templates: tuple[str, ...], layer: int) -> Block:
    """The attention block of a layer.

    Args:
        checkpoint: where to look. Its names may begin with anything: a model with a head on it, such as
            `BertForMaskedLM`, puts a prefix before the names of the bare one.
        templates: how its names go on, `{}` for the layer; the first with tensors counts. An empty one is all names,
            layer 0.
        layer: its number.

    Raises:
        InvalidModel: if there is none, or more than one.
    """
    layers: set[int] = set()
    for template in templates:
        start = r"(?:.*\.)?" if template else ""
        numbered = re.compile(start + re.escape(template).replace(r"\{\}", r"(\d+)"))
        found: dict[str, set[str]] = {}
        for name in checkpoint.names():
            if match := numbered.match(name):
                number = int(match[1]) if "{}" in template else 0
                layers.add(number)
                if number == layer:
                    found.setdefault(match[0], set()).add(name[match.end() :])
        if len(found) > 1:
            places = ", ".join(sorted(found))
            raise InvalidModel(f"more than one attention block is layer {layer}: {places}; save one model alone")
        if found:
            ((prefix, rest),) = found.items()
            return Block(checkpoint, prefix, rest)
    if layers:
        raise InvalidModel(f"there is no layer {layer}: the checkpoint has layers {min(layers)} to {max(layers)}")
    raise InvalidModel(f"no tensor's name has {templates[0].format(layer)!r} in it, as this family's have")


@dataclass(frozen=True, slots=True)
class Library:
    """Where the library `transformers` keeps the same layer, so that the two can be compared.

    Attributes:
        attention: path of the module that gets the inputs and returns the weights, `{}` for the layer.
        output: path of the linear module that gets the outputs and projects them.
        auto: the class that loads the model.
        is_encoder_decoder: whether it wants ids for a decoder too.
    """

    attention: str
    output: str
    auto: str = "AutoModel"
    is_encoder_decoder: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """One layout of checkpoints.

    Attributes:
        name: what `--family` calls it.
        model_types: values of `model_type` in config.json.
        blocks: templates of the names of a layer's attention block, see `find_block`.
        inputs: what enters the projections, for people.
        read: takes a block's tensors, and returns the fields of the spec. Its arguments are the block, the
            configuration, the layer's number, and the number of heads if the user gave it.
        library: the same layer in `transformers`; None: it is a `torch.nn.MultiheadAttention`.
    """

    name: str
    model_types: tuple[str, ...]
    blocks: tuple[str, ...]
    inputs: str
    read: Callable[[Block, Config, int, int | None], dict[str, Any]]
    library: Library | None


def head_dim(config: Config, width: int, heads: int) -> int:
    """Width over heads, where that is a whole number.

    Raises:
        InvalidModel: if it is not.
    """
    if width % heads:
        raise InvalidModel(f"{config.where}: a width of {width} cannot be shared by {heads} heads")
    return width // heads


def as_float32(tensor: Any) -> F32:
    """A torch tensor of floats as a NumPy array; what overflows becomes infinite, and is refused where that matters."""
    with np.errstate(over="ignore"):
        found: F32 = tensor.float().numpy()
    return found
