"""The application that `serve deploy deploy/ray/serve.yml` deploys: ingress replicas in front of engine replicas."""

from ray import serve
from ray.serve import Application

from deploy.ray.engine import Engine
from deploy.ray.ingress import Ingress
from deploy.ray.replica_settings import settings_of
from service.errors import ConfigurationError


def build(args: dict[str, object]) -> Application:
    """What the `import_path` of the file names.

    Args:
        args: of the file: `settings`, by name without `ATTENTION_`; for both deployments.

    Raises:
        ConfigurationError: if a setting is not one, or cannot have its value, or there is more in `args`.
    """
    if unknown := sorted(set(args) - {"settings"}):
        raise ConfigurationError(f"args has {', '.join(unknown)}; it may have settings, and nothing else")
    settings = args.get("settings") or {}
    if not isinstance(settings, dict):
        raise ConfigurationError(f"args.settings is {settings!r}, no mapping of settings")
    settings_of(settings, {})
    engines = serve.deployment(Engine, name="Engine").bind(settings)
    return serve.deployment(serve.ingress()(Ingress), name="Ingress").bind(engines, settings)
