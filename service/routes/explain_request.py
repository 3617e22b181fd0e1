"""What a request to explain says, from its JSON and its query string."""

import unicodedata
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from models.errors import NonFinite, ShapeMismatch
from models.types import F64, Array, Bool
from service.codecs.nested import each_projection, is_tensor, mask, matrix, tensor
from service.codecs.options import OPTION_NAMES, merged, nearest, option_names, query_options
from service.codecs.requests import FLOATS, TENSOR_FIELDS
from service.codecs.strict_json import body_options, escaped, json_object, json_type
from service.errors import ConflictingFields, InvalidOption, TooLarge, UnknownField, WrongType
from service.tutor.problem import MOST_TOKENS

MOST_BYTES = 1 << 20
"""Of a body: 16 tokens of 16 numbers, with matrices, masks and biases of many heads, take far less."""

MOST_LABEL = 100
"""Characters of a token's label."""

MOST_TEXT = 1_000
"""Characters of a text; 16 tokens are fewer."""


class ExplainOptions(BaseModel):
    """The small fields: they may stand in the body or in the query string."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str | None = Field(
        default=None,
        description="A layer of `GET /v1/models`, of at most 16 columns a head and without positions, `name` or "
        "`name@version`; default: `lesson`. With `text` an encoder.",
    )
    is_causal: bool = Field(default=False, description="Row i may attend to columns 0..i only.")
    scale: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Factor of the scores in place of the model's, usually 1/sqrt(d_k)."
    )
    decimals: Annotated[int, Field(ge=0, le=6)] | None = Field(
        default=None,
        description="Of numbers: in JSON by default all that count, in words, tables and pictures 2.",
    )
    focus: int | str | None = Field(
        default=None, description="The token that words and pictures follow, by number, from 0, or label."
    )
    head: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="The head that they follow, or, of an encoder, that is explained; from 0."
    )
    layer: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="With `text`: the encoder's layer, from 0; default: 0."
    )
    picture: Literal["heatmap", "flow"] = Field(
        default="heatmap", description="Which picture: all weights, or one token's way."
    )
    theme: Literal["auto", "light", "dark"] = Field(
        default="auto", description="Colours of pages and SVG; `auto` follows the reader's. PNG is light unless dark."
    )


ARRAYS = (*TENSOR_FIELDS, "labels", "text")
FIELDS = (*ARRAYS, *option_names(ExplainOptions))


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """One sequence, or a text, to be explained.

    Attributes:
        options: the small fields.
        inputs: token embeddings, (n, d), or None for the model's example.
        projections: the caller's own matrices by name, (d, columns) each, or None.
        attn_mask: (n, n), or None.
        attn_bias: (n, n) or (heads, n, n), or None.
        labels: a word per token; empty for none.
        text: what an encoder tokenises, or None.
    """

    options: ExplainOptions
    inputs: F64 | None = None
    projections: dict[str, F64] | None = None
    attn_mask: Bool | None = None
    attn_bias: F64 | None = None
    labels: tuple[str, ...] = ()
    text: str | None = None


def read(body: bytes, query: str) -> ExplainRequest:
    """The request in a body, which may be empty, and a query string.

    Raises:
        Unparsable: if the body is no JSON.
        TooLarge: if it is larger than any problem that can be explained.
        InvalidInput: if it means something that cannot be explained; the error names the place.
    """
    if len(body) > MOST_BYTES:
        raise TooLarge(f"the body has {len(body)} bytes; what fits 16 tokens and 16 columns has {MOST_BYTES} at most")
    fields = json_object(body, "inputs") if body.strip() else {}
    for name in fields:
        if name not in FIELDS:
            raise UnknownField.at(f"/{escaped(name)}", _unknown(name))
    chosen = query_options(query, ExplainOptions)
    small = {name: value for name, value in fields.items() if name not in ARRAYS}
    if small:
        chosen = merged(body_options(small, ExplainOptions), chosen)
    text = fields.get("text")
    if text is not None:
        return ExplainRequest(chosen, text=_text(text, fields, chosen))
    if chosen.layer is not None:
        raise ConflictingFields.at("/layer", "goes with `text`; a model that takes embeddings is one layer")
    if fields.get("projections") is not None and chosen.model is not None:
        raise ConflictingFields.at("/projections", "give `model` or `projections`, not both")
    return ExplainRequest(
        chosen,
        inputs=_inputs(fields.get("inputs")),
        projections=_projections(fields.get("projections")),
        attn_mask=None if fields.get("attn_mask") is None else mask(fields["attn_mask"], "/attn_mask"),
        attn_bias=_bias(fields.get("attn_bias")),
        labels=_labels(fields.get("labels")),
    )


def _unknown(name: str) -> str:
    if name in OPTION_NAMES:
        return "has no meaning here: every step is answered, computed in float64"
    return f"no such field; {nearest(name, FIELDS)}"


def _text(text: Any, fields: dict[str, Any], chosen: ExplainOptions) -> str:
    for name in ARRAYS:
        if name != "text" and fields.get(name) is not None:
            raise ConflictingFields.at(f"/{name}", "does not go with `text`, which the encoder makes embeddings of")
    if not isinstance(text, str):
        raise WrongType.at("/text", f"expected one text, got {json_type(text)}")
    if len(text) > MOST_TEXT:
        raise InvalidOption.at("/text", f"{len(text)} characters; at most {MOST_TOKENS} tokens are explained")
    return text


def _inputs(value: Any) -> F64 | None:
    if value is None:
        return None
    if isinstance(value, list) and value and isinstance(value[0], list) and value[0] and isinstance(value[0][0], list):
        raise ShapeMismatch.at("/inputs", "is a list of sequences; one sequence is explained at a time")
    if value == []:
        raise ShapeMismatch.at("/inputs", "the sequence has no tokens; at least one is needed")
    found = _numbers(value, "/inputs")
    if found.ndim != 2 or not found.size:
        raise ShapeMismatch.at("/inputs", f"its shape is {list(found.shape)}, expected [tokens, embed_dim]")
    return found


def _projections(value: Any) -> dict[str, F64] | None:
    if value is None:
        return None
    found = {}
    for name, each in each_projection(value).items():
        found[name] = _numbers(each, f"/projections/{name}")
        if found[name].ndim != 2 or not found[name].size:
            raise ShapeMismatch.at(
                f"/projections/{name}", f"its shape is {list(found[name].shape)}, expected [d, columns]"
            )
    return found


def _bias(value: Any) -> F64 | None:
    if value is None:
        return None
    pointer = "/attn_bias"
    if isinstance(value, list) and value and isinstance(value[0], list) and value[0] and isinstance(value[0][0], list):
        heads = [_numbers(item, f"{pointer}/{i}") for i, item in enumerate(value)]
        if len({item.shape for item in heads}) > 1:
            raise ShapeMismatch.at(pointer, "the heads have different shapes")
        stacked: F64 = np.stack(heads)
        return stacked
    return _numbers(value, pointer)


def _numbers(value: Any, pointer: str) -> F64:
    """Rows of finite numbers, or a tensor object, as float64."""
    array: Array = tensor(value, pointer, FLOATS) if is_tensor(value) else matrix(value, pointer)
    found = array.astype(np.float64)
    if not np.isfinite(found).all():
        at = "".join(f"/{int(i)}" for i in np.argwhere(~np.isfinite(found))[0])
        raise NonFinite.at(f"{pointer}{at}", "is not a finite number")
    return found


def _labels(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not value:
        raise WrongType.at("/labels", f"expected a list of words, one per token, got {json_type(value)}")
    for i, label in enumerate(value[: MOST_TOKENS + 1]):
        if not isinstance(label, str):
            raise WrongType.at(f"/labels/{i}", f"expected a word, got {json_type(label)}")
        if not label.strip() or len(label) > MOST_LABEL:
            raise InvalidOption.at(f"/labels/{i}", f"a label has 1 to {MOST_LABEL} characters, this one {len(label)}")
        for character in label:
            if unicodedata.category(character) in ("Cc", "Cs") or ord(character) & 0xFFFE == 0xFFFE:  # not in XML
                raise InvalidOption.at(f"/labels/{i}", f"the character {character!a} cannot be shown")
    return tuple(value)
