"""ViT."""

import pytest

from tests.models.importers.checkpoints import SIZES, assert_imports, save

PICTURE = {"image_size": 8, "patch_size": 2, "num_channels": 3}


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("model", ["ViTModel", "ViTForImageClassification"])
@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_attends_as_in_the_library(tmp_path, model, layer, biased):
    """Names in the file are not those of the library's modules."""
    imported = assert_imports(save(tmp_path, model, **SIZES, **PICTURE, qkv_bias=biased), layer)

    spec = imported.spec
    assert (spec.embed_dim, spec.num_heads, spec.is_causal, spec.provenance.family) == (24, 4, False, "vit")
    assert (imported.weights.query_bias is not None) == biased
