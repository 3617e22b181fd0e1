"""`attention import`, from a checkpoint to an answer."""

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models import repository
from models.importers import import_layer
from models.reference import self_attention
from service.cli import main
from tests.models.importers.checkpoints import save

GPT2 = {"vocab_size": 40, "n_positions": 64, "n_embd": 24, "n_layer": 3, "n_head": 4, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip


@pytest.fixture
def attention(monkeypatch, capsys):
    """Run `attention …`, and give back its exit status and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["attention", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        printed = capsys.readouterr()
        return done.value.code, printed.out, printed.err

    return run


@pytest.fixture
def multihead(tmp_path):
    """A file that needs no library but torch."""
    file = tmp_path / "attention.safetensors"
    torch.manual_seed(0)
    save_file(torch.nn.MultiheadAttention(24, 4).state_dict(), file)
    return file


def test_an_imported_layer_is_served(attention, tmp_path, artifacts, monkeypatch):
    """The whole way: a model's folder, an entry of the repository, an answer."""
    checkpoint, folder = save(tmp_path / "tiny-gpt2", "GPT2LMHeadModel", **GPT2), tmp_path / "repository"
    monkeypatch.setenv("ATTENTION_MODEL_REPOSITORY", str(folder))
    monkeypatch.setenv("ATTENTION_ARTIFACTS", str(artifacts))

    code, out, err = attention("import", checkpoint, "--layer", 2, "--name", "tiny", "--license", "mit")

    assert code == 0, err
    for words in ("tiny@1", "Layer 2 of a gpt2 checkpoint", "4 heads", "causal", "tiny-gpt2, license mit",
                  "model.safetensors ", "compared    with transformers 5.", "weights ", "attention serve",
                  "attention?model=tiny@1"):  # fmt: skip
        assert words in out
    ((entry,), broken) = repository.scan(folder)
    assert broken == []
    assert entry.origin == "tiny/1"
    assert entry.spec == import_layer(checkpoint, 2, "tiny", license="mit").spec
    assert [path.name for path in folder.iterdir()] == ["tiny"], "nothing temporary is left"
    assert entry.weights.output is not None

    code, out, _ = attention("models")
    assert code == 0
    assert "tiny@1" in out
    tokens, answer = np.random.default_rng(0).standard_normal((5, 24)).astype(np.float32), tmp_path / "answer.npz"
    np.save(tmp_path / "tokens.npy", tokens)
    code, _, err = attention("run", tmp_path / "tokens.npy", "--model", "tiny", "-o", answer)
    assert code == 0, err
    want = self_attention(tokens, entry.weights, entry.spec).outputs
    np.testing.assert_allclose(np.load(answer)["outputs"], want, atol=1e-5)


def test_an_entry_is_not_overwritten_unawares(attention, tmp_path, multihead):
    """Somebody may be served from it."""
    folder = tmp_path / "repository"
    arguments = ("import", multihead, "--layer", 0, "--name", "m", "--num-heads", 4, "--repository", folder)
    code, out, _ = attention(*arguments)
    assert code == 0
    assert f"ATTENTION_MODEL_REPOSITORY={folder} attention serve" in out
    before = (folder / "m/1/spec.json").read_text()

    code, _, err = attention(*arguments, "--source", "elsewhere")
    assert (code, (folder / "m/1/spec.json").read_text()) == (1, before)
    assert "exists already" in err

    assert attention(*arguments, "--source", "elsewhere", "--force")[0] == 0
    assert attention(*arguments, "--version", "2", "--no-check")[0] == 0
    entries, broken = repository.scan(folder)
    assert [(entry.spec.id, entry.spec.source) for entry in entries] == [
        ("m@1", "elsewhere"),
        ("m@2", "attention.safetensors"),
    ]
    assert broken == []


def test_an_entry_without_versions_is_left_alone(attention, tmp_path, multihead):
    """Versions inside it would not be seen."""
    folder = tmp_path / "repository"
    (folder / "m").mkdir(parents=True)
    (folder / "m" / "spec.json").write_text('{"name": "m", "embed_dim": 4, "head_dim": 4, "seed": 1}')

    code, _, err = attention(
        "import", multihead, "--layer", 0, "--name", "m", "--num-heads", 4, "--repository", folder, "--force"
    )

    assert code == 1
    assert "no versions in it" in err


@pytest.mark.parametrize("given", [(), ("--no-check",)])
def test_a_layer_that_was_not_compared_says_so(attention, tmp_path, monkeypatch, given):
    """Nobody should take a silent import for a checked one."""
    checkpoint = save(tmp_path / "tiny-gpt2", "GPT2Model", **GPT2)
    monkeypatch.setitem(sys.modules, "transformers", None)

    code, out, _ = attention(
        "import", checkpoint, "--layer", 0, "--name", "m", "--repository", tmp_path / "repository", *given
    )

    assert code == 0
    assert ("as --no-check asks" if given else "transformers 5 or newer is not installed") in out


def test_errors_are_one_line_for_people(attention, tmp_path, multihead):
    """A trace of calls helps nobody here."""
    folder = ("--repository", tmp_path / "repository")
    asked = ("import", multihead, "--layer", 0, "--name", "m")
    for arguments, message in (
        ((*asked, *folder), "give --num-heads"),
        ((*asked, "--num-heads", 4, *folder, "--name", "No Name"), "name"),
        (("import", tmp_path / "none", "--layer", 0, "--name", "m", *folder), "no such file or folder"),
    ):
        code, _, err = attention(*arguments)
        assert code == 1
        assert err.startswith("attention: ")
        assert message in err
        assert err.count("\n") == 1
    assert not (tmp_path / "repository").exists()
