import ctypes
import importlib.metadata

import onnxruntime
import pytest
import torch

from service import devices
from service.devices import Device, choose_device, cuda_obstacles, onnxruntime_distributions
from service.errors import ConfigurationError


class Machine:
    """What a machine has, as the libraries would say; by default everything that CUDA needs, and two GPUs."""

    def __init__(self, patch):
        self.patch = patch
        self.gpus(2)
        self.driver(there=True)
        self.distributions("onnxruntime-gpu")
        self.providers("CUDAExecutionProvider", "CPUExecutionProvider")
        patch.setattr(torch, "__version__", "9.9")
        patch.setattr(torch.version, "cuda", "13.0")

    def gpus(self, count):
        self.patch.setattr(torch.cuda, "is_available", lambda: count > 0)
        self.patch.setattr(torch.cuda, "device_count", lambda: count)

    def driver(self, *, there):
        def load(name):
            assert name == "libcuda.so.1"
            if not there:
                raise OSError("cannot open shared object file")

        self.patch.setattr(ctypes, "CDLL", load)

    def distributions(self, *names):
        def version(name):
            if name not in names:
                raise importlib.metadata.PackageNotFoundError(name)
            return "1.2.3"

        self.patch.setattr(importlib.metadata, "version", version)

    def providers(self, *names):
        self.patch.setattr(onnxruntime, "get_available_providers", lambda: list(names))


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_a_device_is_written_as_torch_writes_it():
    assert str(Device("cpu", index=3)) == "cpu"
    assert str(Device("cuda", index=3)) == "cuda:3"


@pytest.mark.parametrize(("asked", "index"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_cuda_is_taken_where_it_works(asked, index, machine):
    assert cuda_obstacles() == []

    assert choose_device(asked) == Device("cuda", index)


def test_the_cpu_is_taken_where_it_is_asked_for(machine, monkeypatch):
    """Without as much as a look at what CUDA would need."""
    monkeypatch.setattr(devices, "cuda_obstacles", lambda: pytest.fail("nobody asked"))

    assert choose_device("cpu") == Device("cpu")


OBSTACLES = [
    (lambda m: m.driver(there=False), "no NVIDIA driver (libcuda.so.1 cannot be loaded)"),
    (lambda m: m.patch.setattr(torch.version, "cuda", None), "torch 9.9 is built without CUDA"),
    (lambda m: m.gpus(0), "torch 9.9 (CUDA 13.0) finds no usable GPU"),
    (
        lambda m: m.distributions("onnxruntime-gpu", "onnxruntime"),
        "onnxruntime-gpu 1.2.3 and onnxruntime 1.2.3 are both installed and overwrite each other: uninstall both, then "
        "install onnxruntime-gpu",
    ),
    (lambda m: m.providers("CPUExecutionProvider"), "onnxruntime-gpu 1.2.3 has no CUDA provider"),
]


@pytest.mark.parametrize(
    ("spoil", "obstacle"), OBSTACLES, ids=lambda x: x.partition("(")[0] if isinstance(x, str) else ""
)
def test_each_obstacle_by_itself_is_found_and_named(spoil, obstacle, machine):
    """`auto` falls back and says why; `cuda` refuses: neither is ever silently slow."""
    spoil(machine)

    assert cuda_obstacles() == [obstacle]
    assert choose_device("auto") == Device("cpu", note=f"no CUDA: {obstacle}")
    with pytest.raises(ConfigurationError) as error:
        choose_device("cuda")
    assert str(error.value) == f"ATTENTION_DEVICE=cuda, but {obstacle}"


def test_everything_that_is_missing_is_listed_at_once_in_the_order_of_repair(machine):
    """One start per mistake is slow, and a driver comes before what needs it."""
    for spoil, _ in OBSTACLES:
        spoil(machine)
    expected = [obstacle for _, obstacle in OBSTACLES if "usable" not in obstacle]  # torch has only one thing to say

    assert cuda_obstacles() == expected
    with pytest.raises(ConfigurationError) as error:
        choose_device("cuda:1")
    assert str(error.value) == "ATTENTION_DEVICE=cuda:1, but " + "; ".join(expected)


def test_a_gpu_that_is_not_there_is_refused_with_how_many_are(machine):
    with pytest.raises(ConfigurationError, match=r"^ATTENTION_DEVICE=cuda:2, but there is no GPU 2: 2 found$"):
        choose_device("cuda:2")


def test_both_distributions_of_onnx_runtime_are_seen(machine):
    machine.distributions("onnxruntime-gpu", "onnxruntime")

    assert onnxruntime_distributions() == ["onnxruntime-gpu 1.2.3", "onnxruntime 1.2.3"]


@pytest.mark.parametrize("names", [("onnxruntime-gpu",), ("onnxruntime",), ()])
def test_one_distribution_or_none_is_told_as_it_is(names, machine):
    """From source there may be none: the library is there, its metadata are not."""
    machine.distributions(*names)
    machine.providers("CPUExecutionProvider")

    assert onnxruntime_distributions() == [f"{name} 1.2.3" for name in names]
    described = f"{names[0]} 1.2.3" if names else "onnxruntime"
    assert cuda_obstacles() == [f"{described} has no CUDA provider"]


def test_this_machine_is_described_without_an_error():
    """Whatever it has, `auto` finds something."""
    device = choose_device("auto")

    assert device.kind in ("cpu", "cuda")
    assert device.note or device.kind == "cuda"
