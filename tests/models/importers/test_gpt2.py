"""GPT-2."""

import pytest
import torch

from models.importers import import_layer
from tests.models.importers.checkpoints import assert_imports, rewrite_tensors, save

SIZES = {"vocab_size": 40, "n_positions": 64, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_inner": 16,
         "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("model", ["GPT2Model", "GPT2LMHeadModel"])
def test_a_layer_attends_as_in_the_library(tmp_path, model, layer):
    """Its matrices are not transposed, and the three stand side by side."""
    spec = assert_imports(save(tmp_path, model, **SIZES), layer).spec

    assert (spec.embed_dim, spec.num_heads, spec.is_causal, spec.provenance.family) == (24, 4, True, "gpt2")
    assert spec.effective_scale == pytest.approx(6**-0.5)


@pytest.mark.parametrize(
    ("flags", "scale"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, 6**-0.5 / 3),
        ({"scale_attn_weights": False}, 1.0),
        ({"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}, 1 / 3),
    ],
)
def test_scores_are_scaled_as_the_flags_say(tmp_path, flags, scale):
    """Two flags, either of which changes the factor."""
    assert assert_imports(save(tmp_path, "GPT2Model", **SIZES, **flags), 2).spec.scale == pytest.approx(scale)


def test_the_causal_masks_of_old_files_are_no_biases(tmp_path):
    """They are called `attn.bias` there."""
    save(tmp_path, "GPT2Model", **SIZES)
    want = import_layer(tmp_path, 1, "m", check=False).weights.digest()
    mask = torch.ones(64, 64, dtype=torch.bool).tril()[None, None]
    rewrite_tensors(tmp_path, {"h.1.attn.bias": mask, "h.1.attn.masked_bias": torch.tensor(-1e4)})

    assert import_layer(tmp_path, 1, "m", check=False).weights.digest() == want
