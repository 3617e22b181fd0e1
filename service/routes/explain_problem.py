"""From a request to explain to the problem that is worked: a model's numbers, an encoder's head, an example."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.encoder_reference import hidden_states
from models.errors import InvalidInput, ShapeMismatch
from models.reference import self_attention
from models.repository import ModelEntry
from models.spec import AttentionSpec, NoPosition
from models.types import F32, F64
from service.catalog import Catalog
from service.errors import InvalidOption, UnknownField
from service.reread import encoder_with_numbers, layer_with_numbers
from service.routes.explain_request import ExplainRequest
from service.settings import Settings
from service.tutor.problem import MOST_TOKENS, MOST_WIDTH, Problem

DEFAULT_MODEL = "lesson"

WIDEST_ENCODER = 4_096
"""Columns of an encoder's embeddings."""


@dataclass(frozen=True, slots=True)
class Posed:
    """A problem, and what is said of where it comes from.

    Attributes:
        problem: to be worked.
        model: name and version, or None for the caller's own matrices.
        head: the head to follow, where one was asked for.
        focus: the token to follow, likewise.
        place: the encoder's layer and head, empty otherwise.
        notes: what a reader should know.
    """

    problem: Problem
    model: tuple[str, str] | None
    head: int | None
    focus: int | None
    place: str = ""
    notes: tuple[str, ...] = ()


def pose(request: ExplainRequest, catalog: Catalog, settings: Settings) -> Posed:
    """The problem that a request asks to explain. May read weights from disk: call it in a thread.

    Raises:
        NotFound, NotInstalled: if there is no such model.
        UnservableModel: if its numbers cannot be had.
        InvalidInput: if it is none that can be worked step by step, or the arrays do not fit it.
    """
    options = request.options
    if request.text is not None:
        return _head(request.text, request, catalog, settings)
    common: dict[str, Any] = {"attn_mask": request.attn_mask, "attn_bias": request.attn_bias, "labels": request.labels}
    if request.projections is not None:
        if request.inputs is None:
            raise ShapeMismatch.at("/inputs", "the field is missing; it holds the token embeddings")
        _check(request, len(request.inputs), 1)
        matrices: dict[str, Any] = dict(request.projections)
        problem = Problem(request.inputs, **matrices, is_causal=options.is_causal, scale=options.scale, **common)
        return Posed(problem, None, options.head, _focus(options.focus, problem))
    loaded = catalog.layer(options.model or DEFAULT_MODEL)
    spec = loaded.entry.spec
    _check_workable(spec)
    inputs, labels = request.inputs, request.labels
    if inputs is None:
        if spec.example is None:
            raise ShapeMismatch.at("/inputs", f"the field is missing, and {spec.id} has no example to explain instead")
        inputs, labels = np.array(spec.example.inputs, np.float64), labels or spec.example.labels
    if inputs.shape[1] != spec.embed_dim:
        raise ShapeMismatch.at("/inputs/0", f"has {inputs.shape[1]} numbers, but {spec.id} takes {spec.embed_dim}")
    _check(request, len(inputs), spec.num_heads)
    problem = Problem(
        inputs,
        **_matrices(layer_with_numbers(loaded, settings)),
        num_heads=spec.num_heads,
        is_causal=options.is_causal or spec.is_causal,
        scale=spec.scale if options.scale is None else options.scale,
        **common | {"labels": labels},
    )
    notes = ("The layer multiplies its outputs by one more matrix; that is not shown here.",)
    projects = "output" in loaded.entry.weights.tensors()
    model = (spec.name, spec.version)
    return Posed(problem, model, options.head, _focus(options.focus, problem), notes=notes if projects else ())


def _check(request: ExplainRequest, n: int, heads: int) -> None:
    """Raise `ShapeMismatch` unless mask and bias fit."""
    keep, bias = request.attn_mask, request.attn_bias
    if keep is not None and keep.shape != (n, n):
        raise ShapeMismatch.at("/attn_mask", f"its shape is {list(keep.shape)}, expected [{n}, {n}]")
    if bias is not None and bias.shape not in ((n, n), (1, n, n), (heads, n, n)):
        expected = f"[{n}, {n}]" + (f" or [{heads}, {n}, {n}]" if heads > 1 else "")
        raise ShapeMismatch.at("/attn_bias", f"its shape is {list(bias.shape)}, expected {expected}")


