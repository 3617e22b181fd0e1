import json
from pathlib import Path

import pytest

from models import encoder_weights, repository
from models.encoder_spec import EncoderSpec
from models.errors import InvalidModel
from models.repository import MAX_SPEC_BYTES, EncoderEntry, scan
from tests.encoders import draw_weights, make_spec, word_pieces

SPEC = make_spec(num_layers=1)
LAYER = {"name": "layer", "embed_dim": 2, "head_dim": 2, "seed": 1}


def put(repository: Path, place: str, spec: EncoderSpec = SPEC) -> Path:
    """An entry of a repository."""
    folder = repository / place
    folder.mkdir(parents=True)
    (folder / "encoder.json").write_text(spec.model_dump_json())
    (folder / "tokenizer.json").write_bytes(word_pieces())
    encoder_weights.save(draw_weights(spec), folder / "weights.safetensors")
    return folder


def put_layer(repository: Path, place: str) -> None:
    (repository / place).mkdir(parents=True, exist_ok=True)
    (repository / place / "spec.json").write_text(json.dumps(LAYER))


def test_layers_and_encoders_stand_side_by_side(tmp_path):
    """Each scan finds its own, in both layouts, and takes the other's for nothing broken."""
    put(tmp_path, "tiny", SPEC)
    put(tmp_path, "big/1", SPEC.model_copy(update={"name": "big"}))
    put(tmp_path, "big/2", SPEC.model_copy(update={"name": "big", "version": "2"}))
    put_layer(tmp_path, "layer/1")

    found, broken = scan(tmp_path)
    encoders = [entry for entry in found if isinstance(entry, EncoderEntry)]

    assert [(e.spec.id, e.origin) for e in found if e not in encoders] == [("layer@1", "layer/1")]
    assert [(e.spec.id, e.origin) for e in encoders] == [("big@1", "big/1"), ("big@2", "big/2"), ("tiny@1", "tiny")]
    assert broken == []
    assert encoders[0].tokenizer == word_pieces()
    assert encoders[0].weights.digest() == draw_weights(SPEC).digest()


@pytest.mark.parametrize("file", ["tokenizer.json", "weights.safetensors"])
def test_a_missing_file_breaks_an_entry(tmp_path, file):
    put(tmp_path, "good/1", SPEC.model_copy(update={"name": "good"}))
    (put(tmp_path, "tiny/1") / file).unlink()

    good, broken = scan(tmp_path)

    assert [entry.spec.id for entry in good] == ["good@1"]
    assert [(entry.origin, entry.reason) for entry in broken] == [("tiny/1", f"{file} is missing")]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("encoder.json", b"{", "tiny/1/encoder.json: spec: Invalid JSON"),
        ("encoder.json", b"{}", "tiny/1/encoder.json: name: Field required"),
        ("encoder.json", b" " * (MAX_SPEC_BYTES + 1), "encoder.json is larger than 1048576 bytes"),
        ("tokenizer.json", b"{}", "tokenizer.json: "),
        ("weights.safetensors", b"", "weights.safetensors: not readable as safetensors"),
        ("spec.json", b"{}", "there are spec.json and encoder.json"),
    ],
)
def test_a_broken_file_breaks_an_entry(tmp_path, file, content, reason):
    (put(tmp_path, "tiny/1") / file).write_bytes(content)

    good, broken = scan(tmp_path)

    assert good == []
    assert [entry.origin for entry in broken] == ["tiny/1"]
    assert broken[0].reason.startswith(reason)


def test_a_tokenizer_of_any_length_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(repository, "MAX_TOKENIZER_BYTES", 100)
    put(tmp_path, "tiny/1")

    assert [entry.reason for entry in scan(tmp_path)[1]] == ["tokenizer.json is larger than 100 bytes"]


@pytest.mark.parametrize("place", ["other/1", "tiny/2"])
def test_an_encoder_stands_where_its_name_says(tmp_path, place):
    put(tmp_path, place)

    assert [entry.reason for entry in scan(tmp_path)[1]] == [
        f"encoder.json calls itself tiny@1, but stands in the folder {place}"
    ]


def test_weights_of_another_encoder_break_an_entry(tmp_path):
    folder = put(tmp_path, "tiny/1")
    encoder_weights.save(draw_weights(make_spec(num_layers=2)), folder / "weights.safetensors")

    (entry,) = scan(tmp_path)[1]

    assert entry.reason.startswith("weights.safetensors: unknown tensor 'layers.1.")


def test_what_is_not_a_folder_is_no_repository(tmp_path):
    with pytest.raises(InvalidModel, match="repository is not a folder"):
        scan(tmp_path / "repository")
