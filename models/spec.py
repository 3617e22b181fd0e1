"""`AttentionSpec`: everything about an attention layer but its numbers.

Order of operations: project (with biases), normalise queries and keys, rotate them; scores = QKᵀ · scale, soft cap,
position bias, the caller's bias, mask; softmax; weighted sum of values.
"""

import math
import re
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.errors import InvalidModel

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""What a model or a version may be called: it is part of URLs, file names and metric labels."""

RESERVED_NAMES = frozenset({"projections"})
"""Names answers use for something that is not a model of the repository."""

Matrix = tuple[tuple[float, ...], ...]


def check_id(name: str, version: str) -> None:
    """Raise `ValueError` unless a model may be called that."""
    for label, value in (("name", name), ("version", version)):
        if not NAME.fullmatch(value):
            raise ValueError(f"{label} {value!r} must match {NAME.pattern}")
    if name in RESERVED_NAMES:
        raise ValueError(f"the name {name!r} is reserved")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NoPosition(_Frozen):
    """Order-blind attention."""

    scheme: Literal["none"] = "none"


class LinearScaling(_Frozen):
    """All positions divided by `factor`."""

    type: Literal["linear"]
    factor: float = Field(ge=1)


class Llama3Scaling(_Frozen):
    """Slow pairs slowed by `factor`, fast ones left, as Llama 3.1 does."""

    type: Literal["llama3"]
    factor: float = Field(ge=1)
    low_freq_factor: float = Field(gt=0)
    high_freq_factor: float = Field(gt=0)
    original_max_positions: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("high_freq_factor must be above low_freq_factor")
        return self


class YarnScaling(_Frozen):
    """Slow pairs slowed by `factor`, fast ones left, and what is rotated grows a little, as YaRN does."""

    type: Literal["yarn"]
    factor: float = Field(ge=1)
    original_max_positions: int = Field(ge=7, description="At least one turn of the fastest pair.")
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    attention_factor: float | None = Field(default=None, gt=0, description="Default: 0.1 ln(factor) + 1.")
    truncate: bool = Field(default=True, description="Whether the bounds between slow and fast are whole pairs.")

    @property
    def growth(self) -> float:
        """What rotated queries and keys are multiplied by."""
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor


class DynamicScaling(_Frozen):
    """The base grows with sequences longer than the original context, as dynamic NTK does."""

    type: Literal["dynamic"]
    factor: float = Field(ge=1)
    original_max_positions: int = Field(ge=1)


class LongropeScaling(_Frozen):
    """Each pair slowed by a factor of its own, of one list up to the original context, of another beyond."""

    type: Literal["longrope"]
    short_factor: tuple[Annotated[float, Field(gt=0)], ...] = Field(description="One number per pair.")
    long_factor: tuple[Annotated[float, Field(gt=0)], ...] = Field(description="One number per pair.")
    original_max_positions: int = Field(ge=1)
    attention_factor: float = Field(default=1.0, gt=0, description="What rotated numbers are multiplied by.")


Scaling = Annotated[
    LinearScaling | Llama3Scaling | YarnScaling | DynamicScaling | LongropeScaling, Field(discriminator="type")
]


class Rope(_Frozen):
    """Rotary positions: pairs of numbers of queries and keys turn with the token's position."""

    scheme: Literal["rope"]
    base: float = Field(default=10_000.0, gt=1, description="Wavelengths grow to 2π times this.")
    pairing: Literal["half", "interleaved"] = Field(
        default="half", description="Pairs are (i, i + rotary_dim / 2), or (2i, 2i + 1)."
    )
    rotary_dim: int | None = Field(default=None, ge=2, multiple_of=2, description="Numbers that turn; default: all.")
    scaling: Scaling | None = None

    @model_validator(mode="after")
    def _yarn_has_slow_pairs(self) -> Self:
        if isinstance(self.scaling, YarnScaling) and self.base < 16:
            raise ValueError(f"YaRN sorts pairs by their speed, but with base {self.base:g} all are fast; at least 16")
        return self


class Alibi(_Frozen):
    """Each head's scores lose a slope times the distance."""

    scheme: Literal["alibi"]


class Relative(_Frozen):
    """A learned bias per head and bucket of distances, as in T5: tensor `relative_bias` (num_buckets, num_heads)."""

    scheme: Literal["relative"]
    num_buckets: int = Field(default=32, ge=4, le=65_536, multiple_of=4)
    max_distance: int = Field(default=128, ge=2, le=65_536)
    bidirectional: bool = Field(default=True, description="Whether columns after the row have buckets of their own.")

    @model_validator(mode="after")
    def _far_enough(self) -> Self:
        if self.max_distance <= self.num_buckets // (4 if self.bidirectional else 2):
            raise ValueError("max_distance must be above the distances that have buckets of their own")
        return self


Position = Annotated[NoPosition | Rope | Alibi | Relative, Field(discriminator="scheme")]
"""How positions enter the scores."""


class QueryKeyNorm(_Frozen):
    """Queries and keys divided by their root mean square, times the tensors `query_norm` and `key_norm`."""

    scope: Literal["head", "all"] = Field(
        default="head", description="Over each head's numbers, with weights (head_dim,); or over all heads together."
    )
    eps: float = Field(default=1e-6, gt=0)


class Example(_Frozen):
    """A small input that shows what the model does: one row of `inputs` per label."""

    labels: tuple[str, ...] = Field(description="One readable label per token.")
    inputs: Matrix = Field(description="Token embeddings, (n, embed_dim).")

    @model_validator(mode="after")
    def _one_label_a_row(self) -> Self:
        if len(self.labels) != len(self.inputs):
            raise ValueError(f"{len(self.labels)} labels for {len(self.inputs)} rows of inputs")
        return self


