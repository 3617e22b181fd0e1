"""A whole encoder from a folder as the library transformers writes it: config.json, safetensors, tokenizer.json.

Poolers, heads and buffers are left out. Whatever else stands among the embeddings or layers and has no place in an
`EncoderSpec` is refused: a scheme that is not understood would give wrong numbers without a word.
"""

import hashlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models import encoder_weights
from models.encoder_eager import Encoder
from models.encoder_spec import Activation, EncoderSpec
from models.encoder_weights import EncoderWeights
from models.errors import InvalidModel
from models.importers.safetensors import SafetensorsCheckpoint
from models.repository import EncoderEntry
from models.spec import Parity, faults, parsed
from models.tokenizer import Tokenizer
from models.types import Array

CONFIG, TOKENIZER = "config.json", "tokenizer.json"

MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "camembert")

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""What the library calls the activations."""

EMBEDDINGS = {
    "word_embeddings.weight": "word",
    "position_embeddings.weight": "position",
    "token_type_embeddings.weight": "token_type",
    "LayerNorm.weight": "norm",
    "LayerNorm.bias": "norm_bias",
}
BUFFERS = frozenset({"embeddings.position_ids", "embeddings.token_type_ids"})
LAYER = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "output",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "feed_in",
    "output.dense": "feed_out",
    "output.LayerNorm": "norm2",
}
"""Their names to ours; of a layer, each has `.weight` and `.bias`."""

PARITY_LENGTHS = (1, 2, 7, 31, 64)

LIMIT = 1e-4
"""Largest difference of an attention weight from the library's: float32 makes some 1e-6."""


class Kind(BaseModel):
    """What a config.json says first."""

    model_type: str


class Config(BaseModel):
    """What of a config.json the numbers depend on; sizes have no defaults, for those of the library may change."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: str
    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    max_position_embeddings: int = Field(ge=1)
    type_vocab_size: int = Field(ge=0)
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]
    layer_norm_eps: float = Field(gt=0)
    pad_token_id: int | None = Field(default=None, ge=0)
    position_embedding_type: Literal["absolute"] | None = None
    is_decoder: Literal[False] | None = None
    add_cross_attention: Literal[False] | None = None

    @property
    def position_offset(self) -> int:
        """Row of the first token's position."""
        if self.model_type == "bert":
            return 0
        if self.pad_token_id is None:
            raise InvalidModel(f"{CONFIG}: pad_token_id: {self.model_type} counts positions from the row after it")
        return self.pad_token_id + 1


def import_encoder(
    folder: Path,
    name: str,
    *,
    version: str = "1",
    description: str = "",
    source: str = "",
    license: str = "",
    parity: bool = True,
) -> EncoderEntry:
    """Read a checkpoint.

    Args:
        folder: holds config.json, tokenizer.json, and model.safetensors or its index and parts.
        name: what the encoder is to be called.
        version: see `EncoderSpec`, as for the rest.
        description: for people.
        source: where the checkpoint comes from.
        license: of the weights.
        parity: whether to compare with transformers, where that is installed: it takes seconds.

    Returns:
        The encoder as an entry of no repository yet.

    Raises:
        InvalidModel: if a file is missing or unreadable, the config asks for what an `EncoderSpec` has no word for, or
            a tensor is missing, unknown, or of another shape than the config says; the message names it.
    """
    content = _content(folder / CONFIG)
    if (kind := parsed(Kind, content, CONFIG).model_type) not in MODEL_TYPES:
        raise InvalidModel(
            f"{CONFIG}: model_type {kind!r} is not taken whole, only {', '.join(MODEL_TYPES)} are; "
            "with --layer N one layer of it is imported"
        )
    config = parsed(Config, content, CONFIG)
    checkpoint = SafetensorsCheckpoint(folder)
    tokenizer = _content(folder / TOKENIZER)
    tensors = _tensors(checkpoint)
    if config.hidden_size % config.num_attention_heads:
        raise InvalidModel(f"{CONFIG}: hidden_size {config.hidden_size} is no multiple of num_attention_heads")
    try:
        spec = EncoderSpec(
            name=name,
            version=version,
            description=description,
            num_layers=config.num_hidden_layers,
            embed_dim=config.hidden_size,
            num_heads=config.num_attention_heads,
            head_dim=config.hidden_size // config.num_attention_heads,
            intermediate_dim=config.intermediate_size,
            vocab_size=config.vocab_size,
            max_positions=config.max_position_embeddings - config.position_offset,
            position_offset=config.position_offset,
            token_types=config.type_vocab_size,
            layer_norm_eps=config.layer_norm_eps,
            activation=ACTIVATIONS[config.hidden_act],
            source=source,
            license=license,
            files={file: sha256(path) for file, path in sorted(checkpoint.read_files.items())}
            | {TOKENIZER: sha256(folder / TOKENIZER)},
        )
    except ValidationError as error:
        raise InvalidModel(f"{CONFIG} does not make an encoder: {faults(error)}") from error
    weights = encoder_weights.checked(spec, tensors, folder.name)
    Tokenizer(tokenizer, spec.vocab_size)
    if parity:
        spec = spec.model_copy(update={"parity": measure_parity(folder, spec, weights)})
    return EncoderEntry(spec, weights, tokenizer, "")


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise InvalidModel(f"{file.name} is missing in {file.parent}")
    return file.read_bytes()


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _tensors(checkpoint: SafetensorsCheckpoint) -> dict[str, Array]:
    """The encoder's tensors under our names, as far as the checkpoint has them."""
    found: dict[str, Array] = {}
    for theirs in checkpoint.names():
        bare = theirs.removeprefix("bert.").removeprefix("roberta.")
        if not bare.startswith(("embeddings.", "encoder.")) or bare in BUFFERS:
            continue
        if (ours := _ours(bare)) is None:
            raise InvalidModel(f"unknown tensor {theirs!r}")
        if ours in found:
            raise InvalidModel(f"{theirs!r} is there twice, with and without a prefix")
        tensor = checkpoint.read(theirs)
        linear = bare.startswith("encoder.") and tensor.ndim == 2
        found[ours] = tensor.T if linear else tensor
    return found


