import errno
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models import export
from models.errors import ArtifactError
from models.store import ArtifactStore, artifact_key
from tests.contract.layers import make_layer

ENTRY = make_layer("small", embed_dim=4, head_dim=2)
SPEC, WEIGHTS = ENTRY.spec, ENTRY.weights


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An exporter that takes no time and notes what it was asked for."""
    asked = []

    def pretend(name: str) -> onnx.ModelProto:
        asked.append(name)
        values = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [1]) for v in "xy"]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], name, values[:1], values[1:])
        return helper.make_model(graph)

    monkeypatch.setattr(export, "export_layer", lambda spec, weights: pretend(spec.id))
    monkeypatch.setattr(export, "export_projections", lambda: pretend("projections"))
    return asked


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_layer_is_exported_once(tmp_path, exports):
    """The second start of a service takes its graphs from the folder."""
    first = ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)
    second = ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)

    assert exports == ["small@1"]
    assert first == second
    assert files_of(tmp_path) == ["small/1/manifest.json", "small/1/model.onnx"]


def test_the_graph_of_projections_is_exported_once(tmp_path, exports):
    """It belongs to no model, and its folder's name is one no model may have."""
    first = ArtifactStore(tmp_path).projections()
    second = ArtifactStore(tmp_path).projections()

    assert exports == ["projections"]
    assert first == second
    assert files_of(tmp_path) == ["projections/manifest.json", "projections/model.onnx"]


def test_versions_do_not_share_a_graph(tmp_path, exports):
    """They are served side by side."""
    store = ArtifactStore(tmp_path)
    other = SPEC.model_copy(update={"version": "2"})

    for _ in range(2):
        store.layer(SPEC, WEIGHTS)
        store.layer(other, WEIGHTS)

    assert exports == ["small@1", "small@2"]


def test_what_a_graph_depends_on_makes_it_anew(tmp_path, exports, monkeypatch, caplog):
    """Weights, biases, sizes and the exporter; nobody has to delete anything by hand, or is warned."""
    store = ArtifactStore(tmp_path)
    query = WEIGHTS.query.copy()
    query[0, 0] += 1
    store.layer(SPEC, WEIGHTS)

    store.layer(SPEC, replace(WEIGHTS, query=query))
    store.layer(SPEC, replace(WEIGHTS, query_bias=np.zeros(2, np.float32)))
    store.layer(SPEC.model_copy(update={"num_heads": 2}), WEIGHTS)
    store.layer(SPEC.model_copy(update={"scale": 1.0}), WEIGHTS)
    monkeypatch.setattr(export, "EXPORTER", "another")
    store.layer(SPEC.model_copy(update={"scale": 1.0}), WEIGHTS)

    assert len(exports) == 6
    assert not caplog.records


@pytest.mark.parametrize("field", ["description", "labels", "source", "license"])
def test_words_for_people_do_not_make_it_anew(field):
    """A better description costs no export."""
    worded = SPEC.model_copy(update={field: ("a", "b", "c", "d") if field == "labels" else "other"})

    assert artifact_key(worded, WEIGHTS) == artifact_key(SPEC, WEIGHTS)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lie(path: Path) -> None:
    """A manifest that vouches for a file no ONNX library can read."""
    (path.parent / "model.onnx").write_bytes(b"\xff\xff")
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "sha256": hashlib.sha256(b"\xff\xff").hexdigest()}))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model.onnx", flip_a_bit),
        ("model.onnx", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("model.onnx", lambda path: path.write_bytes(b"")),
        ("manifest.json", lambda path: path.write_bytes(path.read_bytes()[:-3])),
        ("manifest.json", lambda path: path.write_bytes(b"")),
        ("manifest.json", lambda path: path.write_text("[]")),
        ("manifest.json", lambda path: path.write_text("{}")),
        ("manifest.json", lambda path: path.write_bytes(b"\xff\xfe")),
        ("manifest.json", lie),
    ],
    ids=["bit", "cut", "empty", "manifest-cut", "manifest-empty", "list", "keys", "not-utf8", "not-onnx"],
)
def test_a_damaged_file_is_exported_again(tmp_path, exports, caplog, file, damage):
    """With a warning where the file should have been good; the next start finds a good one."""
    good = ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)
    damage(tmp_path / "small/1" / file)

    again = ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)

    assert again == good
    assert len(exports) == 2
    ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)
    assert len(exports) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "exporting it again" in caplog.records[0].message


@pytest.mark.parametrize("file", ["model.onnx", "manifest.json"])
def test_a_missing_file_is_exported_without_a_word(tmp_path, exports, caplog, file):
    """The folder may be deleted at any time, in whole or in part."""
    ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)
    (tmp_path / "small/1" / file).unlink()

    ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)

    assert len(exports) == 2
    assert not caplog.records


def test_a_graph_of_another_layer_is_not_taken(tmp_path, exports):
    """A manifest vouches for one key; copying folders about changes nothing."""
    other = make_layer("other", embed_dim=4, head_dim=2)
    ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)
    (tmp_path / "small").rename(tmp_path / "other")

    ArtifactStore(tmp_path).layer(other.spec, other.weights)

    assert exports == ["small@1", "other@1"]


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, exports, caplog, monkeypatch):
    """A container's file system is often read-only."""

    def refuse(path, content):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    store = ArtifactStore(tmp_path)

    graphs = [store.layer(SPEC, WEIGHTS) for _ in range(2)]

    assert graphs[0] == graphs[1]
    assert exports == ["small@1"] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "cannot be written" in caplog.records[0].message
    assert "Read-only file system" in caplog.records[0].message


def test_a_folder_that_cannot_be_made_costs_a_warning(tmp_path, exports, caplog):
    """Here a file stands where the folder should: nobody may write there, not even root."""
    (tmp_path / "taken").write_text("")

    ArtifactStore(tmp_path / "taken").layer(SPEC, WEIGHTS)

    assert exports == ["small@1"]
    assert any("cannot be written" in record.message for record in caplog.records)


def test_a_full_disk_leaves_no_litter(tmp_path, exports, monkeypatch):
    """Each start tries again, and must not fill what little is left."""
    write = Path.write_bytes

    def half(path, content):
        write(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)

    ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)

    assert files_of(tmp_path) == []


def test_files_may_be_read_by_another_user(tmp_path, exports):
    """An image is built by root and runs as somebody else, who must not export everything at each start."""
    before = os.umask(0o022)
    try:
        ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)
    finally:
        os.umask(before)

    assert [(tmp_path / file).stat().st_mode & 0o777 for file in files_of(tmp_path)] == [0o644, 0o644]


def test_a_failed_export_writes_nothing(tmp_path, monkeypatch):
    """The error is the exporter's, and the next start tries again."""

    def fail(spec, weights):
        raise ArtifactError("torch exported nothing")

    monkeypatch.setattr(export, "export_layer", fail)

    with pytest.raises(ArtifactError, match="torch exported nothing"):
        ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)
    assert files_of(tmp_path) == []


def test_a_real_graph_survives_the_folder(tmp_path, monkeypatch):
    """Without a stand-in: what is read back is what was exported, bit by bit."""
    made = ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)
    monkeypatch.setattr(export, "export_layer", None)

    read = ArtifactStore(tmp_path).layer(SPEC, WEIGHTS)

    assert read.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
