import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models import repository
from models import weights as weights_module
from models.errors import InvalidModel
from models.reference import self_attention
from models.repository import MAX_SPEC_BYTES, builtin, names, read, scan

LEAST = {"name": "m", "embed_dim": 2, "head_dim": 2}
EYE = [[1.0, 0.0], [0.0, 1.0]]
MATRICES = {"query": EYE, "key": EYE, "value": EYE}
SEEDED = {**LEAST, "seed": 1}


def tensors(**changes) -> dict[str, np.ndarray]:
    """A weights file for LEAST, some of it replaced or, with None, left out."""
    every = {name: np.array(rows, np.float32) for name, rows in MATRICES.items()} | changes
    return {name: tensor for name, tensor in every.items() if tensor is not None}


def put(folder: Path, place: str, spec=None, weights=None) -> None:
    """An entry of a repository: its spec as JSON or bytes, and its weights file."""
    (folder / place).mkdir(parents=True)
    if spec is not None:
        (folder / place / "spec.json").write_bytes(spec if isinstance(spec, bytes) else json.dumps(spec).encode())
    if weights is not None:
        save_file(weights, folder / place / "weights.safetensors")


def test_an_entry_is_a_folder_or_a_folder_of_versions(tmp_path):
    """Both layouts may stand side by side, and versions too."""
    put(tmp_path, "m", SEEDED)
    put(tmp_path, "n/1", {**SEEDED, "name": "n"})
    put(tmp_path, "n/2.0", {**SEEDED, "name": "n", "version": "2.0"})

    good, broken = scan(tmp_path)

    assert [(entry.spec.id, entry.origin) for entry in good] == [("m@1", "m"), ("n@1", "n/1"), ("n@2.0", "n/2.0")]
    assert broken == []


def test_a_spec_without_versions_folder_may_have_any_version(tmp_path):
    """NAME/spec.json says itself which version it is."""
    put(tmp_path, "m", {**SEEDED, "version": "2025-01"})

    good, broken = scan(tmp_path)

    assert [entry.spec.id for entry in good] == ["m@2025-01"]
    assert broken == []


