"""A request and its answer between the wire and the queue: arrays and options, no bytes, no HTTP."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from models.tokenizer import Tokens
from models.types import ALL_TENSOR_NAMES, Array, Projections, SequenceInput, TensorName
from service.backends.base import BackendInfo

Form = Literal["one", "list", "stack"]
"""How a caller nested its sequences: one alone, a list of any lengths, or one array of equal lengths."""

BackendName = Literal["onnx", "eager", "reference"]


OWN = "projections"
"""What stands for a model's name where the caller brings the matrices."""

MOST_NAMES = 64
"""Names in `return`, each counted as often as it stands there; those beyond are not looked at one by one."""


def _comma_list(value: object) -> object:
    """`a,b` as it stands in a query string, or a tuple from JSON; cut where it is too long already."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",", MOST_NAMES)]
    return value[: MOST_NAMES + 1] if isinstance(value, tuple) else value


@lru_cache(maxsize=256)
def _ordered(names: tuple[TensorName, ...]) -> tuple[TensorName, ...]:
    return tuple(name for name in ALL_TENSOR_NAMES if name in names)


class AnswerOptions(BaseModel):
    """The small fields that every request for tensors has: they may stand in a JSON body or in the query string."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str | None = Field(
        default=None, description="A model of `GET /v1/models`, `name` or `name@version`; default: the service's."
    )
    returns: Annotated[tuple[TensorName, ...], BeforeValidator(_comma_list)] = Field(
        default=("outputs", "weights"),
        alias="return",
        min_length=1,
        max_length=MOST_NAMES,
        description="Tensors to answer with.",
    )
    average_heads: bool = Field(
        default=False, description="Answer the mean over heads of `weights` and `scores` of a model of several heads."
    )
    top_k: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Answer only the k largest weights of each row, as indices and values."
    )
    backend: BackendName | None = Field(default=None, description="Backend; default: the service's.")
    encoding: Literal["json", "base64"] = Field(
        default="json", description="How a JSON answer holds tensors: nested numbers, or base64 tensor objects."
    )
    dtype: Literal["float32", "float16"] = Field(
        default="float32", description="What the answer's numbers are rounded to; they are computed in float32."
    )
    decimals: Annotated[int, Field(ge=0, le=9)] | None = Field(
        default=None, description="Decimals that the numbers of a JSON answer are rounded to; default: all that count."
    )
    format: Literal["tensors", "bertviz"] = Field(
        default="tensors",
        description="`bertviz`: a JSON answer with the weights alone, nested as BertViz takes them.",
    )

    @property
    def wanted(self) -> tuple[TensorName, ...]:
        """The tensors asked for, each once, in the order of `ALL_TENSOR_NAMES`."""
        return ("weights",) if self.format == "bertviz" else _ordered(self.returns)


class Options(AnswerOptions):
    """The small fields of a request that brings embeddings."""

    is_causal: bool = Field(default=False, description="Row i may attend to columns 0..i only.")
    scale: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Factor of the scores in place of the model's, usually 1/sqrt(d_k)."
    )


MOST_LAYERS = 1_024
"""Numbers in `layers`, likewise."""


def _layers(value: object) -> object:
    """`all`, numbers of a JSON body, or `0,5` as it stands in a query string."""
    if value == "all":
        return value
    numbers = value.split(",", MOST_LAYERS) if isinstance(value, str) else value
    if isinstance(numbers, list):
        numbers = tuple(int(part) if part.strip().isdecimal() else part for part in numbers)
    if not isinstance(numbers, tuple) or not 0 < len(numbers) <= MOST_LAYERS:
        raise ValueError('name the layers by their numbers, such as [0, 5], or say "all"')
    for number in numbers:
        if type(number) is not int or number < 0:
            raise ValueError(f"a layer is a whole number from 0, not {number!r}")
    return numbers


class TextOptions(AnswerOptions):
    """The small fields of a request that brings text."""

    model: str | None = Field(
        default=None, description="An encoder of `GET /v1/models`, `name` or `name@version`; default: the service's."
    )
    returns: Annotated[tuple[TensorName, ...], BeforeValidator(_comma_list)] = Field(
        default=("weights",),
        alias="return",
        min_length=1,
        max_length=MOST_NAMES,
        description="Tensors to answer with, of each layer.",
    )
    layers: Annotated[Literal["all"] | tuple[int, ...], BeforeValidator(_layers)] = Field(
        default="all", description="Numbers of the layers, the first is 0; or `all`."
    )


@dataclass(slots=True)  # a frozen one takes four times as long to make, and each request has one
class AttentionInput:
    """A decoded request: every number is finite float32, every shape consistent within the request.

    Attributes:
        sequences: at least one.
        form: how the caller nested them, and how the answer is nested.
        options: the small fields.
        projections: the caller's own matrices in place of a model, or None.
        padded_to: tokens that every sequence of the answer will be padded to; 0 for none but its own.
    """

    sequences: tuple[SequenceInput, ...]
    form: Form
    options: Options
    projections: Projections | None = None
    padded_to: int = 0

    field: ClassVar[str] = "/inputs"

    def pointer(self, index: int) -> str:
        """JSON pointer of a sequence's embeddings."""
        return "/inputs" if self.form == "one" else f"/inputs/{index}"


@dataclass(frozen=True, slots=True)
class TextInput:
    """A decoded request that brings text.

    Attributes:
        texts: at least one.
        form: `one` or `list`.
        options: the small fields.
        padded: whether every text of the answer will be padded to the longest.
    """

    texts: tuple[str, ...]
    form: Form
    options: TextOptions
    padded: bool = False

    field: ClassVar[str] = "/text"

    def pointer(self, index: int) -> str:
        """JSON pointer of a text."""
        return "/text" if self.form == "one" else f"/text/{index}"


@dataclass(frozen=True, slots=True)
class TopK:
    """The k largest weights of each row, largest first; ties go to the earlier column.

    Attributes:
        indices: int32, (..., n, k), columns.
        values: float32, or float16 in an answer of that dtype, (..., n, k).
    """

    indices: Array
    values: Array

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.indices.nbytes + self.values.nbytes


Answer = dict[str, Array | TopK]
"""Tensors of one sequence by name, without the axis of heads where the model has one head."""


@dataclass(slots=True)  # a frozen one takes four times as long to make, and each request has one
class AttentionOutput:
    """A computed request.

    Attributes:
        answers: one per sequence, in the caller's order, in the dtype asked for.
        fully_masked_rows: per sequence, the rows that see nothing, whose weights and outputs are zeros.
        form: see `AttentionInput`.
        encoding: see `Options`.
        model: name and version.
        backend: what it was computed with.
        format: see `Options`.
        decimals: see `Options`.
        tokens: of each text; None where the caller brought embeddings. With them, the names of tensors are
            `layers.5.weights` and so on.
    """

    answers: list[Answer]
    fully_masked_rows: list[list[int]]
    form: Form
    encoding: str
    model: tuple[str, str]
    backend: BackendInfo
    format: str = "tensors"
    decimals: int | None = None
    tokens: list[Tokens] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        total = 0
        for answer in self.answers:
            for value in answer.values():
                total += value.nbytes
        return total
