"""Llama, Mistral, Qwen2, Qwen3 and Gemma 2."""

import pytest
import torch

from models.errors import InvalidModel
from models.importers import import_layer
from tests.models.importers.checkpoints import SIZES as COMMON
from tests.models.importers.checkpoints import assert_imports, rewrite_config, rewrite_tensors, save

SIZES = COMMON | {"num_key_value_heads": 2}
ROPE = {"rope_type": "default", "rope_theta": 500.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.2, 1.5], "long_factor": [1.0, 2.0, 4.0],
            "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.5}
QWEN = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
GEMMA = {"head_dim": 10, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 1.5, "sliding_window": 7}

CASES = {
    "llama": ("LlamaForCausalLM", {}, {}),
    "llama-many-key-heads": ("LlamaModel", {"num_key_value_heads": 4}, {"num_kv_heads": 4}),
    "llama-wide-heads": ("LlamaModel", {"head_dim": 10}, {"head_dim": 10}),
    "llama-biases": ("LlamaModel", {"attention_bias": True}, {}),
    "llama-linear": ("LlamaModel", {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 2.5}}, {}),
    "llama-llama3": (
        "LlamaModel",
        {"rope_parameters": ROPE | LLAMA3 | {"original_max_position_embeddings": 40}},
        {},
    ),
    "llama-llama3-whole-context": ("LlamaModel", {"rope_parameters": ROPE | LLAMA3}, {}),
    "llama-yarn": ("LlamaModel", {"rope_parameters": ROPE | YARN | {"original_max_position_embeddings": 32}}, {}),
    "llama-yarn-factor": (
        "LlamaModel",
        {"rope_parameters": ROPE | YARN | {"original_max_position_embeddings": 32, "attention_factor": 0.7}},
        {},
    ),
    "llama-yarn-fractional": (
        "LlamaModel",
        {"rope_parameters": ROPE | YARN | {"original_max_position_embeddings": 32, "truncate": False}},
        {},
    ),
    # The library runs 24 tokens, more than these contexts.
    "llama-dynamic": (
        "LlamaModel",
        {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 3.0}, "max_position_embeddings": 16},
        {},
    ),
    "llama-longrope": ("LlamaModel", {"rope_parameters": ROPE | LONGROPE}, {}),
    "llama-longrope-factor": ("LlamaModel", {"rope_parameters": ROPE | LONGROPE | {"factor": 3.0}}, {}),
    "llama-longrope-short": (
        "LlamaModel",
        {"rope_parameters": ROPE | LONGROPE | {"original_max_position_embeddings": 32, "attention_factor": 1.2}},
        {},
    ),
    "mistral": ("MistralForCausalLM", {"sliding_window": 7}, {"window": 7}),
    "mistral-all": ("MistralModel", {"sliding_window": None}, {}),
    "qwen2": ("Qwen2ForCausalLM", {}, {}),
    "qwen3": ("Qwen3Model", {"head_dim": 10, "rms_norm_eps": 1e-5}, {"head_dim": 10}),
    "qwen3-biases": ("Qwen3ForCausalLM", {"head_dim": 10, "attention_bias": True}, {"head_dim": 10}),
}


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_layer_attends_as_in_the_library(tmp_path, case, layer):
    """They differ in biases, norms, windows and the width of a head."""
    model, config, expected = CASES[case]

    spec = assert_imports(save(tmp_path, model, **SIZES | config), layer).spec

    common = {"embed_dim": 24, "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "is_causal": True, "window": None}
    assert {name: getattr(spec, name) for name in common} == common | expected
    assert spec.provenance.family == "llama"


@pytest.mark.parametrize(("layer", "window"), [(0, 7), (1, None), (2, 7)])
@pytest.mark.parametrize("stated", [True, False], ids=["layer_types", "every other layer"])
def test_gemma_sees_a_window_in_every_other_layer(tmp_path, layer, window, stated):
    """Old configurations do not say which."""
    save(tmp_path, "Gemma2ForCausalLM", **SIZES | GEMMA)
    if not stated:
        rewrite_config(tmp_path, layer_types=...)

    spec = assert_imports(tmp_path, layer).spec

    assert (spec.window, spec.logit_softcap, spec.scale) == (window, 1.5, pytest.approx(20**-0.5))


def test_gemma_may_have_no_soft_cap(tmp_path):
    """Null is a value, and not the default."""
    config = SIZES | GEMMA | {"attn_logit_softcapping": None}

    assert assert_imports(save(tmp_path, "Gemma2Model", **config), 0).spec.logit_softcap is None


@pytest.mark.parametrize(("layer", "window"), [(0, None), (1, 7), (2, 7)])
@pytest.mark.parametrize("stated", [True, False], ids=["layer_types", "max_window_layers"])
@pytest.mark.parametrize("model", ["Qwen2Model", "Qwen3Model"])
def test_the_upper_layers_of_qwen_may_see_a_window(tmp_path, model, layer, window, stated):
    """From `max_window_layers` on."""
    save(tmp_path, model, **SIZES | QWEN | {"head_dim": 10})
    if not stated:
        rewrite_config(tmp_path, layer_types=...)

    assert assert_imports(tmp_path, layer).spec.window == window


def test_the_old_way_of_writing_rotary_positions_means_the_same(tmp_path):
    """`rope_theta` and `rope_scaling` stand in nearly all files that there are."""
    new = {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0}
    save(tmp_path, "LlamaModel", **SIZES, rope_parameters=new)
    want = import_layer(tmp_path, 1, "m", check=False).spec
    rewrite_config(
        tmp_path, rope_parameters=..., rope_theta=500.0, rope_scaling={"type": "linear", "factor": 2.5}, head_dim=...
    )

    assert assert_imports(tmp_path, 1).spec.position == want.position
    assert want.position.scaling.factor == 2.5


def test_tables_of_angles_in_old_files_change_nothing(tmp_path):
    """They follow from the configuration."""
    save(tmp_path, "LlamaModel", **SIZES)
    rewrite_tensors(tmp_path, {"layers.1.self_attn.rotary_emb.inv_freq": torch.zeros(3)})

    import_layer(tmp_path, 1, "m", check=False)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_parameters": {"rope_type": "dynamic"}}, "factor is missing"),
        ({"rope_parameters": ROPE | LONGROPE}, "short_factor has 3 numbers for 5 pairs"),
        ({"rope_parameters": ROPE | LONGROPE | {"short_factor": None}}, "short_factor"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "spiral"),
        ({"rope_parameters": ROPE | YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}, "mscale"),
        ({"rope_parameters": ROPE | {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types"),
        ({"layer_types": []}, "layer_types"),
        ({"num_key_value_heads": ...}, "num_key_value_heads is missing"),
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads 0 is not a whole number of 1 or more"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"num_attention_heads": 5}, "q_proj.weight"),
        ({"head_dim": 7}, "q_proj.weight"),
    ],
)
def test_what_cannot_be_expressed_is_refused(tmp_path, changes, named):
    """Guessing gives numbers that look right."""
    rewrite_config(save(tmp_path, "Qwen3Model", **SIZES | {"head_dim": 10}), **changes)

    with pytest.raises(InvalidModel, match=named):
        import_layer(tmp_path, 0, "m", check=False)
