"""Llama and its heirs: Mistral, Qwen2, Qwen3, Gemma 2. Rotary positions, few key heads for many query heads, causal."""

import math
from dataclasses import dataclass
from typing import Any

from models.importers.base import Block, Config, Family, Library, head_dim

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one of them differs.

    Attributes:
        biases: whether queries, keys and values have biases; None: as `attention_bias` says, and the output likewise.
        norms: whether queries and keys are normalised head by head.
        stated: fields that are not guessed where they are missing, as the model's own default is not ours.
    """

    biases: bool | None = None
    norms: bool = False
    stated: tuple[str, ...] = ("num_key_value_heads",)


KINDS = {
    "llama": _Kind(stated=()),
    "mistral": _Kind(biases=False, stated=("num_key_value_heads", "sliding_window")),
    "qwen2": _Kind(biases=True),
    "qwen3": _Kind(norms=True, stated=("num_key_value_heads", "head_dim")),
    "gemma2": _Kind(stated=("num_key_value_heads", "head_dim", "sliding_window", "attn_logit_softcapping")),
}


def _read(block: Block, config: Config, layer: int, num_heads: int | None) -> dict[str, Any]:
    model = config.values.get("model_type", "llama")
    kind = KINDS[model]
    config.stated(*kind.stated)
    config.only("use_bidirectional_attention", False)  # a window of theirs would then be one wider than ours
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", default=heads)
    depth = config.integer("head_dim") if "head_dim" in config else head_dim(config, width, heads)
    flagged = config.flag("attention_bias", default=False)
    biased = flagged if kind.biases is None else kind.biases
    block.linear("query", "q_proj", heads * depth, width, bias=biased)
    block.linear("key", "k_proj", kv_heads * depth, width, bias=biased)
    block.linear("value", "v_proj", kv_heads * depth, width, bias=biased)
    block.linear("output", "o_proj", width, heads * depth, bias=flagged and kind.biases is None)
    fields: dict[str, Any] = {}
    if kind.norms:
        block.tensors["query_norm"] = block.read("q_norm.weight", depth)
        block.tensors["key_norm"] = block.read("k_norm.weight", depth)
        fields["query_key_norm"] = {"scope": "head", "eps": config.number("rms_norm_eps")}
    if model == "gemma2":
        fields["scale"] = config.number("query_pre_attn_scalar") ** -0.5
        if "attn_logit_softcapping" in config:
            fields["logit_softcap"] = config.number("attn_logit_softcapping")
    block.finish("rotary_emb.inv_freq")  # a table that old files keep
    layer_type = _layer_type(model, config, layer)
    return fields | {
        "embed_dim": width,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": depth,
        "is_causal": True,
        "position": _rope(config, layer_type),
        "window": config.integer("sliding_window") if layer_type == SLIDING else None,
    }


def _layer_type(model: str, config: Config, layer: int) -> str:
    """Whether the layer sees a window or everything: as the configuration says, or as the model does where it does not.

    Theirs is causal and counts the token itself, as ours does.
    """
    if (types := config.values.get("layer_types")) is not None:
        if not isinstance(types, list) or len(types) <= layer or types[layer] not in (SLIDING, FULL):
            raise config.fault("layer_types", f"has neither {SLIDING} nor {FULL} for layer {layer}")
        return str(types[layer])
    if "sliding_window" not in config or model == "llama":
        return FULL
    slides = {
        "mistral": True,
        "gemma2": layer % 2 == 0,
        "qwen2": config.flag("use_sliding_window", default=False)
        and layer >= config.integer("max_window_layers", default=28, least=0),
    }
    return SLIDING if slides["qwen2" if model == "qwen3" else model] else FULL


def _rope(config: Config, layer_type: str) -> dict[str, Any]:
    """Rotary positions, from either way of writing them: `rope_parameters`, or `rope_theta` and `rope_scaling`."""
    rope = config.nested("rope_scaling") or config.nested("rope_parameters") or Config({})
    rope = rope.nested(layer_type) or rope
    for place in (config, rope):
        place.only("partial_rotary_factor", 1.0)
    base = config.number("rope_theta", default=10_000.0)
    return {
        "scheme": "rope",
        "base": rope.number("rope_theta", default=base),
        "pairing": "half",
        "scaling": _scaling(rope, config),
    }


def _scaling(rope: Config, config: Config) -> dict[str, Any] | None:
    """How rotary positions are scaled.

    To import another type, add a case with the fields of its class in `models.spec`.
    """
    key = "rope_type" if "rope_type" in rope else "type"
    match rope.values.get(key) or "default":
        case "default":
            return None
        case "linear":
            return {"type": "linear", "factor": rope.number("factor")}
        case "llama3":
            return {
                "type": "llama3",
                "factor": rope.number("factor"),
                "low_freq_factor": rope.number("low_freq_factor"),
                "high_freq_factor": rope.number("high_freq_factor"),
                "original_max_positions": _original(rope, config),
            }
        case "yarn":
            rope.only("mscale", 0)
            rope.only("mscale_all_dim", 0)
            return {
                "type": "yarn",
                "factor": rope.number("factor"),
                "original_max_positions": _original(rope, config),
                "beta_fast": rope.number("beta_fast", default=32.0),
                "beta_slow": rope.number("beta_slow", default=1.0),
                "attention_factor": rope.number("attention_factor") if "attention_factor" in rope else None,
                "truncate": rope.flag("truncate", default=True),
            }
        case "dynamic":
            return {
                "type": "dynamic",
                "factor": rope.number("factor"),
                "original_max_positions": config.integer("max_position_embeddings"),
            }
        case "longrope":
            context = _original(rope, config, least=2)
            longer = rope.number("factor") if "factor" in rope else config.integer("max_position_embeddings") / context
            grown = math.sqrt(1 + math.log(longer) / math.log(context)) if longer > 1 else 1.0
            return {
                "type": "longrope",
                "short_factor": rope.values.get("short_factor"),
                "long_factor": rope.values.get("long_factor"),
                "original_max_positions": context,
                "attention_factor": rope.number("attention_factor", default=grown),
            }
        case _:
            raise rope.fault(key, "is a way of scaling rotary positions that is not known here")


def _original(rope: Config, config: Config, least: int = 1) -> int:
    """The context that the model was first trained with."""
    place = config if "original_max_position_embeddings" in config else rope
    known = config.integer("max_position_embeddings") if "max_position_embeddings" in config else None
    return place.integer("original_max_position_embeddings", default=known, least=least)


FAMILY = Family(
    name="llama",
    model_types=tuple(KINDS),
    blocks=("layers.{}.self_attn.",),
    inputs="the hidden states after the block's input_layernorm",
    read=_read,
    library=Library("layers.{}.self_attn", "layers.{}.self_attn.o_proj"),
)
