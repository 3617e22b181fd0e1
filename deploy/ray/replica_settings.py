"""What a replica serves with: the settings of its environment, and the processors that Ray gave it."""

from collections.abc import Mapping

from service.errors import ConfigurationError
from service.settings import Settings, load_settings

RAYS_OWN = {
    "host": "`http_options.host`",
    "port": "`http_options.port`",
    "grpc_port": "nothing: gRPC is not served here",
    "workers": "`num_replicas` or `autoscaling_config` of the deployment Ingress",
    "engine": "nothing: engines are always apart here",
    "compute_threads": "`ray_actor_options.num_cpus` of the deployment Engine",
}
"""Settings that mean nothing under Ray, and what takes their place in the file of `serve deploy`."""


def settings_of(overrides: Mapping[str, object], resources: Mapping[str, float]) -> Settings:
    """The settings of a replica.

    Args:
        overrides: settings by name, from the file of `serve deploy`; they go before the environment's `ATTENTION_*`.
        resources: what Ray has assigned to the replica: `CPU`, `GPU`.

    Raises:
        ConfigurationError: if there is no such setting, or it has a value it cannot have, or Ray has one in its place.
    """
    for name in overrides:
        if name in RAYS_OWN:
            raise ConfigurationError(f"{name} is no setting under Ray; in its place there is {RAYS_OWN[name]}")
        if name not in Settings.model_fields:
            raise ConfigurationError(f"{name} is no setting; docs/settings.md has them, without ATTENTION_ here")
    settings = load_settings(**overrides)
    cores, on_gpu = int(resources.get("CPU", 0)), resources.get("GPU", 0) > 0
    # A replica sees all cores of its node: what it may use of them, Ray alone knows.
    update: dict[str, object] = {"workers": 1, "compute_threads": 0 if on_gpu else max(1, cores)}
    if settings.device == "auto":
        update["device"] = "cuda" if on_gpu else "cpu"
    return settings.model_copy(update=update)
