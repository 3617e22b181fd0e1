"""Layers of Hugging Face `transformers`, tiny and random, against the reference and the torch module.

Each model runs twice: as it is, with weights and inputs in float64 but with what its authors force into float32, and
`exact`, where `Doubles` makes float64 of that too. Exact models agree to the last digits, so what is left in the others
is their rounding.
"""

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.eager import SelfAttention
from models.masks import visible
from models.positions import relative_buckets, rotate
from models.reference import attention, self_attention
from models.spec import AttentionSpec, Relative
from models.weights import AttentionWeights, checked
from tests.library import quiet

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", minversion="5.0", reason="a library to compare with")

LENGTHS = (1, 2, 7, 33)
EXACT = 1e-12  # float64 throughout
# Softmax in float32, and cosines of float32 angles: at token 32 an angle is off by up to 32 radians * 2^-24 = 2e-6.
ROUNDED = 5e-6
FLOAT32 = 5e-6  # of our module
MISTAKEN = 1e-3


@dataclass(frozen=True, slots=True)
class Family:
    """How a layer is made on either side.

    Attributes:
        model: makes the model.
        layer: path of its attention module.
        linears: its modules of queries, keys, values, and of the output if that is projected.
        spec: ours.
        rounds: whether the model forces some of it into float32.
        decoder: whether it wants a decoder's inputs as well.
        stored: where tensors other than projections are.
    """

    model: Callable[[], nn.Module]
    layer: str
    spec: AttentionSpec
    linears: tuple[str, str, str, str | None] = ("q_proj", "k_proj", "v_proj", "o_proj")
    rounds: bool = True
    decoder: bool = False
    stored: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """What one attention module got and made."""

    inputs: np.ndarray
    weights: np.ndarray
    outputs: np.ndarray