def _check_workable(spec: AttentionSpec) -> None:
    """Raise `InvalidOption` unless a layer does nothing but the recipe, in sizes that are worked by hand."""
    beside = {
        f"{spec.position.scheme} positions": not isinstance(spec.position, NoPosition),
        "normalised queries and keys": spec.query_key_norm is not None,
        "a soft cap": spec.logit_softcap is not None,
        "a sliding window": spec.window is not None,
    }
    if found := [name for name, there in beside.items() if there]:
        raise InvalidOption.at(
            "/model",
            f"{spec.id} has {' and '.join(found)}, which are no steps of the recipe; explain a layer without, such as "
            f"{DEFAULT_MODEL}, or bring `projections`. /v1/attention computes this one",
        )
    if (widest := max(spec.embed_dim, spec.head_dim, spec.v_dim)) > MOST_WIDTH:
        raise InvalidOption.at(
            "/model",
            f"{spec.id} has rows of {widest} numbers; at most {MOST_WIDTH} are worked step by step. Explain "
            f"{DEFAULT_MODEL}, or bring `projections`; a head of an encoder is explained with `text`",
        )


def _matrices(entry: ModelEntry) -> dict[str, Any]:
    """A layer's matrices and biases, a head of keys and values for each of queries.

    Where the spec itself spells the numbers, they are taken from there: 0.2 is 0.2 then, and not the nearest float32.
    """
    spec = entry.spec
    found: dict[str, Any] = {}
    for name in ("query", "key", "value"):
        for tensor in (name, f"{name}_bias"):
            array: F32 | F64 | None = getattr(entry.weights, tensor)
            if array is None:
                continue
            if spec.weights is not None and tensor in spec.weights and array.ndim == 2:
                array = np.array(spec.weights[tensor], np.float64)
            heads = spec.num_heads if name == "query" else spec.kv_heads
            split = array.astype(np.float64).reshape(*array.shape[:-1], heads, -1)
            found[tensor] = split.repeat(spec.num_heads // heads, axis=-2).reshape(*array.shape[:-1], -1)
    return found


def _head(text: str, request: ExplainRequest, catalog: Catalog, settings: Settings) -> Posed:
    """One head of an encoder's layer, as it sees a text."""
    options = request.options
    loaded = catalog.encoder(options.model or settings.default_text_model)
    spec = loaded.entry.spec
    layer = options.layer or 0
    if layer >= spec.num_layers:
        raise InvalidOption.at("/layer", f"{spec.id} has no layer {layer}; its layers are 0 to {spec.num_layers - 1}")
    if options.head is not None and options.head >= spec.num_heads:
        raise InvalidOption.at("/head", f"{spec.id} has no head {options.head}; heads are 0 to {spec.num_heads - 1}")
    if spec.embed_dim > WIDEST_ENCODER:
        raise InvalidOption.at("/model", f"{spec.id} has embeddings of {spec.embed_dim} numbers, which nobody reads")
    try:
        tokens = loaded.tokenizer.encode(text)
    except InvalidInput as error:
        raise InvalidInput.at("/text", str(error)) from error
    if (n := len(tokens.ids)) > MOST_TOKENS:
        raise ShapeMismatch.at(
            "/text", f"has {n} tokens; at most {MOST_TOKENS} are explained. /v1/text/attention takes longer ones"
        )
    entry = encoder_with_numbers(loaded, settings)
    weights = entry.weights.layers[layer].attention
    before = replace(entry.weights, layers=entry.weights.layers[:layer])
    hidden = hidden_states(tokens.ids, spec, before)[layer]
    head = options.head
    if head is None:
        head = _most_telling(self_attention(hidden, weights, spec.layer).weights)
    columns = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
    found: dict[str, Any] = {}
    for name in ("query", "key", "value"):
        for tensor in (name, f"{name}_bias"):
            array: F32 | None = getattr(weights, tensor)
            if array is not None:
                found[tensor] = array[..., columns].astype(np.float64)
    problem = Problem(
        hidden,
        **found,
        is_causal=options.is_causal,
        scale=options.scale,
        labels=tuple(tokens.tokens),
        widest=WIDEST_ENCODER,
    )
    place = f"{spec.name}, layer {layer}, head {head}"
    return Posed(problem, (spec.name, spec.version), None, _focus(options.focus, problem), place)


def _most_telling(weights: F64) -> int:
    """The head in which a token prefers another one the most, of weights (h, n, n)."""
    others = np.where(np.eye(weights.shape[-1], dtype=bool), 0.0, weights)
    return int(np.round(others, 12).reshape(len(weights), -1).max(axis=-1).argmax())


def _focus(focus: int | str | None, problem: Problem) -> int | None:
    """The token that a request names, by its number or its label."""
    if focus is None or isinstance(focus, int):
        return focus
    if focus in problem.tokens:
        return problem.tokens.index(focus)
    if focus.isdecimal() and focus.isascii() and len(focus) < 4:
        return int(focus)
    raise UnknownField.at("/focus", f"no token is called {focus[:64]!r}; they are {', '.join(problem.tokens)}")
