"""Each command as a person runs it: in a process of its own, with what it prints and its exit status."""

import json
import os
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from serving import empty_repository

from tests import forks

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture
def attention(artifacts: Path):
    """Run `attention …` and give back the finished process."""

    def run(*arguments: str, stdin: bytes = b"", **environment: str) -> "subprocess.CompletedProcess[str]":
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ATTENTION_") and k != "PORT"}
        clean |= {
            "ATTENTION_ARTIFACTS": str(artifacts),
            "ATTENTION_MODEL_REPOSITORY": str(empty_repository(artifacts)),
            "COLUMNS": "120",
            **environment,
        }
        return forks.run(arguments, clean, stdin)

    return run


def test_help_names_every_command_and_says_what_it_does(attention):
    """`--help` is the first page most people read."""
    done = attention("--help")

    assert done.returncode == 0
    for command in ("serve", "demo", "run", "models", "import", "export", "doctor", "measure"):
        assert command in done.stdout
        assert attention(command, "--help").returncode == 0


def test_version_is_told(attention):
    """A bug report starts with it."""
    assert attention("--version").stdout.startswith("attention ")


def test_models_lists_the_built_in_ones_and_what_is_wrong_with_the_others(attention, tmp_path: Path):
    """A typing error in a repository is seen before anything is started."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "spec.json").write_text('{"name": "broken", "embed_dim": 4}')

    done = attention("models", ATTENTION_MODEL_REPOSITORY=str(tmp_path))

    assert done.returncode == 0
    for name in ("lesson@1", "single-head-64@1", "multi-head-384x12@1"):
        assert name in done.stdout
    assert "broken" in done.stdout
    assert "head_dim" in done.stdout


def test_export_makes_the_graphs_and_tells_the_parity(attention, artifacts: Path):
    """An image is built with its graphs inside."""
    done = attention("export")

    assert done.returncode == 0, done.stderr
    assert "eager-onnx" in done.stdout
    for name in ("lesson/1", "single-head-64/1", "multi-head-384x12/1", "projections"):
        assert (artifacts / name / "model.onnx").exists()


def test_doctor_tries_every_backend_for_real(attention):
    """What a library claims to support is no diagnosis."""
    done = attention("doctor")

    assert done.returncode == 0, done.stdout
    for backend in ("reference", "eager", "onnx"):
        assert f"backend {backend}: works on" in done.stdout
    assert "model repository: 0 models in " in done.stdout


def test_doctor_says_what_to_do_about_a_device_that_is_not_there(attention):
    """Asked for CUDA without a GPU, it exits with 1 and a way out."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")

    done = attention("doctor", ATTENTION_DEVICE="cuda")

    assert done.returncode == 1
    assert "ATTENTION_DEVICE=auto" in done.stdout


@pytest.mark.server
@pytest.mark.parametrize("backend", ["onnx", "eager", "reference"])
def test_run_gives_the_service_s_answer_bit_by_bit(attention, server, tmp_path: Path, backend: str):
    """Offline and online are one computation."""
    inputs = np.random.default_rng(3).standard_normal((9, 64)).astype(np.float32)
    save_file({"inputs": inputs}, tmp_path / "x.safetensors")
    body = (tmp_path / "x.safetensors").read_bytes()
    options = {"model": "single-head-64", "return": "outputs,weights,scores", "is_causal": "true", "backend": backend}
    query = "&".join(f"{name}={value}" for name, value in options.items())
    request = Request(f"{server.url}/v1/attention?{query}", body, {"Content-Type": "application/x-safetensors"})
    with urlopen(request, timeout=30) as answer:
        (tmp_path / "online.safetensors").write_bytes(answer.read())

    done = attention(
        "run", f"{tmp_path}/x.safetensors", "-o", f"{tmp_path}/offline.safetensors", "--model", "single-head-64",
        "--return", "outputs,weights,scores", "--is-causal", "--backend", backend,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    online, offline = load_file(tmp_path / "online.safetensors"), load_file(tmp_path / "offline.safetensors")
    assert online.keys() == offline.keys() == {"outputs", "weights", "scores"}
    for name in online:
        np.testing.assert_array_equal(online[name], offline[name])


def test_run_reads_npy_from_standard_input(attention, tmp_path: Path):
    """It stands in a pipe."""
    np.save(tmp_path / "x.npy", np.ones((2, 5), np.float32))

    done = attention("run", "-", "--model", "lesson", stdin=(tmp_path / "x.npy").read_bytes())

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights"] == [[0.5, 0.5], [0.5, 0.5]]


def test_run_writes_smaller_answers(attention, tmp_path: Path):
    """As the service does; what cannot be written is refused before anything is computed."""
    np.save(tmp_path / "x.npy", np.diag(np.ones(5, np.float32)))
    run = ("run", f"{tmp_path}/x.npy", "--model", "lesson", "--return", "weights")

    short = attention(*run, "--decimals", "2")
    half = attention(*run, "--dtype", "float16", "-o", f"{tmp_path}/half.npz")
    neither = attention(*run, "--decimals", "2", "-o", f"{tmp_path}/short.npz")

    assert (short.returncode, half.returncode) == (0, 0), short.stderr + half.stderr
    numbers = np.array(json.loads(short.stdout)["weights"])
    assert (numbers == np.round(numbers, 2)).all()
    with np.load(tmp_path / "half.npz") as archive:
        assert archive["weights"].dtype == np.float16
        np.testing.assert_array_equal(np.round(archive["weights"].astype(np.float64), 2), numbers)
    assert neither.returncode == 1
    assert "accept application/json" in neither.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nowhere.npy"), "nowhere.npy: no such file"),
        (("run", "README.md"), ".md is not read here"),
        (("run", "x.npy", "--top-k", "0"), "/top_k"),
        (("run", "x.npy", "--dtype", "float64"), "/dtype"),
        (("run", "x.npy", "--decimals", "10"), "/decimals"),
        (("serve", "--backend", "tpu"), "ATTENTION_BACKEND='tpu'"),
        (("serve", "--device", "tpu"), "ATTENTION_DEVICE='tpu'"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error_and_status_1(attention, arguments, message):
    """No stack trace for what the caller can mend."""
    done = attention(*arguments)

    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ATTENTION_PROT", "1", "did you mean ATTENTION_PORT?"),
        ("ATTENTION_PORT", "many", "ATTENTION_PORT='many'"),
        ("ATTENTION_DEFAULT_MODEL", "lessom", "did you mean 'lesson'?"),
        ("ATTENTION_MODEL_REPOSITORY", "/nowhere", "is not a folder"),
        ("ATTENTION_RATE_LIMIT", "often", "ATTENTION_RATE_LIMIT='often'"),
    ],
)
def test_serve_refuses_to_start_as_configured_and_says_why(attention, variable, value, message):
    """A mistyped setting must not be found out in production."""
    port = () if variable == "ATTENTION_PORT" else ("--port", "0")

    done = attention("serve", *port, **{variable: value})

    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.server
def test_demo_shows_the_weights_of_a_running_service(attention, server):
    """The first thing a visitor runs."""
    done = attention("demo", "--url", server.url)

    assert done.returncode == 0, done.stderr
    assert "0.896" in done.stdout
    assert done.stdout.count("1.000") == 4


def test_demo_starts_a_service_where_none_runs(attention):
    """It works from a fresh checkout."""
    done = attention("demo", "--url", "http://127.0.0.1:9")

    assert done.returncode == 0, done.stderr
    assert "0.896" in done.stdout
