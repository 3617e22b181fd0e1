"""DistilBERT: BERT's attention under other names."""

from typing import Any

from models.importers.base import Block, Config, Family, Library, head_dim


def _read(block: Block, config: Config, layer: int, num_heads: int | None) -> dict[str, Any]:
    width, heads = config.integer("dim", "hidden_size"), config.integer("n_heads", "num_attention_heads")
    for ours, theirs in (("query", "q_lin"), ("key", "k_lin"), ("value", "v_lin"), ("output", "out_lin")):
        block.linear(ours, theirs, width, width, bias=True)
    block.finish()
    return {"embed_dim": width, "num_heads": heads, "head_dim": head_dim(config, width, heads)}


FAMILY = Family(
    name="distilbert",
    model_types=("distilbert",),
    blocks=("transformer.layer.{}.attention.",),
    inputs="the normalised embeddings, or the normalised hidden states of the layer before",
    read=_read,
    library=Library("transformer.layer.{}.attention", "transformer.layer.{}.attention.out_lin"),
)
