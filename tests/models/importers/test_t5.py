"""T5, either half."""

import pytest

from models.errors import InvalidModel
from models.importers import import_layer
from tests.models.importers.checkpoints import assert_imports, rewrite_tensors, save

SIZES = {"vocab_size": 40, "d_model": 24, "d_kv": 10, "d_ff": 16, "num_layers": 3, "num_heads": 4,
         "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}  # fmt: skip


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize(
    ("model", "family", "decoder"),
    [
        ("T5Model", None, False),
        ("T5EncoderModel", "t5", False),
        ("MT5EncoderModel", "t5", False),
        ("T5Model", "t5-decoder", True),
        ("T5ForConditionalGeneration", "t5-decoder", True),
        ("MT5Model", "t5-decoder", True),
    ],
)
def test_a_layer_attends_as_in_the_library(tmp_path, model, family, decoder, layer):
    """The table of distances stands in block 0, and holds in all of them."""
    spec = assert_imports(save(tmp_path, model, **SIZES), layer, family=family).spec

    assert (spec.scale, spec.head_dim, spec.is_causal) == (1.0, 10, decoder)
    assert (spec.position.num_buckets, spec.position.max_distance, spec.position.bidirectional) == (8, 20, not decoder)
    assert spec.provenance.family == ("t5-decoder" if decoder else "t5")


def test_a_missing_table_is_named(tmp_path):
    """It is in another block than the layer's."""
    save(tmp_path, "T5EncoderModel", **SIZES)
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    rewrite_tensors(tmp_path, {name: None})

    with pytest.raises(InvalidModel, match=f"{name}' is missing"):
        import_layer(tmp_path, 1, "m", check=False)
