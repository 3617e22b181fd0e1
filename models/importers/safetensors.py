"""Checkpoints in safetensors: one file, or a folder with config.json and a model in one file or several."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from models.errors import InvalidModel
from models.importers.base import Config, as_float32
from models.types import F32

FLOATS = ("F16", "BF16", "F32", "F64")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PLAIN_NAME = re.compile(r"[\w.-]+\.safetensors")
NO_PICKLE = (
    "pickles can run any code when they are opened, so they are not read; save it as safetensors first: "
    "model.save_pretrained(folder), or safetensors.torch.save_file(state_dict, file)"
)


class SafetensorsCheckpoint:
    """A checkpoint of one or several safetensors files.

    Args:
        path: a safetensors file, or a folder with `model.safetensors` or `model.safetensors.index.json`. A config.json
            beside the file is its configuration.

    Raises:
        InvalidModel: if it is something else, or its index or configuration cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        folder = path if path.is_dir() else path.parent
        self.read_files: dict[str, Path] = {}
        self.config = Config(self._json(folder / "config.json") if (folder / "config.json").exists() else {})
        self.config.only("quantization_config")
        self.license = _license(folder / "README.md")
        self._places = self._find(path)

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        return self._places.keys()

    def read(self, name: str) -> F32:
        """One tensor; the rest of its file is not read."""
        path = self._places[name]
        self.read_files[path.name] = path
        try:
            # NumPy has no bfloat16, so torch reads.
            with safe_open(path, framework="pt") as file:
                if (dtype := file.get_slice(name).get_dtype()) not in FLOATS:
                    raise InvalidModel(f"tensor {name!r} has dtype {dtype}; {', '.join(FLOATS)} are read")
                return as_float32(file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise InvalidModel(f"{path.name}: tensor {name!r} cannot be read: {error}") from error

    def _find(self, path: Path) -> dict[str, Path]:
        """Which file each tensor is in."""
        if path.suffix in PICKLES:
            raise InvalidModel(f"{path.name}: {NO_PICKLE}")
        if not path.is_dir():
            return dict.fromkeys(_names(path), path)
        if (path / SINGLE).exists():
            return dict.fromkeys(_names(path / SINGLE), path / SINGLE)
        if (path / INDEX).exists():
            index = self._json(path / INDEX).get("weight_map")
            if not isinstance(index, dict):
                raise InvalidModel(f"{INDEX}: weight_map is not an object")
            for file in index.values():
                if not isinstance(file, str) or not PLAIN_NAME.fullmatch(file):
                    raise InvalidModel(f"{INDEX}: {file!r} is not the name of a safetensors file beside it")
            return {name: path / file for name, file in index.items()}
        if pickles := sorted(file.name for file in path.iterdir() if file.suffix in PICKLES):
            raise InvalidModel(f"{pickles[0]}: {NO_PICKLE}")
        raise InvalidModel(f"neither {SINGLE} nor {INDEX} is in the folder {path.name}")

    def _json(self, path: Path) -> dict[str, Any]:
        self.read_files[path.name] = path
        try:
            values = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidModel(f"{path.name}: not readable as JSON: {error}") from error
        if not isinstance(values, dict):
            raise InvalidModel(f"{path.name}: not a JSON object")
        return values


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise InvalidModel(f"{path.name}: not readable as safetensors: {error}") from error


def _license(readme: Path) -> str:
    """The `license:` of a model card's front matter, or ""."""
    if not readme.exists():
        return ""
    front = re.match(r"---\n(.*?)\n---", readme.read_text(errors="replace"), re.DOTALL)
    found = re.search(r"^license:[ \t]*(\S.*)$", front[1], re.MULTILINE) if front else None
    return found[1].strip().strip("\"'") if found else ""
