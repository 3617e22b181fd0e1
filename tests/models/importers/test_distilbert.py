"""DistilBERT."""

import pytest

from tests.models.importers.checkpoints import assert_imports, save

SIZES = {"vocab_size": 40, "dim": 24, "hidden_dim": 16, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 64}


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("model", ["DistilBertModel", "DistilBertForMaskedLM"])
def test_a_layer_attends_as_in_the_library(tmp_path, model, layer):
    """Its linear layers have names of their own."""
    spec = assert_imports(save(tmp_path, model, **SIZES), layer).spec

    assert (spec.embed_dim, spec.num_heads, spec.is_causal, spec.provenance.family) == (24, 4, False, "distilbert")
