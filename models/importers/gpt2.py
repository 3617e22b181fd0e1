"""GPT-2: one matrix for queries, keys and values side by side, stored (in, out) as ours are.

The tensors `attn.bias` and `attn.masked_bias` of older files are the causal mask and its value, no biases.
"""

from typing import Any

import numpy as np

from models.importers.base import Block, Config, Family, Library, head_dim


def _read(block: Block, config: Config, layer: int, num_heads: int | None) -> dict[str, Any]:
    width, heads = config.integer("n_embd", "hidden_size"), config.integer("n_head", "num_attention_heads")
    config.only("add_cross_attention", False)
    width_of_head = head_dim(config, width, heads)
    matrix = block.read("c_attn.weight", width, 3 * width)
    bias = block.read("c_attn.bias", 3 * width)
    for ours, columns, offsets in zip(
        ("query", "key", "value"), np.split(matrix, 3, axis=1), np.split(bias, 3), strict=True
    ):
        block.tensors |= {ours: columns, f"{ours}_bias": offsets}
    block.tensors["output"] = block.read("c_proj.weight", width, width)
    block.tensors["output_bias"] = block.read("c_proj.bias", width)
    block.finish("bias", "masked_bias")
    scale = width_of_head**-0.5 if config.flag("scale_attn_weights", default=True) else 1.0
    if config.flag("scale_attn_by_inverse_layer_idx", default=False):
        scale /= layer + 1
    return {
        "embed_dim": width,
        "num_heads": heads,
        "head_dim": width_of_head,
        "is_causal": True,
        "scale": scale,
    }


FAMILY = Family(
    name="gpt2",
    model_types=("gpt2",),
    blocks=("h.{}.attn.",),
    inputs="the hidden states after the block's ln_1",
    read=_read,
    library=Library("h.{}.attn", "h.{}.attn.c_proj"),
)
