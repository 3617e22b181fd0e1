from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.encoder_eager import Encoder
from models.encoder_import import import_encoder, measure_parity
from models.encoder_reference import encode, hidden_states
from models.encoder_spec import encoder_tensor_names
from models.errors import InvalidModel
from models.export import export_encoder
from models.repository import scan, write
from tests.checkpoints import change_config, largest, library, library_run, write_checkpoint

KINDS = {
    "bert": ("BertModel", {}),
    "bert with a head, tanh": ("BertForMaskedLM", {"hidden_act": "gelu_new"}),
    "bert, relu": ("BertForTokenClassification", {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "roberta": ("RobertaModel", {"type_vocab_size": 1}),
    "roberta with a head": ("RobertaForSequenceClassification", {"layer_norm_eps": 1e-5}),
    "roberta, another padding": ("RobertaModel", {"pad_token_id": 4}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", {"type_vocab_size": 1}),
    "camembert": ("CamembertModel", {"type_vocab_size": 1}),
}
LENGTHS = (1, 2, 31, 33, 257)


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request, tmp_path_factory) -> Path:
    model, config = KINDS[request.param]
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), model, **config)


@pytest.fixture
def bert(tmp_path) -> Path:
    """One that a test may break."""
    return write_checkpoint(tmp_path / "bert", "BertForMaskedLM")


def draw_ids(n: int, count: int) -> np.ndarray:
    """Without the ids that RoBERTa may pad with, which it gives no position."""
    return np.random.RandomState(n).randint(5, 40, (count, n))


def test_the_reference_is_the_library_in_float64(checkpoint):
    """Somebody else's code, which people's models were trained with: all but the last digits agree."""
    entry = import_encoder(checkpoint, "tiny", parity=False)
    spec, weights = entry.spec, entry.weights
    model = library(checkpoint, torch.float64)
    for n in LENGTHS:
        ids = draw_ids(n, 1)

        attentions, states = library_run(model, ids)

        assert largest([t.weights for t in encode(ids[0], spec, weights)], [a[0] for a in attentions]) <= 1e-12
        assert largest(hidden_states(ids[0], spec, weights), [s[0] for s in states]) <= 1e-11


@pytest.mark.parametrize("checkpoint", ["bert", "bert with a head, tanh", "roberta"], indirect=True)
def test_torch_and_onnx_are_the_library_in_float32(checkpoint):
    """As they are served."""
    entry = import_encoder(checkpoint, "tiny", parity=False)
    spec, weights = entry.spec, entry.weights
    model, module = library(checkpoint, torch.float32), Encoder(spec, weights).eval()
    session = ort.InferenceSession(export_encoder(spec, weights).SerializeToString())
    names = [f"layers.{i}.weights" for i in range(spec.num_layers)]
    for n in LENGTHS:
        ids = draw_ids(n, 3)

        attentions, _ = library_run(model, ids)

        with torch.inference_mode():
            found = dict(zip(encoder_tensor_names(spec), module(torch.tensor(ids)), strict=True))
        assert largest([found[name].numpy() for name in names], attentions) <= 1e-5
        assert largest(session.run(names, {"ids": ids}), attentions) <= 1e-5


@pytest.mark.parametrize("checkpoint", ["bert with a head, tanh", "roberta, another padding"], indirect=True)
def test_parity_is_measured_where_the_library_is_there(checkpoint):
    entry = import_encoder(checkpoint, "tiny")
    spec, weights = entry.spec, entry.weights

    assert spec.parity.library.startswith("transformers ")
    assert spec.parity.differences.keys() == {"weights", "hidden_states"}
    assert all(0 <= difference <= 1e-5 for difference in spec.parity.differences.values())
    swapped = weights.layers[::-1]
    with pytest.raises(InvalidModel, match="weights differ from those of transformers"):
        measure_parity(checkpoint, spec, replace(weights, layers=swapped))


