"""BERT and those that kept its names: MiniLM, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA.

Positions are part of the embeddings, so the layer itself has none.
"""

from typing import Any

from models.importers.base import Block, Config, Family, Library, head_dim


def _read(block: Block, config: Config, layer: int, num_heads: int | None) -> dict[str, Any]:
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    config.only("position_embedding_type", "absolute")
    config.only("add_cross_attention", False)
    for ours, theirs in (("query", "self.query"), ("key", "self.key"), ("value", "self.value")):
        block.linear(ours, theirs, width, width, bias=True)
    block.linear("output", "output.dense", width, width, bias=True)
    block.finish("output.LayerNorm.")
    return {
        "embed_dim": width,
        "num_heads": heads,
        "head_dim": head_dim(config, width, heads),
        "is_causal": config.flag("is_decoder", default=False),
    }


FAMILY = Family(
    name="bert",
    model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    blocks=("encoder.layer.{}.attention.",),
    inputs="the normalised embeddings, or the normalised hidden states of the layer before",
    read=_read,
    library=Library("encoder.layer.{}.attention.self", "encoder.layer.{}.attention.output.dense"),
)
