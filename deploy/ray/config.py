"""Is a file of `serve deploy` right? `python -m deploy.ray.config FILE`. Ray takes a misspelt field without a word."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema

from deploy.ray.replica_settings import settings_of
from service.errors import ConfigurationError

ONES_OWN = frozenset({"runtime_env", "args", "user_config"})
"""Fields that hold what the application likes."""

LOOSE = {"autoscaling_config": AutoscalingConfig}
"""Fields of deployments that Ray's schema takes for any mapping, and reads as these later."""


def faults(document: Any) -> list[str]:
    """What is wrong with a file, one line each; empty if nothing is."""
    found = [*_unknown(document, ServeDeploySchema, ""), *_wrong(document, ServeDeploySchema, "")]
    if found:
        return found
    for i, application in enumerate(document["applications"]):
        for j, deployment in enumerate(application.get("deployments", [])):
            for name, kind in LOOSE.items():
                place = f"/applications/{i}/deployments/{j}/{name}"
                found += _wrong(deployment.get(name) or {}, kind, place)
        try:
            settings_of(application.get("args", {}).get("settings") or {}, {})
        except ConfigurationError as error:
            found.append(f"/applications/{i}/args/settings: {error}")
    return found


def _wrong(value: Any, kind: type[BaseModel], place: str) -> list[str]:
    """Values that a model does not take."""
    try:
        kind.model_validate(value)
    except ValidationError as error:
        return ["/".join((place, *map(str, fault["loc"]))) + f": {fault['msg']}" for fault in error.errors()]
    return []


def _unknown(value: Any, kind: Any, place: str) -> Iterator[str]:
    """Names in `value` that a model of `kind`, wherever it has one, does not know."""
    if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, inner in value.items():
            if name not in kind.model_fields:
                known = ", ".join(sorted(kind.model_fields))
                yield f"{place}/{name}: there is no such field; there are {known}"
            elif name not in ONES_OWN:
                yield from _unknown(inner, LOOSE.get(name, kind.model_fields[name].annotation), f"{place}/{name}")
    elif isinstance(value, list) and get_origin(kind) is list:
        for i, inner in enumerate(value):
            yield from _unknown(inner, get_args(kind)[0], f"{place}/{i}")
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from _unknown(value, one, place)


def main() -> int:
    """Check the file that the command names; 0 if it is right."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m deploy.ray.config FILE\n")
        return 2
    found = faults(yaml.safe_load(Path(sys.argv[1]).read_text()))
    for fault in found:
        sys.stderr.write(f"{sys.argv[1]}: {fault}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
