"""ViT: BERT's attention over patches of a picture, normalised before instead of after.

The names are those in the file, which the library still writes though its modules are called otherwise by now.
"""

from typing import Any

from models.importers.base import Block, Config, Family, Library, head_dim


def _read(block: Block, config: Config, layer: int, num_heads: int | None) -> dict[str, Any]:
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    biased = config.flag("qkv_bias", default=True)
    for name in ("query", "key", "value"):
        block.linear(name, f"attention.{name}", width, width, bias=biased)
    block.linear("output", "output.dense", width, width, bias=True)
    block.finish()
    return {"embed_dim": width, "num_heads": heads, "head_dim": head_dim(config, width, heads)}


FAMILY = Family(
    name="vit",
    model_types=("vit",),
    blocks=("encoder.layer.{}.attention.",),
    inputs="the hidden states after the block's layernorm_before",
    read=_read,
    library=Library("layers.{}.attention", "layers.{}.attention.o_proj"),
)
