"""`AttentionSpec`: everything about an attention layer but its numbers."""

import math
import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.errors import InvalidModel

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""What a model or a version may be called: it is part of URLs, file names and metric labels."""

RESERVED_NAMES = frozenset({"projections"})
"""Names answers use for something that is not a model of the repository."""

Matrix = tuple[tuple[float, ...], ...]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Position(_Frozen):
    """How positions enter the scores. `none` is order-blind attention."""

    scheme: Literal["none"] = Field(default="none", description="Position scheme of the layer.")


class Example(_Frozen):
    """A small input that shows what the model does: one row of `inputs` per label."""

    labels: tuple[str, ...] = Field(description="One readable label per token.")
    inputs: Matrix = Field(description="Token embeddings, (n, embed_dim).")

    @model_validator(mode="after")
    def _one_label_a_row(self) -> Self:
        if len(self.labels) != len(self.inputs):
            raise ValueError(f"{len(self.labels)} labels for {len(self.inputs)} rows of inputs")
        return self


class AttentionSpec(_Frozen):
    """A self-attention layer: its sizes, its scheme, and where its numbers come from.

    Sizes are counts of float32 elements. The layer projects `x` of shape (n, embed_dim) to `num_heads` queries of
    `head_dim`, `num_kv_heads` keys of `head_dim` and values of `value_dim`; each key/value head serves
    `num_heads / num_kv_heads` neighbouring query heads.
    """

    name: str = Field(description="Unique name in the repository.")
    version: str = Field(default="1", description="Version; several may be served side by side.")
    description: str = Field(default="", description="One sentence for people.")
    embed_dim: Annotated[int, Field(ge=1, le=65_536, description="Width of a token embedding.")]
    num_heads: Annotated[int, Field(ge=1, le=1_024, description="Query heads.")] = 1
    num_kv_heads: Annotated[int | None, Field(ge=1, description="Key and value heads; default: num_heads.")] = None
    head_dim: Annotated[int, Field(ge=1, le=65_536, description="Width of a query and of a key, d_k.")]
    value_dim: Annotated[int | None, Field(ge=1, le=65_536, description="Width of a value; default: head_dim.")] = None
    is_causal: bool = Field(default=False, description="Row i attends to columns 0..i only, always.")
    scale: Annotated[float | None, Field(gt=0, description="Factor of the scores; default: 1/sqrt(head_dim).")] = None
    position: Position = Field(default=Position(), description="Position scheme.")
    labels: tuple[str, ...] = Field(default=(), description="Names of the embedding's columns, for people.")
    source: str = Field(default="", description="Where the weights come from.")
    license: str = Field(default="", description="Licence of the weights.")
    seed: Annotated[int | None, Field(ge=0, lt=2**32, description="Draw the weights from this seed.")] = None
    weights: dict[str, Matrix] | None = Field(default=None, description="The weights themselves, where they are few.")
    example: Example | None = Field(default=None, description="An input worth trying first.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for label, value in (("name", self.name), ("version", self.version)):
            if not NAME.fullmatch(value):
                raise ValueError(f"{label} {value!r} must match {NAME.pattern}")
        if self.name in RESERVED_NAMES:
            raise ValueError(f"the name {self.name!r} is reserved")
        if self.num_heads % self.kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.kv_heads}")
        if self.labels and len(self.labels) != self.embed_dim:
            raise ValueError(f"{len(self.labels)} labels for embed_dim {self.embed_dim}")
        if self.example and any(len(row) != self.embed_dim for row in self.example.inputs):
            raise ValueError(f"every row of example.inputs must have embed_dim {self.embed_dim} numbers")
        if self.seed is not None and self.weights is not None:
            raise ValueError("give seed or weights, not both")
        return self

    @property
    def id(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def v_dim(self) -> int:
        """Width of a value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def output_dim(self) -> int:
        """Width of an output row: the values of all heads side by side."""
        return self.num_heads * self.v_dim

    @property
    def effective_scale(self) -> float:
        """The factor of the scores when a caller gives none: `scale`, or 1/sqrt(head_dim)."""
        return self.scale if self.scale is not None else 1 / math.sqrt(self.head_dim)


def parse_spec(text: str | bytes, where: str) -> AttentionSpec:
    """Read a spec.json.

    Args:
        text: the file's content.
        where: what to call the file in an error.

    Raises:
        InvalidModel: if the text is not JSON or not a spec; the message names the field.
    """
    try:
        return AttentionSpec.model_validate_json(text)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'spec'}: {e['msg']}" for e in error.errors())
        raise InvalidModel(f"{where}: {faults}") from error
