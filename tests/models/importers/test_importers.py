"""What holds for every family: how files are found and read, what is refused, what a layer says of itself."""

import hashlib
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.errors import InvalidModel
from models.importers import FAMILIES, import_layer, parity
from models.spec import AttentionSpec
from tests.models.importers.checkpoints import SIZES, assert_imports, rewrite_config, rewrite_tensors, save

KEY = "encoder.layer.1.attention.self.key.weight"


@pytest.fixture
def bert(tmp_path):
    return save(tmp_path / "tiny-bert", "BertModel", **SIZES)


def test_every_family_is_registered_under_its_own_name():
    """The name is what people type, and what provenance keeps."""
    assert {name: family.name for name, family in FAMILIES.items()} == {name: name for name in FAMILIES}
    assert all(family.model_types or family.library is None for family in FAMILIES.values())


@pytest.mark.parametrize("layer", [0, 2])
def test_a_checkpoint_in_several_files_is_one(tmp_path, layer):
    """Large ones are."""
    want = import_layer(save(tmp_path / "whole", "BertModel", **SIZES), layer, "m", check=False).weights.digest()
    folder = save(tmp_path / "sharded", "BertModel", shard="8KB", **SIZES)
    shards = {file.name for file in folder.glob("*.safetensors")}

    imported = assert_imports(folder, layer)

    files = imported.spec.provenance.files
    assert imported.weights.digest() == want
    assert {"config.json", "model.safetensors.index.json"} < files.keys()
    assert 0 < len(files.keys() & shards) < len(shards), "only the files that were read"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_become_float32(tmp_path, dtype):
    """Half precision is what large checkpoints come in."""
    folder = save(tmp_path, "BertModel", dtype=dtype, **SIZES)
    stored = load_file(folder / "model.safetensors")[KEY]

    imported = assert_imports(folder, 1)

    assert stored.dtype == dtype
    assert torch.equal(torch.tensor(imported.weights.key.T), stored.float())


def test_a_single_file_is_read_with_the_configuration_beside_it(tmp_path, bert):
    """Whatever the file is called."""
    file = bert / "renamed.safetensors"
    shutil.move(bert / "model.safetensors", file)

    imported = assert_imports(file, 1)

    assert imported.spec.source == "renamed.safetensors"
    assert imported.spec.provenance.files.keys() == {"config.json", "renamed.safetensors"}


def test_a_layer_says_where_it_is_from(bert):
    """Hashes tell whether two layers are of the same file; a path would tell only whose machine it was."""
    (bert / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# Tiny\n\nlicense: no\n")

    spec = import_layer(bert, 2, "layer-two", version="3").spec

    assert (spec.id, spec.source, spec.license) == ("layer-two@3", "tiny-bert", "mit")
    assert "Layer 2 of a bert checkpoint" in spec.description
    for name, digest in spec.provenance.files.items():
        assert digest == hashlib.sha256((bert / name).read_bytes()).hexdigest()
    assert spec.provenance.parity.library.startswith("transformers 5.")
    assert max(spec.provenance.parity.differences.values()) < 1e-5
    assert AttentionSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("stated", "source"),
    [("some/model", "some/model"), ("/home/me/secret/model/", "model"), (r"C:\secret\model", "model"), ("./m", "m")],
)
def test_the_source_is_what_the_checkpoint_calls_itself_and_no_path(bert, stated, source):
    """Files keep the path they were trained at."""
    rewrite_config(bert, _name_or_path=stated)

    assert import_layer(bert, 0, "m", check=False).spec.source == source


def test_the_user_knows_better(bert):
    """Source and licence can be given."""
    spec = import_layer(bert, 0, "m", source="here", license="CC0-1.0", check=False).spec

    assert (spec.source, spec.license, spec.provenance.parity) == ("here", "CC0-1.0", None)


def test_an_architecture_tells_the_family_where_no_model_type_does(bert):
    """Old configurations have no more."""
    want = import_layer(bert, 0, "m", check=False).weights.digest()
    rewrite_config(bert, model_type=..., architectures=["BertForMaskedLM"])

    assert import_layer(bert, 0, "m", check=False).weights.digest() == want


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_pickle_is_never_opened(tmp_path, name, inside):
    """It may run anything."""
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')

    with pytest.raises(InvalidModel, match="save it as safetensors"):
        import_layer(tmp_path if inside else tmp_path / name, 0, "m")