class Parity(_Frozen):
    """How far a layer is from the same one in the library that its checkpoint is made for."""

    library: str = Field(description="Such as `transformers 5.24.0`.")
    differences: dict[str, float] = Field(description="Largest absolute difference by tensor, such as `weights`.")


class Provenance(_Frozen):
    """What a layer was imported from."""

    family: str = Field(description="Layout of the checkpoint, a name of `models.importers.FAMILIES`.")
    layer: int = Field(ge=0, description="Number of the layer in it.")
    files: dict[str, str] = Field(description="SHA-256 of each file that was read, by name.")
    parity: Parity | None = Field(default=None, description="None where the library was not there to compare with.")


ComputeDtype = Literal["float32", "float16", "bfloat16"]
"""What products of a model may be computed in, on devices where it pays. Its softmax and its answers are float32."""


FOLDED_DIM = 2_048
"""Widest embedding for which W_q W_kᵀ is computed when a layer is loaded: it takes well under a second."""


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
    position: Position = Field(default=NoPosition(), description="Position scheme.")
    window: Annotated[int | None, Field(ge=1)] = Field(
        default=None, description="A row sees the columns less than this many tokens before it, itself counted."
    )
    logit_softcap: Annotated[float | None, Field(gt=0)] = Field(
        default=None, description="Scaled scores become cap * tanh(scores / cap), before bias and mask."
    )
    query_key_norm: QueryKeyNorm | None = Field(default=None, description="Normalisation before rotary positions.")
    compute_dtype: ComputeDtype = Field(default="float32", description="What products are computed in on a GPU.")
    labels: tuple[str, ...] = Field(default=(), description="Names of the embedding's columns, for people.")
    source: str = Field(default="", description="Where the weights come from.")
    license: str = Field(default="", description="Licence of the weights.")
    provenance: Provenance | None = Field(default=None, description="What the layer was imported from.")
    seed: Annotated[int | None, Field(ge=0, lt=2**32, description="Draw the weights from this seed.")] = None
    weights: dict[str, Matrix] | None = Field(default=None, description="The weights themselves, where they are few.")
    example: Example | None = Field(default=None, description="An input worth trying first.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_id(self.name, self.version)
        if self.num_heads % self.kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.kv_heads}")
        if self.labels and len(self.labels) != self.embed_dim:
            raise ValueError(f"{len(self.labels)} labels for embed_dim {self.embed_dim}")
        if self.example and any(len(row) != self.embed_dim for row in self.example.inputs):
            raise ValueError(f"every row of example.inputs must have embed_dim {self.embed_dim} numbers")
        if isinstance(self.position, Rope):
            turning = self.position.rotary_dim
            if turning is None and self.head_dim % 2:
                raise ValueError(f"rotary positions turn pairs, but head_dim {self.head_dim} is odd")
            if turning is not None and turning > self.head_dim:
                raise ValueError(f"rotary_dim {turning} is more than head_dim {self.head_dim}")
            _check_scaling(self.position.scaling, (turning or self.head_dim) // 2)
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
    def plain_scores(self) -> bool:
        """Whether scores are query keyᵀ * scale plus what the caller adds: then a fused kernel can make the outputs."""
        return self.logit_softcap is None and not isinstance(self.position, (Alibi, Relative))

    @property
    def foldable(self) -> bool:
        """Whether (x W_q W_kᵀ) xᵀ takes fewer products than queries, keys, and their scores, and W_q W_kᵀ a moment."""
        one = self.num_heads == self.kv_heads == 1 and self.embed_dim <= min(self.head_dim, FOLDED_DIM)
        return one and self.plain_scores and self.position.scheme == "none" and self.query_key_norm is None

    @property
    def steady(self) -> bool:
        """Whether tokens that follow, and are not seen, change nothing: they do where they slow the rotations."""
        scaling = self.position.scaling if isinstance(self.position, Rope) else None
        return not isinstance(scaling, (DynamicScaling, LongropeScaling))

    @property
    def effective_scale(self) -> float:
        """The factor of the scores when a caller gives none: `scale`, or 1/sqrt(head_dim)."""
        return self.scale if self.scale is not None else 1 / math.sqrt(self.head_dim)


def _check_scaling(scaling: Scaling | None, pairs: int) -> None:
    """Raise `ValueError` unless a scaling fits a layer that turns so many pairs."""
    if isinstance(scaling, DynamicScaling) and pairs < 2:
        raise ValueError("dynamic scaling slows all pairs but the first, and this layer turns one")
    if isinstance(scaling, LongropeScaling):
        for name in ("short_factor", "long_factor"):
            if (count := len(getattr(scaling, name))) != pairs:
                raise ValueError(f"{name} has {count} numbers for {pairs} pairs that turn")


def parse_spec(text: str | bytes, where: str) -> AttentionSpec:
    """Read a spec.json.

    Args:
        text: the file's content.
        where: what to call the file in an error.

    Raises:
        InvalidModel: if the text is not JSON or not a spec; the message names the field.
    """
    return parsed(AttentionSpec, text, where)


Model = TypeVar("Model", bound=BaseModel)


def parsed(kind: type[Model], text: str | bytes, where: str) -> Model:
    """Read JSON as a pydantic model; arguments beside `kind`, and errors, as in `parse_spec`."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise InvalidModel(f"{where}: {faults(error)}") from error


def faults(error: ValidationError) -> str:
    """What is wrong with which field, in one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'spec'}: {e['msg']}" for e in error.errors())