def test_without_the_library_there_is_no_parity(bert, monkeypatch):
    """A user needs no transformers to import a checkpoint."""
    monkeypatch.setattr("models.encoder_import.importlib.util.find_spec", lambda _: None)

    assert import_encoder(bert, "tiny").spec.parity is None


def test_the_spec_says_what_was_read(bert):
    entry = import_encoder(bert, "tiny", version="2", description="d", source="s", license="Apache-2.0", parity=False)

    spec = entry.spec
    assert (spec.id, spec.description, spec.source, spec.license) == ("tiny@2", "d", "s", "Apache-2.0")
    assert (spec.num_layers, spec.embed_dim, spec.num_heads, spec.head_dim) == (3, 24, 4, 6)
    assert (spec.max_positions, spec.position_offset, spec.activation) == (300, 0, "gelu")
    assert spec.files.keys() == {"config.json", "model.safetensors", "tokenizer.json"}
    assert entry.tokenizer == (bert / "tokenizer.json").read_bytes()


def test_robertas_positions_start_after_the_padding_token(tmp_path):
    """Its table of 300 rows has room for 298 tokens."""
    entry = import_encoder(write_checkpoint(tmp_path, "RobertaModel"), "tiny", parity=False)
    spec, weights = entry.spec, entry.weights

    assert (spec.max_positions, spec.position_offset) == (298, 2)
    assert weights.position.shape == (300, 24)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32_without_loss(tmp_path, dtype):
    checkpoint = write_checkpoint(tmp_path, "BertModel", dtype=dtype)

    weights = import_encoder(checkpoint, "tiny", parity=False).weights

    theirs = load_file(checkpoint / "model.safetensors")
    assert theirs["embeddings.word_embeddings.weight"].dtype == dtype
    assert weights.word.dtype == np.float32
    np.testing.assert_array_equal(weights.word, theirs["embeddings.word_embeddings.weight"].float().numpy())
    query = theirs["encoder.layer.1.attention.self.query.weight"].float().numpy()
    np.testing.assert_array_equal(weights.layers[1].attention.query, query.T)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"hidden_act": None}, "hidden_act"),
        ({"layer_norm_eps": None}, "layer_norm_eps"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 5}, "hidden_size 24 is no multiple of num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"vocab_size": 1 << 30}, "vocab_size"),
        ({"model_type": "roberta", "pad_token_id": None}, "pad_token_id"),
        ({"model_type": "roberta", "pad_token_id": 299}, "max_positions"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_its_field(bert, changes, message):
    """Numbers would come out that are not the model's."""
    change_config(bert, **changes)

    with pytest.raises(InvalidModel, match=rf"config\.json.*{message}"):
        import_encoder(bert, "tiny", parity=False)


def edit(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors") | {k.replace("__", "."): t for k, t in changes.items()}
    save_file({k: t.contiguous() for k, t in tensors.items() if t is not None}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bert__embeddings__extra__weight": torch.zeros(1)}, "unknown tensor 'bert.embeddings.extra.weight'"),
        (
            {"bert__encoder__layer__0__attention__self__distance_embedding__weight": torch.zeros(3, 6)},
            "unknown tensor '.*distance_embedding.weight'",
        ),
        ({"bert__encoder__layer__0__crossattention__self__query__weight": torch.zeros(24, 24)}, "unknown tensor"),
        ({"bert__encoder__layer__0__attention__self__query__scales": torch.zeros(24)}, "unknown tensor"),
        ({"bert__encoder__norm__weight": torch.zeros(24)}, "unknown tensor 'bert.encoder.norm.weight'"),
        ({"bert__encoder__layer__3__output__dense__bias": torch.zeros(24)}, "unknown tensor 'layers.3.feed_out_bias'"),
        ({"bert__encoder__layer__1__output__dense__bias": None}, "tensor 'layers.1.feed_out_bias' is missing"),
        ({"bert__embeddings__token_type_embeddings__weight": None}, "tensor 'token_type' is missing"),
        ({"bert__embeddings__word_embeddings__weight": torch.zeros(41, 24)}, r"word has shape \(41, 24\)"),
        (
            {"bert__encoder__layer__0__intermediate__dense__weight": torch.zeros(24, 40)},
            r"feed_in has shape \(40, 24\)",
        ),
        ({"bert__encoder__layer__0__attention__self__query__bias": torch.zeros(24, dtype=torch.int8)}, "has dtype I8"),
        ({"bert__embeddings__LayerNorm__bias": torch.full((24,), torch.nan)}, "norm_bias holds NaN"),
        ({"embeddings__LayerNorm__bias": torch.zeros(24)}, "is there twice"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(bert, changes, message):
    edit(bert, **changes)

    with pytest.raises(InvalidModel, match=message):
        import_encoder(bert, "tiny", parity=False)


def test_heads_poolers_and_buffers_are_left_out(bert):
    want = import_encoder(bert, "tiny", parity=False).weights.digest()
    edit(
        bert,
        bert__pooler__dense__weight=torch.zeros(24, 24),
        bert__embeddings__position_ids=torch.arange(300),
        cls__seq_relationship__bias=torch.zeros(2),
    )

    assert import_encoder(bert, "tiny", parity=False).weights.digest() == want


def test_a_checkpoint_in_several_files_is_the_same(tmp_path):
    """Large ones are written so; every file's hash is kept."""
    whole = import_encoder(write_checkpoint(tmp_path / "whole", "BertModel"), "tiny", parity=False)

    parts = import_encoder(write_checkpoint(tmp_path / "parts", "BertModel", shard="20kB"), "tiny", parity=False)

    assert parts.weights.digest() == whole.weights.digest()
    assert len(parts.spec.files) > 4
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} < parts.spec.files.keys()


def test_old_names_of_normalisations_are_understood(bert):
    """The first checkpoints of BERT still call them gamma and beta."""
    want = import_encoder(bert, "tiny", parity=False).weights.digest()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(bert / "model.safetensors")
    renamed = {}
    for name, tensor in tensors.items():
        for new, former in old.items():
            name = name.replace(new, former)
        renamed[name] = tensor
    save_file(renamed, bert / "model.safetensors")

    assert import_encoder(bert, "tiny", parity=False).weights.digest() == want


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_each_file_is_needed_and_read_with_care(bert, file):
    content = (bert / file).read_bytes()
    (bert / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(InvalidModel, match=file):
        import_encoder(bert, "tiny", parity=False)

    (bert / file).unlink()
    with pytest.raises(InvalidModel, match=f"{file} is (missing in|in the folder) |{file} nor "):
        import_encoder(bert, "tiny", parity=False)


def test_a_name_that_no_model_may_have_is_refused(bert):
    with pytest.raises(InvalidModel, match="name 'Not A Name' must match"):
        import_encoder(bert, "Not A Name", parity=False)


def test_an_import_becomes_an_entry_of_a_repository(bert, tmp_path):
    entry = import_encoder(bert, "tiny")
    place = write(tmp_path / "repository", entry)

    good, broken = scan(tmp_path / "repository")

    assert broken == []
    assert [(e.spec, e.tokenizer, e.origin) for e in good] == [(entry.spec, entry.tokenizer, "tiny/1")]
    assert good[0].weights.digest() == entry.weights.digest()
    assert sorted(p.name for p in place.iterdir()) == ["encoder.json", "tokenizer.json", "weights.safetensors"]


def test_an_entry_is_not_overwritten(bert, tmp_path):
    made = import_encoder(bert, "tiny", parity=False)
    write(tmp_path / "repository", made)

    with pytest.raises(InvalidModel, match="tiny/1 exists already"):
        write(tmp_path / "repository", made)


def test_an_entry_that_cannot_be_written_leaves_nothing(bert, tmp_path, monkeypatch):
    """Half a model must not be found by the next start."""
    made = import_encoder(bert, "tiny", parity=False)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("models.repository.save_file", full)

    with pytest.raises(OSError, match="no space left"):
        write(tmp_path / "repository", made)
    assert list((tmp_path / "repository").iterdir()) == []