@pytest.mark.parametrize("place", ["../other.safetensors", "/etc/passwd", "a/../../b.safetensors", "x.bin", 3, ".."])
def test_an_index_cannot_leave_its_folder(tmp_path, bert, place):
    """It is data from somebody else."""
    (bert / "model.safetensors").unlink()
    (bert / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {KEY: place}}))

    with pytest.raises(InvalidModel, match="not the name of a safetensors file beside it"):
        import_layer(bert, 1, "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({KEY: None}, f"tensor '{KEY}' is missing"),
        ({KEY: torch.zeros(24, 23)}, rf"tensor '{KEY}' has shape \(24, 23\), .* \(24, 24\)"),
        ({KEY: torch.zeros(24, 24, dtype=torch.int32)}, f"tensor '{KEY}' has dtype I32"),
        ({KEY: torch.zeros(24, 24).to(torch.float8_e4m3fn)}, f"tensor '{KEY}' has dtype F8_E4M3"),
        ({KEY: torch.full((24, 24), torch.nan)}, "key holds NaN"),
        (
            {"encoder.layer.1.attention.self.distance_embedding.weight": torch.zeros(3, 6)},
            "tensor 'encoder.layer.1.attention.self.distance_embedding.weight' is none that",
        ),
        ({f"other.{KEY}": torch.zeros(24, 24)}, "more than one attention block is layer 1: encoder.* other.encoder"),
    ],
)
def test_tensors_that_do_not_fit_are_named(bert, changes, message):
    """So that whoever made the file can tell what is wrong with it."""
    rewrite_tensors(bert, changes)

    with pytest.raises(InvalidModel, match=message):
        import_layer(bert, 1, "m", check=False)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "config.json is missing"),
        ("{", "config.json: not readable as JSON"),
        ("[]", "config.json: not a JSON object"),
        ('{"hidden_size": 24}', "neither model_type nor architectures"),
        ('{"model_type": "mamba"}', "model_type 'mamba' is none of those imported: bert, "),
        ('{"model_type": "bert"}', "hidden_size is missing"),
        ('{"model_type": "bert", "hidden_size": 24, "num_attention_heads": 5}', "24 cannot be shared by 5 heads"),
    ],
)
def test_a_configuration_that_does_not_do_is_refused(bert, config, message):
    """Tensors alone do not say what they mean."""
    (bert / "config.json").unlink()
    if config is not None:
        (bert / "config.json").write_text(config)

    with pytest.raises(InvalidModel, match=message):
        import_layer(bert, 1, "m", check=False)


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (3, {}, "no layer 3: the checkpoint has layers 0 to 2"),
        (0, {"family": "gpt2"}, "model_type 'bert' is of the family bert"),
        (0, {"family": "gpt9"}, "there is no family 'gpt9'; there are bert"),
        (0, {"num_heads": 4}, "leave out --num-heads"),
        (0, {"version": "no version"}, "version"),
    ],
)
def test_what_was_asked_for_must_fit(bert, layer, options, message):
    """The error says what there is."""
    with pytest.raises(InvalidModel, match=message):
        import_layer(bert, layer, "m", check=False, **options)


def test_files_that_are_not_there_or_not_safetensors_are_refused(tmp_path):
    """Three ways to mistype a path."""
    (tmp_path / "rubbish.safetensors").write_bytes(b"rubbish")

    for path, message in (("none", "no such file"), ("rubbish.safetensors", "not readable"), (".", "neither model")):
        with pytest.raises(InvalidModel, match=message):
            import_layer(tmp_path / path, 0, "m")


def test_a_layer_that_the_library_computes_otherwise_is_refused(bert, monkeypatch):
    """By how much is said."""
    real = parity.run_library

    def other(*args):
        run = real(*args)
        return parity.Run(run.library, run.inputs, run.weights, 1.01 * run.outputs, run.projected)

    monkeypatch.setattr(parity, "run_library", other)

    with pytest.raises(InvalidModel, match=r"differs from transformers .* by 9\.9e-03 .*outputs"):
        import_layer(bert, 1, "m")


@pytest.mark.parametrize("tensor", ["weights", "outputs", "projected"])
def test_a_layer_whose_library_makes_no_numbers_is_refused(bert, monkeypatch, tensor):
    """As those that overflow float32 do not."""
    real = parity.run_library

    def broken(*args):
        run = real(*args)
        return replace(run, **{tensor: np.nan * getattr(run, tensor)})

    monkeypatch.setattr(parity, "run_library", broken)

    with pytest.raises(InvalidModel, match=f"{tensor} are not finite, here or in transformers"):
        import_layer(bert, 1, "m")


def test_a_layer_is_imported_unchecked_where_its_library_is_missing(bert, monkeypatch):
    """It is not needed to serve."""
    monkeypatch.setitem(sys.modules, "transformers", None)

    assert import_layer(bert, 1, "m").spec.provenance.parity is None


def test_a_library_that_is_too_old_is_as_good_as_missing(bert, monkeypatch):
    """Its modules had other names."""
    monkeypatch.setattr("transformers.__version__", "4.57.1")

    assert import_layer(bert, 1, "m").spec.provenance.parity is None


def test_a_library_that_fails_is_named_and_can_be_skipped(bert):
    """Its failure may be a finding about the checkpoint."""
    rewrite_config(bert, hidden_act="no such function")

    with pytest.raises(InvalidModel, match="--no-check"):
        import_layer(bert, 1, "m")
    import_layer(bert, 1, "m", check=False)


def test_only_the_layers_tensors_are_read(tmp_path, bert):
    """The rest may be gigabytes, or of a kind that cannot be read."""
    tensors = load_file(bert / "model.safetensors")
    rest = {name: tensor.to(torch.int8) for name, tensor in tensors.items() if "layer.1.attention" not in name}
    save_file(tensors | rest, bert / "model.safetensors")

    import_layer(bert, 1, "m", check=False)