def test_weights_come_from_a_seed_the_spec_or_a_file(tmp_path):
    """Three ways to one layer of two by two."""
    put(tmp_path, "a", {**LEAST, "name": "a", "seed": 7})
    put(tmp_path, "b", {**LEAST, "name": "b", "weights": {**MATRICES, "query": [[1, 2], [3, 4]]}})
    put(tmp_path, "c", {**LEAST, "name": "c"}, tensors(query_bias=np.array([5, 6], np.float32)))

    good, broken = scan(tmp_path)

    assert broken == []
    seeded, inline, file = (entry.weights for entry in good)
    np.testing.assert_allclose(seeded.query[0] * np.sqrt(2), np.random.RandomState(7).standard_normal(2), rtol=1e-6)
    np.testing.assert_array_equal(inline.query, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(file.query_bias, [5, 6])
    assert all(w.query.dtype == np.float32 for w in (seeded, inline, file))


BROKEN = {
    "no spec": ((None, tensors()), ["spec.json is missing"]),
    "empty folder": ((None, None), ["spec.json is missing"]),
    "bad JSON": ((b'{"name": ', tensors()), ["m/spec.json", "Invalid JSON"]),
    "not UTF-8": ((b"\xff\xfe", tensors()), ["m/spec.json", "Invalid JSON"]),
    "nested too deep": ((b"[" * 100_000, tensors()), ["m/spec.json", "recursion"]),
    "unknown field": (({**LEAST, "heads": 2}, tensors()), ["m/spec.json", "heads"]),
    "missing field": (({"name": "m", "embed_dim": 2}, tensors()), ["head_dim", "required"]),
    "too large": ((b" " * (MAX_SPEC_BYTES + 1), tensors()), ["spec.json is larger than 1048576 bytes"]),
    "another name": (({**LEAST, "name": "n"}, tensors()), ["calls itself n@1", "folder m"]),
    "no weights": ((LEAST, None), ["weights.safetensors is missing"]),
    "missing tensor": ((LEAST, tensors(key=None)), ["weights.safetensors", "'key' is missing"]),
    "unknown tensor": ((LEAST, tensors(wo=np.zeros(1, np.float32))), ["unknown tensor 'wo'"]),
    "wrong shape": ((LEAST, tensors(value=np.zeros((2, 3), np.float32))), ["value has shape (2, 3)", "(2, 2)"]),
    "wrong dtype": ((LEAST, tensors(value=np.zeros((2, 2), np.int64))), ["value has dtype I64"]),
    "NaN": ((LEAST, tensors(value=np.full((2, 2), np.nan, np.float32))), ["value holds NaN"]),
    "inline: missing": (({**LEAST, "weights": {"query": EYE, "key": EYE}}, None), ["m@1", "'value' is missing"]),
    "inline: unknown": (({**LEAST, "weights": {**MATRICES, "wq": EYE}}, None), ["m@1", "unknown tensor 'wq'"]),
    "inline: shape": (({**LEAST, "weights": {**MATRICES, "key": [[1, 2]]}}, None), ["key has shape (1, 2)"]),
    "inline: empty": (({**LEAST, "weights": {**MATRICES, "key": []}}, None), ["key has shape (0,)"]),
    "inline: ragged": (({**LEAST, "weights": {**MATRICES, "key": [[1, 2], [3]]}}, None), ["key has rows of different"]),
    "inline: NaN": ((b'{"name": "m", "embed_dim": 2, "head_dim": 2, "weights": {"key": [[NaN]]}}', None), ["key.0.0"]),
    "inline: too big": (({**LEAST, "weights": {**MATRICES, "key": [[1e300, 0], [0, 1]]}}, None), ["too large"]),
    "inline: text": (({**LEAST, "weights": {**MATRICES, "key": [["x", 0], [0, 1]]}}, None), ["weights.key.0.0"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_entry_is_reported_and_harms_no_other(tmp_path, case):
    """The reason names what is wrong, so that it can be mended; the others are served."""
    (spec, weights), says = BROKEN[case]
    put(tmp_path, "a", {**SEEDED, "name": "a"})
    put(tmp_path, "m", spec, weights)
    put(tmp_path, "z", {**SEEDED, "name": "z"})

    good, broken = scan(tmp_path)

    assert [entry.spec.name for entry in good] == ["a", "z"]
    assert [entry.origin for entry in broken] == ["m"]
    for part in says:
        assert part in broken[0].reason


def test_a_version_must_stand_in_its_own_folder(tmp_path):
    """Copying a folder without editing its spec would serve the old one under the new name."""
    put(tmp_path, "m/1", SEEDED)
    put(tmp_path, "m/2", SEEDED)

    good, broken = scan(tmp_path)

    assert [entry.spec.id for entry in good] == ["m@1"]
    assert broken[0].origin == "m/2"
    assert "calls itself m@1, but stands in the folder m/2" in broken[0].reason


def test_a_version_without_a_spec_is_reported(tmp_path):
    """Its neighbours are not taken for it."""
    put(tmp_path, "m/1", SEEDED)
    put(tmp_path, "m/2", None, tensors())

    good, broken = scan(tmp_path)

    assert [entry.spec.id for entry in good] == ["m@1"]
    assert [(entry.origin, entry.reason) for entry in broken] == [("m/2", "spec.json is missing")]


def test_one_name_and_version_are_served_once(tmp_path, monkeypatch):
    """Folder names keep entries apart; should two ever claim one identity, the second is reported."""
    put(tmp_path, "m", SEEDED)
    monkeypatch.setattr(repository, "_places", lambda folder: iter([folder / "m", folder / "m"]))

    good, broken = scan(tmp_path)

    assert [entry.spec.id for entry in good] == ["m@1"]
    assert broken[0].reason == "m@1 is already served from m"


@pytest.mark.parametrize("file", ["spec.json", "weights.safetensors"])
def test_a_folder_where_a_file_belongs_is_reported(tmp_path, file):
    """An unpacked archive within an archive."""
    put(tmp_path, "m", LEAST if file != "spec.json" else None)
    (tmp_path / "m" / file).mkdir()

    good, broken = scan(tmp_path)

    assert good == []
    assert [entry.origin for entry in broken] == ["m"]
    assert file in broken[0].reason


def test_a_folder_that_cannot_be_read_is_reported(tmp_path, monkeypatch):
    """A volume has a lost+found that only root may open; the tests may be root, so the refusal is played."""
    put(tmp_path, "lost+found")
    put(tmp_path, "m", SEEDED)
    exists = Path.exists

    def refuse(path, **options):
        if "lost+found" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", refuse)

    good, broken = scan(tmp_path)

    assert [entry.spec.id for entry in good] == ["m@1"]
    assert broken[0].origin == "lost+found"
    assert "Permission denied" in broken[0].reason


def test_a_layer_too_large_for_memory_is_reported(tmp_path, monkeypatch):
    """One spec too ambitious must not keep the service from starting. Played: some machines promise any memory."""
    put(tmp_path, "huge", {"name": "huge", "embed_dim": 65_536, "head_dim": 65_536, "num_heads": 1024, "seed": 1})
    put(tmp_path, "m", SEEDED)
    seeded = weights_module.seeded

    def allocate(spec, seed):
        if spec.name == "huge":
            raise MemoryError("Unable to allocate 32.0 TiB")
        return seeded(spec, seed)

    monkeypatch.setattr(weights_module, "seeded", allocate)

    good, broken = scan(tmp_path, max_bytes=1 << 60)

    assert [entry.spec.id for entry in good] == ["m@1"]
    assert [(entry.origin, entry.reason) for entry in broken] == [("huge", "Unable to allocate 32.0 TiB")]


def test_files_and_hidden_folders_are_no_entries(tmp_path):
    """A README, a .git and a Kubernetes ..data are not models, and not broken ones either."""
    put(tmp_path, "m/1", SEEDED)
    put(tmp_path, "m/.cache")
    put(tmp_path, "..data")
    (tmp_path / "README.md").write_text("models")
    (tmp_path / "m/notes.txt").write_text("notes")

    good, broken = scan(tmp_path)

    assert [entry.spec.id for entry in good] == ["m@1"]
    assert broken == []


def test_an_empty_repository_is_not_an_error(tmp_path):
    """It may be filled before the next start."""
    assert scan(tmp_path) == ([], [])


@pytest.mark.parametrize("kind", ["missing", "file"])
@pytest.mark.parametrize("look", [scan, names, lambda folder: read(folder, "m")], ids=["scan", "names", "read"])
def test_what_is_not_a_folder_is_no_repository(tmp_path, kind, look):
    """A typing mistake in a setting, or a volume that is gone, must not look like an empty repository."""
    place = tmp_path / "repository"
    if kind == "file":
        place.write_text("")

    with pytest.raises(InvalidModel, match="repository is not a folder"):
        look(place)


# ---- one name


def test_one_name_is_read_without_the_others(tmp_path, monkeypatch):
    """All its versions, or one; the weights of the rest are not even opened."""
    for version in ("1", "2"):
        put(tmp_path, f"m/{version}", {**SEEDED, "version": version})
    put(tmp_path, "n", {**SEEDED, "name": "n"})
    drawn = []
    monkeypatch.setattr(weights_module, "seeded", lambda spec, seed: drawn.append(spec.id))

    for arguments, expected in ((("m",), ["m@1", "m@2"]), (("m", "2"), ["m@2"]), (("m", "3"), []), (("o",), [])):
        good, broken = read(tmp_path, *arguments)

        assert [entry.spec.id for entry in good] == expected
        assert broken == []
    assert drawn == ["m@1", "m@2", "m@2"]


def test_a_folder_without_versions_is_read_by_the_version_that_its_spec_names(tmp_path):
    put(tmp_path, "m", {**SEEDED, "version": "7"})

    assert [entry.spec.id for entry in read(tmp_path, "m", "7")[0]] == ["m@7"]
    assert read(tmp_path, "m", "8") == ([], [])


def test_what_is_broken_is_reported_for_its_own_version_only(tmp_path):
    put(tmp_path, "m/1", SEEDED)
    put(tmp_path, "m/2", SEEDED)

    assert read(tmp_path, "m", "1")[1] == []
    assert [entry.origin for entry in read(tmp_path, "m", "2")[1]] == ["m/2"]
    assert [entry.origin for entry in read(tmp_path, "m")[1]] == ["m/2"]


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "/etc", "m\0", "m\n", "M", "../outside", "m/../../outside", ".m"]
)
def test_a_name_that_is_none_never_touches_the_file_system(tmp_path, name, monkeypatch):
    """Names come from URLs."""
    folder = tmp_path / "repository"
    put(folder, "m/1", SEEDED)
    put(tmp_path, "outside", {**SEEDED, "name": "outside"})

    def touched(*_):
        raise AssertionError("the file system was asked")

    monkeypatch.setattr(repository, "_versions", touched)

    assert read(folder, name) == ([], [])
    if name:
        assert read(folder, "m", name) == ([], [])


def test_names_are_those_of_folders_whatever_is_in_them(tmp_path):
    """For hints: nothing is read."""
    put(tmp_path, "b")
    put(tmp_path, "a/1", SEEDED)
    put(tmp_path, ".git")
    put(tmp_path, "My Models")
    (tmp_path / "README.md").write_text("models")

    assert names(tmp_path) == ["a", "b"]


# ---- limits


def test_weights_larger_than_the_limit_are_refused_unread(tmp_path, monkeypatch):
    """As a file and from a seed; the limit itself is allowed."""
    put(tmp_path, "drawn", {"name": "drawn", "embed_dim": 1024, "head_dim": 512, "seed": 1})
    put(tmp_path, "filed", {"name": "filed", "embed_dim": 2, "head_dim": 2}, {"query": np.zeros((1024, 512))})
    put(tmp_path, "m", LEAST, tensors())
    monkeypatch.setattr(weights_module, "seeded", None)

    good, broken = scan(tmp_path, max_bytes=2 << 20)

    assert [entry.spec.id for entry in good] == ["m@1"]
    assert [(entry.origin, entry.reason) for entry in broken] == [
        ("drawn", "the weights would take 6 MiB; 2 MiB are allowed"),
        ("filed", "weights.safetensors takes 5 MiB; 2 MiB are allowed"),
    ]


def test_the_limit_itself_is_allowed(tmp_path):
    put(tmp_path, "m", LEAST, tensors())
    size = (tmp_path / "m/weights.safetensors").stat().st_size

    assert [entry.spec.id for entry in scan(tmp_path, size)[0]] == ["m@1"]
    assert [entry.origin for entry in scan(tmp_path, size - 1)[1]] == ["m"]


# ---- links


@pytest.mark.parametrize("link", ["m", "m/1", "m/1/spec.json", "m/1/weights.safetensors"])
def test_a_link_that_leads_out_of_the_repository_is_broken(tmp_path, link):
    """Whoever may write into the repository must not be able to read the rest of the machine by it."""
    folder = tmp_path / "repository"
    put(folder, "m/1", LEAST, tensors())
    place = folder / link
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")

    good, broken = scan(folder)

    assert good == []
    assert [entry.origin for entry in broken] == ["m" if link == "m" else "m/1"]
    assert "leads out of the repository" in broken[0].reason
    assert read(folder, "m") == (good, broken)


def test_links_within_the_repository_are_followed(tmp_path):
    """Kubernetes mounts a ConfigMap's files as links to ..data; and the repository itself may be one."""
    folder = tmp_path / "real"
    put(folder, "..data", LEAST, tensors())
    (folder / "m").mkdir()
    for name in ("spec.json", "weights.safetensors"):
        (folder / "m" / name).symlink_to(f"../..data/{name}")
    (tmp_path / "repository").symlink_to(folder)

    good, broken = scan(tmp_path / "repository")

    assert [entry.spec.id for entry in good] == ["m@1"]
    assert broken == []


def test_a_pipe_where_a_file_belongs_is_reported(tmp_path):
    """Reading it would never end."""
    put(tmp_path, "m")
    os.mkfifo(tmp_path / "m/spec.json")

    assert [entry.reason for entry in scan(tmp_path)[1]] == ["spec.json is not a file"]


def test_the_built_in_layers_load():
    """They are what a fresh installation serves."""
    entries = {entry.spec.id: entry for entry in builtin()}

    assert set(entries) == {"lesson@1", "multi-head-384x12@1", "single-head-64@1"}
    for entry in entries.values():
        assert entry.origin == "built-in"
        assert entry.spec.license
        trace = self_attention(np.ones((2, entry.spec.embed_dim)), entry.weights, entry.spec)
        assert trace.outputs.shape == (2, entry.spec.output_dim)


def test_in_the_lesson_her_looks_for_mia():
    """The point of the example: the pronoun's row attends most to the person."""
    lesson = next(entry for entry in builtin() if entry.spec.name == "lesson")
    example = lesson.spec.example
    labels = list(example.labels)

    weights = self_attention(np.array(example.inputs), lesson.weights, lesson.spec).weights[0]

    her = weights[labels.index("her")]
    assert labels[int(her.argmax())] == "Mia"
    assert her[labels.index("Mia")] > 0.5
