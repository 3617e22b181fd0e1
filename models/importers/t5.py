"""T5's self-attention, of the encoder and of the decoder: no biases, scores not scaled, a bias per bucket of distances.

The table of buckets stands in block 0 of either and holds for all of its blocks.
"""

from collections.abc import Callable
from typing import Any

from models.importers.base import Block, Config, Family, Library, find_block

TABLE = "relative_attention_bias.weight"


def _reader(blocks: tuple[str, ...], *, decoder: bool) -> Callable[[Block, Config, int, int | None], dict[str, Any]]:
    def read(block: Block, config: Config, layer: int, num_heads: int | None) -> dict[str, Any]:
        width, heads, depth = config.integer("d_model"), config.integer("num_heads"), config.integer("d_kv")
        buckets = config.integer("relative_attention_num_buckets", default=32)
        for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v")):
            block.linear(ours, theirs, heads * depth, width, bias=False)
        block.linear("output", "o", width, heads * depth, bias=False)
        first = find_block(block.checkpoint, blocks, 0) if layer else block
        block.tensors["relative_bias"] = first.read(TABLE, buckets, heads)
        block.finish()
        return {
            "embed_dim": width,
            "num_heads": heads,
            "head_dim": depth,
            "is_causal": decoder,
            "scale": 1.0,
            "position": {
                "scheme": "relative",
                "num_buckets": buckets,
                "max_distance": config.integer("relative_attention_max_distance", default=128),
                "bidirectional": not decoder,
            },
        }

    return read


def _family(name: str, half: str, library: Library) -> Family:
    blocks = (f"{half}.block.{{}}.layer.0.SelfAttention.",)
    return Family(
        name=name,
        model_types=("t5", "mt5"),
        blocks=blocks,
        inputs="the hidden states after the layer_norm of the block's layer.0",
        read=_reader(blocks, decoder=half == "decoder"),
        library=library,
    )


def _library(half: str, auto: str) -> Library:
    attention = f"{half}.block.{{}}.layer.0.SelfAttention"
    return Library(attention, f"{attention}.o", auto, is_encoder_decoder=half == "decoder")


ENCODER = _family("t5", "encoder", _library("encoder", "AutoModelForTextEncoding"))
DECODER = _family("t5-decoder", "decoder", _library("decoder", "AutoModel"))
