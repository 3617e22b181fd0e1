"""Runtimes: one file each. To add one, write the file and name it here."""

from importlib import import_module
from typing import cast

from service.backends.base import Backend
from service.devices import Device
from service.settings import Settings

BACKENDS = {
    "reference": "service.backends.reference:ReferenceBackend",
    "eager": "service.backends.eager:EagerBackend",
    "onnx": "service.backends.onnx:OnnxBackend",
}
"""Name to `module:class`: a runtime is imported when it is opened, not before."""

ON_CUDA = {
    "eager": "service.backends.eager_cuda:CudaEagerBackend",
    "onnx": "service.backends.onnx_cuda:CudaOnnxBackend",
}
"""Those that take another class on a GPU."""


def open_backend(name: str, device: Device, settings: Settings) -> Backend:
    """Start the backend of that name on a device.

    Raises:
        ConfigurationError: if it does not run there.
    """
    place = ON_CUDA.get(name, BACKENDS[name]) if device.kind == "cuda" else BACKENDS[name]
    module, _, attribute = place.partition(":")
    return cast(Backend, getattr(import_module(module), attribute)(device, settings))
