import importlib
import subprocess
import sys

import pytest

from service.backends import BACKENDS, ON_CUDA, open_backend
from service.devices import Device
from tests.contract.layers import make_layer


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_is_opened_by_its_name(name, settings):
    """One line of the registry is all it takes."""
    backend = open_backend(name, Device("cpu"), settings)

    assert backend.info.name == name
    module, _, attribute = BACKENDS[name].partition(":")
    assert type(backend) is getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", ON_CUDA)
def test_a_gpu_takes_a_class_of_its_own(name, settings, monkeypatch):
    """For the backends that have one; the reference computes on the CPU wherever it is."""
    module, _, attribute = ON_CUDA[name].partition(":")
    monkeypatch.setattr(importlib.import_module(module), attribute, lambda device, settings: (device, settings))

    assert open_backend(name, Device("cuda", 1), settings) == (Device("cuda", 1), settings)
    assert open_backend("reference", Device("cuda", 1), settings).info.device == "cpu"


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_says_what_it_runs_on(name, settings):
    """It stands in every answer: `backend` with name, device, provider and dtype."""
    info = open_backend(name, Device("cpu"), settings).info

    assert info.device == "cpu"
    assert info.provider == {"reference": "numpy", "eager": "torch", "onnx": "CPUExecutionProvider"}[name]
    assert info.dtype == ("float64" if name == "reference" else "float32")


def test_an_unknown_name_is_an_error_that_holds_it(settings):
    """The settings allow known names only, so this is a bug of ours and looks like one."""
    with pytest.raises(KeyError, match="tensorrt"):
        open_backend("tensorrt", Device("cpu"), settings)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_runner_can_be_warmed_and_says_how_much_pays(name, settings):
    """The two things the batcher and the catalog ask of a runner beside its answers."""
    backend = open_backend(name, Device("cpu"), settings)
    for runner in (backend.layer(make_layer("warm", embed_dim=3, head_dim=2)), backend.projections()):
        runner.warm()

        assert runner.batch_tokens >= 0
        assert runner.exact
        assert [runner.bucket(n) for n in (1, 7, 600)] == [1, 7, 600]


@pytest.mark.parametrize("name", ["eager", "onnx"])
def test_the_size_of_a_batch_may_be_set(name, settings):
    """`ATTENTION_MAX_BATCH_TOKENS` has the last word over what pays by our measurements."""
    larger = settings.model_copy(update={"max_batch_tokens": 12_345})

    assert open_backend(name, Device("cpu"), settings).projections().batch_tokens == 256
    assert open_backend(name, Device("cpu"), larger).projections().batch_tokens == 12_345


def test_a_runtime_is_imported_when_it_is_opened():
    """`attention --help` must not wait a second for torch."""
    code = (
        "import sys, service.backends\n"
        "before = {'torch', 'onnxruntime'} & set(sys.modules)\n"
        "from service.devices import Device\n"
        "from service.settings import Settings\n"
        "service.backends.open_backend('reference', Device('cpu'), Settings())\n"
        "print(before, {'torch', 'onnxruntime'} & set(sys.modules))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "set() set()\n"
