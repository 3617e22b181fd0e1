"""The library `transformers` in tests: silent, and in float64 where it insists on float32."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.overrides import TorchFunctionMode


class Doubles(TorchFunctionMode):
    """Inside, whatever asks torch for float32 gets float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        args = [torch.float64 if a is torch.float32 else a for a in args]
        kwargs = {k: torch.float64 if a is torch.float32 else a for k, a in (kwargs or {}).items()}
        return function(*args, **kwargs)


@contextmanager
def quiet(exact: bool) -> Iterator[None]:
    """Without the library's warnings; if `exact`, without float32."""
    with warnings.catch_warnings(), torch.no_grad(), Doubles() if exact else nullcontext():
        warnings.simplefilter("ignore")
        torch.set_default_dtype(torch.float64 if exact else torch.float32)  # of a quotient of integers
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)