SIZES = {
    "vocab_size": 8,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
OURS = {"name": "m", "embed_dim": 32, "num_heads": 4, "head_dim": 8}
GROUPED = OURS | {"num_kv_heads": 2, "is_causal": True}
ROPE = {"scheme": "rope"}
T5 = {
    "vocab_size": 8,
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 16,
    "num_layers": 1,
    "num_heads": 4,
    "attn_implementation": "eager",
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"short_factor": [1.0, 1.2, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
YARN = {"factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.5}
NORMS = (("query_norm", "q_norm.weight"), ("key_norm", "k_norm.weight"))


def made(name: str, **changes: Any) -> Callable[[], nn.Module]:
    """A maker of the model `name`, of SIZES changed."""
    return lambda: getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SIZES | changes))


def llama(scaling: dict[str, Any] | None = None, sizes: dict[str, Any] | None = None, **theirs: Any) -> Family:
    """Llama, its rotary positions scaled by `scaling` as we write it and `theirs` as they do."""
    return Family(
        made("Llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0} | theirs, **sizes or {}),
        "layers.0.self_attn",
        AttentionSpec(**GROUPED, position=ROPE | {"base": 500.0, "scaling": scaling}),
    )


def gemma(layer: int) -> Family:
    """Gemma 2, whose even layers see a window and odd ones everything."""
    return Family(
        made(
            "Gemma2",
            num_hidden_layers=2,
            head_dim=12,
            query_pre_attn_scalar=20,
            sliding_window=5,
            attn_logit_softcapping=1.5,
        ),
        f"layers.{layer}.self_attn",
        AttentionSpec(
            **GROUPED | {"head_dim": 12}, position=ROPE, scale=20**-0.5, logit_softcap=1.5, window=None if layer else 5
        ),
    )


def t5(buckets: int, most: int, *, decoder: bool) -> Family:
    """T5: no rotation, no square root, and nothing but buckets in float32."""
    config = T5 | {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": most}
    position = {"scheme": "relative", "num_buckets": buckets, "max_distance": most, "bidirectional": not decoder}
    kind = "T5Model" if decoder else "T5EncoderModel"
    return Family(
        lambda: getattr(transformers, kind)(transformers.T5Config(**config)),
        f"{'decoder' if decoder else 'encoder'}.block.0.layer.0.SelfAttention",
        AttentionSpec(**OURS | {"head_dim": 6}, scale=1.0, is_causal=decoder, position=position),
        ("q", "k", "v", "o"),
        rounds=False,
        decoder=decoder,
        stored=(("relative_bias", "relative_attention_bias.weight"),),
    )


def bloom(heads: int) -> Family:
    """Bloom: its positions are slope times column, ours slope times distance, the same but for a constant per row."""
    return Family(
        lambda: transformers.BloomModel(
            transformers.BloomConfig(
                vocab_size=8, hidden_size=8 * heads, n_layer=1, n_head=heads, attn_implementation="eager"
            )
        ),
        "h.0.self_attention",
        AttentionSpec(
            **OURS | {"embed_dim": 8 * heads, "num_heads": heads}, is_causal=True, position={"scheme": "alibi"}
        ),
        ("query_key_value", "query_key_value", "query_key_value", "dense"),
    )


FAMILIES = {
    "llama": llama(),
    "llama-linear": llama({"type": "linear", "factor": 2.5}, rope_type="linear", factor=2.5),
    # Of four pairs, one is left alone, one mixed and two slowed.
    "llama-llama3": llama(
        LLAMA3 | {"type": "llama3", "original_max_positions": 40},
        **LLAMA3,
        rope_type="llama3",
        original_max_position_embeddings=40,
    ),
    "llama-yarn": llama(
        YARN | {"type": "yarn", "original_max_positions": 32},
        **YARN,
        rope_type="yarn",
        original_max_position_embeddings=32,
    ),
    "llama-yarn-factor": llama(
        YARN | {"type": "yarn", "original_max_positions": 32, "attention_factor": 0.7},
        **YARN,
        rope_type="yarn",
        original_max_position_embeddings=32,
        attention_factor=0.7,
    ),
    "llama-yarn-fractional": llama(
        YARN | {"type": "yarn", "original_max_positions": 32, "truncate": False},
        **YARN,
        rope_type="yarn",
        original_max_position_embeddings=32,
        truncate=False,
    ),
    # Shorter than the original context at 7 tokens, longer at 33.
    "llama-dynamic": llama(
        {"type": "dynamic", "factor": 3.0, "original_max_positions": 16},
        sizes={"max_position_embeddings": 16},
        rope_type="dynamic",
        factor=3.0,
    ),
    "phi3-longrope": Family(
        made(
            "Phi3",
            original_max_position_embeddings=16,
            rope_parameters=LONGROPE | {"rope_type": "longrope", "rope_theta": 500.0},
        ),
        "layers.0.self_attn",
        AttentionSpec(
            **GROUPED,
            position=ROPE
            | {
                "base": 500.0,
                "scaling": LONGROPE
                | {
                    "type": "longrope",
                    "original_max_positions": 16,
                    "attention_factor": math.sqrt(1 + math.log(4) / math.log(16)),
                },
            },
        ),
        ("qkv_proj", "qkv_proj", "qkv_proj", "o_proj"),
    ),
    "mistral": Family(
        made("Mistral", sliding_window=5, head_dim=8),
        "layers.0.self_attn",
        AttentionSpec(**GROUPED, position=ROPE, window=5),
    ),
    "qwen2": Family(made("Qwen2"), "layers.0.self_attn", AttentionSpec(**GROUPED, position=ROPE)),
    "qwen3": Family(
        made("Qwen3", head_dim=12),
        "layers.0.self_attn",
        AttentionSpec(**GROUPED | {"head_dim": 12}, position=ROPE, query_key_norm={"scope": "head"}),
        stored=NORMS,
    ),
    "olmo2": Family(
        made("Olmo2", rms_norm_eps=1e-5),
        "layers.0.self_attn",
        AttentionSpec(**GROUPED, position=ROPE, query_key_norm={"scope": "all", "eps": 1e-5}),
        stored=NORMS,
    ),
    "gemma2-window": gemma(0),
    "gemma2-all": gemma(1),
    "phi": Family(
        made(
            "Phi",
            num_key_value_heads=4,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        ),
        "layers.0.self_attn",
        AttentionSpec(**OURS, is_causal=True, position=ROPE | {"rotary_dim": 4}),
        ("q_proj", "k_proj", "v_proj", "dense"),
    ),
    "gptj": Family(
        lambda: transformers.GPTJModel(
            transformers.GPTJConfig(
                vocab_size=8, n_positions=64, n_embd=32, n_layer=1, n_head=4, rotary_dim=4, attn_implementation="eager"
            )
        ),
        "h.0.attn",
        AttentionSpec(**OURS, is_causal=True, position=ROPE | {"pairing": "interleaved", "rotary_dim": 4}),
        ("q_proj", "k_proj", "v_proj", "out_proj"),
    ),
    "t5-encoder": t5(32, 128, decoder=False),
    "t5-encoder-near": t5(8, 20, decoder=False),
    "t5-decoder": t5(32, 128, decoder=True),
    "t5-decoder-near": t5(8, 20, decoder=True),
    "bloom": bloom(4),
    "bloom-six-heads": bloom(6),
    "bert": Family(
        made("Bert"),
        "encoder.layer.0.attention.self",
        AttentionSpec(**OURS),
        ("query", "key", "value", None),
        rounds=False,
    ),
}


@lru_cache
def model_of(name: str, exact: bool) -> tuple[nn.Module, nn.Module]:
    """The model and its attention module, whose numbers are drawn anew: as made, attention is all but uniform."""
    family = FAMILIES[name]
    with quiet(exact):
        model = family.model().eval().double()
    layer = model.get_submodule(family.layer)
    random = np.random.RandomState(0)
    for key, parameter in layer.named_parameters():
        numbers = random.standard_normal(parameter.shape)
        if "norm" in key:
            numbers = 1 + 0.3 * numbers
        elif "relative" not in key and parameter.ndim == 2:
            numbers *= 1.5 / math.sqrt(parameter.shape[1])
        parameter.data = torch.tensor(numbers.astype(np.float32)).double()  # ours are float32
    return model, layer


@lru_cache
def run(name: str, n: int, exact: bool) -> Run:
    """Run the model over n random tokens and catch what its attention module gets and makes."""
    family = FAMILIES[name]
    model, layer = model_of(name, exact)
    caught = {}

    def of_layer(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: tuple[Any, ...]) -> None:
        caught["inputs"] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        caught["weights"] = result[-1]
        caught.setdefault("outputs", result[0])

    def of_output(_: nn.Module, args: tuple[torch.Tensor]) -> None:
        caught["outputs"] = args[0]

    embeddings = torch.tensor(np.random.RandomState(n).standard_normal((1, n, family.spec.embed_dim)))
    inputs = {"inputs_embeds": embeddings} | ({"decoder_inputs_embeds": embeddings} if family.decoder else {})
    hooks = [layer.register_forward_hook(of_layer, with_kwargs=True)]
    if family.linears[3] is not None:
        hooks.append(layer.get_submodule(family.linears[3]).register_forward_pre_hook(of_output))
    with quiet(exact):
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return Run(**{key: tensor[0].numpy() for key, tensor in caught.items()})


def weights_of(name: str) -> AttentionWeights:
    """Our tensors from their attention module."""
    family, (_, layer) = FAMILIES[name], model_of(name, False)
    spec, state = family.spec, layer.state_dict()
    tensors = {ours: state[theirs].numpy() for ours, theirs in family.stored}
    for place, (ours, theirs) in enumerate(zip(("query", "key", "value"), family.linears, strict=False)):
        for tensor, end in (("", "weight"), ("_bias", "bias")):
            if (found := state.get(f"{theirs}.{end}")) is None:
                continue
            rows = found.numpy()
            if theirs == "query_key_value":  # rows of the three are mixed head by head
                rows = rows.reshape(spec.num_heads, 3, spec.head_dim, *rows.shape[1:])[:, place]
                rows = rows.reshape(spec.num_heads * spec.head_dim, *rows.shape[2:])
            if theirs == "qkv_proj":  # one after the other
                width, shared = spec.num_heads * spec.head_dim, spec.kv_heads * spec.head_dim
                rows = np.split(rows, (width, width + shared))[place]
            tensors[ours + tensor] = rows.T
    return checked(spec, tensors, name)


def apart(found: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, relative to the largest number."""
    assert found.shape == want.shape
    return float(np.abs(found - want).max() / np.abs(want).max())


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("exact", [False, True], ids=["as it is", "exact"])
def test_the_reference_attends_as_the_library(name, n, exact):
    """Somebody else's code, which people's models were trained with."""
    family, theirs = FAMILIES[name], run(name, n, exact)
    tolerance = ROUNDED if family.rounds and not exact else EXACT

    ours = self_attention(theirs.inputs, weights_of(name), family.spec)

    assert apart(ours.weights, theirs.weights) <= tolerance
    assert apart(ours.outputs, theirs.outputs) <= tolerance


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_torch_module_attends_as_the_library(name, n):
    """In float32, as it is served."""
    spec, theirs = FAMILIES[name].spec, run(name, n, False)
    keep = visible(n, None, is_causal=spec.is_causal, window=spec.window)

    ours = SelfAttention(spec, weights_of(name))(
        torch.tensor(theirs.inputs[None], dtype=torch.float32),
        torch.tensor(spec.effective_scale, dtype=torch.float32),
        None if keep is None else torch.tensor(keep[None]),
    )

    assert ours.weights.dtype == ours.outputs.dtype == torch.float32
    assert apart(ours.weights[0].numpy(), theirs.weights) <= FLOAT32
    assert apart(ours.outputs[0].numpy(), theirs.outputs) <= FLOAT32


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_see_the_columns_they_see_in_the_library(name, n):
    """Above all, a window counts the token itself: exactly the columns that are masked have no weight."""
    spec = FAMILIES[name].spec
    keep = visible(n, np.ones((n, n), bool), is_causal=spec.is_causal, window=spec.window)

    for head in run(name, n, False).weights:
        np.testing.assert_array_equal(head > 0, keep)


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (16, 9), (64, 256), (4, 3), (128, 1000), (320, 800)])
def test_distances_fall_into_the_buckets_of_the_library(buckets, most, decoder):
    """At every distance, beyond the largest too, where the edges of buckets are a matter of rounding."""
    gaps = np.arange(-2 * most, 2 * most + 1)
    attention_module = transformers.models.t5.modeling_t5.T5Attention

    want = attention_module._relative_position_bucket(
        torch.tensor(gaps), bidirectional=not decoder, num_buckets=buckets, max_distance=most
    )

    relative = Relative(scheme="relative", num_buckets=buckets, max_distance=most, bidirectional=not decoder)
    np.testing.assert_array_equal(relative_buckets(relative)[np.clip(gaps, -most, most) + most], want.numpy())


def changed(**changes: Any) -> Callable[..., np.ndarray]:
    """The weights of a layer with another spec."""
    return lambda x, weights, spec: self_attention(x, weights, spec.model_copy(update=changes)).weights


def repositioned(**changes: Any) -> Callable[..., np.ndarray]:
    """The weights of a layer with other positions."""

    def mistaken(x: np.ndarray, weights: AttentionWeights, spec: AttentionSpec) -> np.ndarray:
        position = spec.position.model_copy(update=changes)
        return self_attention(x, weights, spec.model_copy(update={"position": position})).weights

    return mistaken


def rescaled(**changes: Any) -> Callable[..., np.ndarray]:
    """The weights of a layer with its rotary positions scaled otherwise."""
    return lambda x, weights, spec: repositioned(scaling=spec.position.scaling.model_copy(update=changes))(
        x, weights, spec
    )


def tiled(x: np.ndarray, weights: AttentionWeights, spec: AttentionSpec) -> np.ndarray:
    """Query heads take key heads in turn, not neighbours the same."""
    times = spec.num_heads // spec.kv_heads
    wide = {
        name: np.tile(tensor, times)
        for name, tensor in weights.tensors().items()
        if name in ("key", "value", "key_bias", "value_bias")
    }
    return self_attention(x, replace(weights, **wide), spec.model_copy(update={"num_kv_heads": None})).weights


def normalised_late(x: np.ndarray, weights: AttentionWeights, spec: AttentionSpec) -> np.ndarray:
    """Queries and keys are rotated, then normalised."""
    plain = spec.model_copy(update={"query_key_norm": None, "position": AttentionSpec.model_fields["position"].default})
    trace = self_attention(x, replace(weights, query_norm=None, key_norm=None), plain)
    query, key = (
        turned / np.sqrt((turned**2).mean(-1, keepdims=True) + spec.query_key_norm.eps) * weight
        for turned, weight in (
            (rotate(trace.query, spec.position), weights.query_norm),
            (rotate(trace.key, spec.position), weights.key_norm),
        )
    )
    return attention(query, key, trace.value, is_causal=True).weights


def normalised_by_head(x: np.ndarray, weights: AttentionWeights, spec: AttentionSpec) -> np.ndarray:
    """Each head is divided by a root mean square of its own."""
    plain = spec.model_copy(update={"query_key_norm": None, "position": AttentionSpec.model_fields["position"].default})
    trace = self_attention(x, replace(weights, query_norm=None, key_norm=None), plain)
    by_head = {
        "query_norm": weights.query_norm.reshape(spec.num_heads, 1, -1),
        "key_norm": weights.key_norm.reshape(spec.kv_heads, 1, -1).repeat(spec.num_heads // spec.kv_heads, axis=0),
    }
    query, key = (
        rotate(
            plainly / np.sqrt((plainly**2).mean(-1, keepdims=True) + spec.query_key_norm.eps) * weight, spec.position
        )
        for plainly, weight in ((trace.query, by_head["query_norm"]), (trace.key, by_head["key_norm"]))
    )
    return attention(query, key, trace.value, is_causal=True).weights


def unbiased(*names: str) -> Callable[..., np.ndarray]:
    """The weights of a layer without some of its tensors."""
    return lambda x, weights, spec: self_attention(x, replace(weights, **dict.fromkeys(names)), spec).weights


MISTAKES = {
    "interleaved pairs for halves": ("llama", repositioned(pairing="interleaved")),
    "halves for interleaved pairs": ("gptj", repositioned(pairing="half")),
    "all numbers turned": ("phi", repositioned(rotary_dim=None)),
    "another base": ("llama", repositioned(base=10_000.0)),
    "linear scaling dropped": ("llama-linear", repositioned(scaling=None)),
    "llama3 scaling dropped": ("llama-llama3", repositioned(scaling=None)),
    "yarn scaling dropped": ("llama-yarn", repositioned(scaling=None)),
    "yarn's growth dropped": ("llama-yarn", rescaled(attention_factor=1.0)),
    "key heads tiled": ("llama", tiled),
    "window one short": ("mistral", changed(window=4)),
    "window one long": ("mistral", changed(window=6)),
    "window dropped": ("gemma2-window", changed(window=None)),
    "soft cap dropped": ("gemma2-all", changed(logit_softcap=None)),
    "scale of the head's width": ("gemma2-all", changed(scale=None)),
    "query bias dropped": ("qwen2", unbiased("query_bias")),
    "norm after rotation": ("qwen3", normalised_late),
    "norm dropped": ("qwen3", changed(query_key_norm=None)),
    "norm head by head": ("olmo2", normalised_by_head),
    "T5 scaled": ("t5-encoder", changed(scale=None)),
    "buckets one-sided": ("t5-encoder", repositioned(bidirectional=False)),
    "buckets two-sided": ("t5-decoder", repositioned(bidirectional=True)),
    "slopes dropped": ("bloom", changed(position=AttentionSpec.model_fields["position"].default)),
    "causal": ("bert", changed(is_causal=True)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_classic_mistake_would_be_seen(mistake):
    """The comparison is worth something only if the numbers drawn tell right from wrong."""
    name, mistaken = MISTAKES[mistake]
    theirs = run(name, 33, False)

    found = mistaken(theirs.inputs, weights_of(name), FAMILIES[name].spec)

    assert apart(found, theirs.weights) > MISTAKEN
