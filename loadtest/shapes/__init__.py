"""Courses that a test may take, by name; one file each."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from loadtest.shapes.base import Shape
from loadtest.shapes.ramp import Ramp
from loadtest.shapes.soak import Soak
from loadtest.shapes.spike import Spike
from loadtest.shapes.steps import Steps

DEFAULT_S: Final = 60.0
"""How long a shape takes where `--run-time` does not say."""

Load = Callable[[float], str]
"""What a share of the full load is called."""

SHAPES: Final[Mapping[str, Callable[[float, Namespace, Load], Shape]]] = MappingProxyType(
    {
        "steps": lambda duration_s, options, load: Steps(duration_s, options.levels),
        "ramp": lambda duration_s, options, load: Ramp(
            duration_s, options.levels, options.max_p99_ms, options.max_failed, load
        ),
        "spike": lambda duration_s, options, load: Spike(duration_s, options.base_share),
        "soak": lambda duration_s, options, load: Soak(duration_s),
    }
)


def shape_of(options: Namespace, load: Load) -> Shape:
    """The shape that the options describe."""
    return SHAPES[options.shape](float(options.run_time or DEFAULT_S), options, load)
