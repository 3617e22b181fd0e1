"""`torch.nn.MultiheadAttention`."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from models.errors import InvalidModel
from models.importers import import_layer
from tests.models.importers.checkpoints import assert_imports


def save(path, module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    save_file(module.state_dict(), path)
    return path


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("apart", [False, True], ids=["stacked", "apart"])
def test_a_module_attends_as_in_torch(tmp_path, bias, apart):
    """With biases or without, its matrices in one tensor or in three."""
    file = save(tmp_path / "attention.safetensors", nn.MultiheadAttention(24, 4, bias=bias))
    if apart:
        state = load_file(file)
        for name, rows in zip("qkv", state.pop("in_proj_weight").chunk(3), strict=True):
            state[f"{name}_proj_weight"] = rows.contiguous()
        save_file(state, file)

    imported = assert_imports(file, 0, num_heads=4)

    assert (imported.spec.num_heads, imported.spec.head_dim, imported.spec.provenance.family) == (4, 6, "multihead")
    assert (imported.weights.query_bias is not None) == bias
    assert imported.spec.source == "attention.safetensors"


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_layer_of_an_encoder_is_found(tmp_path, layer):
    """There are several, numbered."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 16), 3, enable_nested_tensor=False)

    assert_imports(save(tmp_path / "encoder.safetensors", encoder), layer, family="multihead", num_heads=4)


@pytest.mark.parametrize(
    ("module", "heads", "message"),
    [
        (nn.MultiheadAttention(24, 4), None, "--num-heads"),
        (nn.MultiheadAttention(24, 4), 5, "24 cannot be shared by 5 heads"),
        (nn.MultiheadAttention(24, 4, add_bias_kv=True), 4, "tensor 'bias_k'"),
        (nn.MultiheadAttention(24, 4, kdim=12, vdim=12), 4, r"tensor 'k_proj_weight' has shape \(24, 12\)"),
        (nn.Transformer(24, 4, 1, 1, 16, batch_first=True), 4, "more than one"),
        (nn.Linear(24, 24), 4, "config.json is missing"),
    ],
)
def test_what_is_no_self_attention_is_refused(tmp_path, module, heads, message):
    """Keys of another width belong to other inputs."""
    file = save(tmp_path / "module.safetensors", module)

    with pytest.raises(InvalidModel, match=message):
        import_layer(file, 0, "m", num_heads=heads)
