"""What Ray says of the replica that this process is."""

from collections.abc import Mapping

import ray
from ray import serve


def assigned() -> Mapping[str, float]:
    """The resources that Ray has given it: `CPU`, `GPU`."""
    resources: Mapping[str, float] = ray.get_runtime_context().get_assigned_resources()
    return resources


def labels() -> dict[str, str]:
    """What tells it from other replicas."""
    context = serve.get_replica_context()
    return {"application": context.app_name, "deployment": context.deployment, "replica": context.replica_tag}