def _ours(bare: str) -> str | None:
    """Our name of a tensor, or None if it has none."""
    bare = bare.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )  # before 2019
    kind, _, rest = bare.partition(".")
    if kind == "embeddings":
        return EMBEDDINGS.get(rest)
    within, _, rest = rest.partition(".")
    number, _, rest = rest.partition(".")
    part, _, end = rest.rpartition(".")
    if within != "layer" or not number.isdecimal() or part not in LAYER or end not in ("weight", "bias"):
        return None
    return f"layers.{int(number)}.{LAYER[part]}{'_bias' if end == 'bias' else ''}"


def measure_parity(folder: Path, spec: EncoderSpec, weights: EncoderWeights) -> Parity | None:
    """Compare our torch module with the library's model over seeded token ids, both in float32 on the CPU.

    Args:
        folder: what `import_encoder` read.
        spec: what it made of it.
        weights: likewise.

    Returns:
        The largest absolute differences of attention weights and of hidden states, over all layers; None if
        transformers is not installed.

    Raises:
        InvalidModel: if the library cannot run the checkpoint, or its attention weights differ by more than `LIMIT`.
    """
    if importlib.util.find_spec("transformers") is None:
        return None
    ours = Encoder(spec, weights).eval()
    worst = {"weights": 0.0, "hidden_states": 0.0}
    random = np.random.RandomState(0)
    with torch.inference_mode():
        library, model = _library_model(folder)
        for n in PARITY_LENGTHS:
            # RoBERTa takes its padding token for no token at all, and gives it no position.
            allowed = np.setdiff1d(np.arange(spec.vocab_size), [spec.position_offset - 1])
            ids = torch.tensor(random.choice(allowed, (1, min(n, spec.max_positions))))
            theirs = model(ids)
            found = {
                "weights": [layer.weights for layer in ours.intermediates(ids)],
                "hidden_states": ours.hidden_states(ids),
            }
            for name, want in (("weights", theirs.attentions), ("hidden_states", theirs.hidden_states)):
                for a, b in zip(found[name], want, strict=True):
                    worst[name] = max(float((a - b).abs().nan_to_num(torch.inf).max()), worst[name])
    if worst["weights"] > LIMIT:
        raise InvalidModel(f"the encoder's weights differ from those of {library} by {worst['weights']:.1e}")
    return Parity(library=library, differences=worst)


def _library_model(folder: Path) -> tuple[str, Callable[[torch.Tensor], Any]]:
    """The library's name and version, and its model of a folder, from ids to what it calls its outputs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformers = importlib.import_module("transformers")
            transformers.utils.logging.set_verbosity_error()
            transformers.utils.logging.disable_progress_bar()
            model = transformers.AutoModel.from_pretrained(
                folder, attn_implementation="eager", dtype=torch.float32, local_files_only=True
            ).eval()
    except Exception as error:  # whatever the library raises on what it cannot read
        raise InvalidModel(f"transformers cannot run {folder}: {type(error).__name__}: {error}") from error

    def run(ids: torch.Tensor) -> Any:
        return model(input_ids=ids, output_attentions=True, output_hidden_states=True)

    return f"transformers {transformers.__version__}", run
