"""`torch.nn.MultiheadAttention`, alone or in a `torch.nn.TransformerEncoder`, its state dict saved as safetensors.

The three matrices are stacked by rows, or apart. Nothing in the file tells how many heads share them.
"""

import math
from typing import Any

import numpy as np

from models.errors import InvalidModel
from models.importers.base import Block, Config, Family, head_dim

NAMES = ("query", "key", "value")


def _read(block: Block, config: Config, layer: int, num_heads: int | None) -> dict[str, Any]:
    if num_heads is None:
        raise InvalidModel("a file of nn.MultiheadAttention does not say how many heads there are: give --num-heads")
    if "out_proj.weight" not in block.left:
        raise InvalidModel(f"tensor {block.prefix + 'out_proj.weight'!r} is missing")
    width = math.isqrt(block.checkpoint.read(block.prefix + "out_proj.weight").size)  # it is square
    if "in_proj_weight" in block.left:
        matrices = np.split(block.read("in_proj_weight", 3 * width, width), 3)
    else:
        matrices = [block.read(f"{name}_proj_weight", width, width) for name in ("q", "k", "v")]
    block.tensors |= {name: matrix.T for name, matrix in zip(NAMES, matrices, strict=True)}
    biased = "in_proj_bias" in block.left
    if biased:
        offsets = np.split(block.read("in_proj_bias", 3 * width), 3)
        block.tensors |= {f"{name}_bias": rows for name, rows in zip(NAMES, offsets, strict=True)}
    block.linear("output", "out_proj", width, width, bias=biased)
    block.finish()
    return {
        "embed_dim": width,
        "num_heads": num_heads,
        "head_dim": head_dim(Config({}, "--num-heads"), width, num_heads),
    }


FAMILY = Family(
    name="multihead",
    model_types=(),
    blocks=("layers.{}.self_attn.", ""),
    inputs="what the module is called with, as query, key and value alike",
    read=_read,
    library=None,
)
