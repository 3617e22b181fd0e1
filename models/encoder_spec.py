"""`EncoderSpec`: everything about a BERT-family encoder but its numbers.

Order of operations: word + token type 0 + position, normalised; then per layer self-attention with its output
projection, added to what came in, normalised; two linear maps with an activation between, added, normalised.
"""

from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.errors import InvalidInput, ShapeMismatch
from models.spec import AttentionSpec, ComputeDtype, Parity, check_id, parsed
from models.types import ALL_TENSOR_NAMES, I64, Array

Activation = Literal["gelu", "gelu_tanh", "relu"]
"""`gelu` is the exact one, x Φ(x); `gelu_tanh` its approximation by a hyperbolic tangent."""


class EncoderSpec(BaseModel):
    """A stack of self-attention layers with all that feeds them, from token ids on.

    Every head sees every token: no mask, no padding. Layers normalise after each sum, as BERT and RoBERTa do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(description="Unique name in the repository.")
    version: str = Field(default="1", description="Version; several may be served side by side.")
    description: str = Field(default="", description="One sentence for people.")
    num_layers: int = Field(ge=1, le=1_024, description="Layers.")
    embed_dim: int = Field(ge=1, le=65_536, description="Width of a token embedding and of all hidden states.")
    num_heads: int = Field(ge=1, le=1_024, description="Heads of a layer.")
    head_dim: int = Field(ge=1, le=65_536, description="Width of a query, a key and a value.")
    intermediate_dim: int = Field(ge=1, le=1_048_576, description="Width between the two linear maps.")
    vocab_size: int = Field(ge=1, le=16_777_216, description="Token ids are below this.")
    max_positions: int = Field(ge=1, le=1_048_576, description="Tokens that fit, special ones included.")
    position_offset: int = Field(
        default=0, ge=0, le=16_777_216, description="Row of the first token's position; RoBERTa's is padding_idx + 1."
    )
    token_types: int = Field(default=2, ge=0, le=65_536, description="Token types with an embedding; 0 is used.")
    layer_norm_eps: float = Field(default=1e-12, gt=0, description="Added to the variance.")
    activation: Activation = Field(default="gelu", description="Between the two linear maps.")
    compute_dtype: ComputeDtype = Field(default="float32", description="What products are computed in on a GPU.")
    source: str = Field(default="", description="Where the weights come from.")
    license: str = Field(default="", description="Licence of the weights.")
    files: dict[str, str] = Field(default={}, description="SHA-256 of each file it was imported from, by name.")
    parity: Parity | None = Field(default=None, description="None where the library was not there to compare with.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_id(self.name, self.version)
        return self

    @property
    def id(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def layer(self) -> AttentionSpec:
        """The self-attention of any one layer."""
        return AttentionSpec(
            name=self.name,
            version=self.version,
            embed_dim=self.embed_dim,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            source=self.source,
            license=self.license,
        )


def parse_encoder_spec(text: str | bytes, where: str) -> EncoderSpec:
    """Read an encoder.json; see `models.spec.parse_spec`."""
    return parsed(EncoderSpec, text, where)


def encoder_tensor_names(spec: EncoderSpec) -> list[str]:
    """What an encoder can answer with: `layers.{i}.{tensor}`, layer by layer, each in the order of `ALL_TENSOR_NAMES`.

    `layers.0.weights` comes from the first layer; shapes are those of `models.types` per layer.
    """
    return [f"layers.{i}.{tensor}" for i in range(spec.num_layers) for tensor in ALL_TENSOR_NAMES]


def placed(name: str) -> tuple[int, str]:
    """Layer and tensor of a name of `encoder_tensor_names`."""
    _, layer, tensor = name.split(".")
    return int(layer), tensor


def checked_ids(ids: Array, spec: EncoderSpec) -> I64:
    """The token ids of one sequence, if the encoder can take them.

    Raises:
        ShapeMismatch: if they are not (n,) with 1 <= n <= max_positions.
        InvalidInput: if one is no integer of 0..vocab_size - 1.
    """
    if ids.ndim != 1 or not 1 <= len(ids) <= spec.max_positions:
        raise ShapeMismatch(f"ids have shape {ids.shape}, expected (1 <= n <= {spec.max_positions},)")
    if not np.issubdtype(ids.dtype, np.integer):
        raise InvalidInput(f"ids are {ids.dtype}, expected integers")
    outside = np.flatnonzero((ids < 0) | (ids >= spec.vocab_size))
    if len(outside):
        first = outside[0]
        raise InvalidInput(f"id {ids[first]} at place {first} is not one of 0..{spec.vocab_size - 1}")
    return ids.astype(np.int64, copy=False)
