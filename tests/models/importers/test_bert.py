"""BERT and those that kept its names."""

import pytest

from models.errors import InvalidModel
from models.importers import import_layer
from tests.models.importers.checkpoints import SIZES, assert_imports, rewrite_config, save


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize(
    "model", ["BertModel", "BertForMaskedLM", "RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "ElectraModel"]
)
def test_a_layer_attends_as_in_the_library(tmp_path, model, layer):
    """With a head on the model or without, whose names then begin otherwise."""
    spec = assert_imports(save(tmp_path, model, **SIZES), layer).spec

    assert (spec.embed_dim, spec.num_heads, spec.head_dim, spec.is_causal) == (24, 4, 6, False)
    assert (spec.provenance.family, spec.provenance.layer) == ("bert", layer)


def test_a_decoder_is_causal(tmp_path):
    """One flag of the configuration makes another layer of the same tensors."""
    assert assert_imports(save(tmp_path, "BertModel", **SIZES, is_decoder=True), 1).spec.is_causal


@pytest.mark.parametrize(
    ("field", "value"),
    [("position_embedding_type", "relative_key"), ("add_cross_attention", True), ("quantization_config", {"bits": 4})],
)
def test_what_cannot_be_expressed_is_refused(tmp_path, field, value):
    """A layer that leaves out half of what the model does would be wrong in silence."""
    rewrite_config(save(tmp_path, "BertModel", **SIZES), **{field: value})

    with pytest.raises(InvalidModel, match=field):
        import_layer(tmp_path, 0, "m", check=False)
