"""Files in GGUF, written with its own package from layers of `transformers`, so that the originals are known."""

import importlib
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from models.errors import InvalidModel
from models.importers import import_layer
from models.importers.gguf import MODULES
from tests.models.importers.checkpoints import SIZES, assert_imports, save

gguf = pytest.importorskip("gguf", reason="writes the files")
WIDE = SIZES | {"hidden_size": 64, "intermediate_size": 64, "num_key_value_heads": 2}  # a quantised row is 32 numbers
REST = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}  # fmt: skip
THEIRS = {f"self_attn.{hf}": own for own, hf in MODULES.items()} | REST


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of pairs (i, i + d/2) in the order of pairs (2i, 2i + 1), as llama files keep them."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def convert(folder, file, arch="llama", kind="F32", metadata=(), extra=()):
    """Write a safetensors checkpoint as GGUF."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, arch)
    writer.add_string("general.license", "apache-2.0")
    writer.add_name("Tiny")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(500.0)
    writer.add_vocab_size(config["vocab_size"])
    for name, value in metadata:
        writer.add_string(name, value) if isinstance(value, str) else writer.add_float32(name, value)
    tensors = {"token_embd.weight": None, "output_norm.weight": None}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name == "embed_tokens.weight":
            tensors["token_embd.weight"] = tensor
        elif name == "norm.weight":
            tensors["output_norm.weight"] = tensor
        else:
            _, layer, module, end = (*name.split(".", 2)[:2], *name.split(".", 2)[2].rsplit(".", 1))
            heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(module)
            swapped = paired(tensor, config[heads]) if heads and arch == "llama" else tensor
            tensors[f"blk.{layer}.{THEIRS[module]}.{end}"] = swapped
    for name, tensor in (tensors | dict(extra)).items():
        quantised = kind if tensor.ndim == 2 and "embd" not in name else "F32"
        stored = getattr(gguf.GGMLQuantizationType, quantised)
        writer.add_tensor(name, gguf.quants.quantize(tensor, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def llama(tmp_path):
    return save(tmp_path / "llama", "LlamaModel", **WIDE, rope_parameters={"rope_type": "default", "rope_theta": 500.0})


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_a_layer_attends_as_in_the_library_and_as_its_original(tmp_path, llama, kind, layer):
    """Both take the quantised numbers for what they are; the original is as near as so many bits allow."""
    imported = assert_imports(convert(llama, tmp_path / "tiny.gguf", kind=kind), layer)

    original = import_layer(llama, layer, "m", check=False)
    assert imported.spec.position == original.spec.position
    assert (imported.spec.source, imported.spec.license) == ("Tiny", "apache-2.0")
    assert (imported.spec.provenance.family, list(imported.spec.provenance.files)) == ("llama", ["tiny.gguf"])
    lost = {"F32": 0.0, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 1e-2, "Q4_1": 0.1}[kind]
    for name, tensor in original.weights.tensors().items():
        assert np.abs(getattr(imported.weights, name) - tensor).max() <= lost * np.abs(tensor).max()


def test_qwen2_keeps_its_rows_in_order_and_has_biases(tmp_path):
    """Only llama files are permuted."""
    rope = {"rope_type": "default", "rope_theta": 500.0}
    folder = save(tmp_path / "qwen2", "Qwen2Model", **WIDE, rope_parameters=rope)

    imported = assert_imports(convert(folder, tmp_path / "tiny.gguf", arch="qwen2"), 1)

    assert imported.weights.digest() == import_layer(folder, 1, "m", check=False).weights.digest()
    assert imported.weights.query_bias is not None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"arch": "falcon"}, "architecture 'falcon'"),
        ({"metadata": [("llama.rope.scaling.type", "yarn")]}, "llama.rope.scaling.type"),
        ({"metadata": [("llama.attention.scale", 0.5)]}, "llama.attention.scale"),
        ({"extra": [("rope_freqs.weight", np.ones(8, np.float32))]}, "rope_freqs.weight"),
        ({"extra": [("blk.1.attn_sinks.weight", np.ones(4, np.float32))]}, "attn_sinks.weight"),
    ],
)
def test_what_cannot_be_expressed_is_refused(tmp_path, llama, options, named):
    """Such as the rotations of Llama 3.1, which stand in a tensor of their own."""
    file = convert(llama, tmp_path / "tiny.gguf", **options)

    with pytest.raises(InvalidModel, match=named):
        import_layer(file, 1, "m", check=False)


def test_rubbish_is_refused(tmp_path):
    """A file of another kind, whatever it is called."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"no GGUF at all, but longer than a header")

    with pytest.raises(InvalidModel, match=r"tiny\.gguf: not readable as GGUF"):
        import_layer(file, 0, "m")


def test_without_the_package_the_command_that_installs_it_is_named(tmp_path, llama, monkeypatch):
    """It is an extra."""
    file = convert(llama, tmp_path / "tiny.gguf")
    real = importlib.import_module

    def missing(name):
        if name == "gguf":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", missing)

    with pytest.raises(InvalidModel, match=r"self-attention-service\[gguf\]"):
        import_layer(file, 0, "m")
