"""`attention export`."""

from rich.console import Console

from service.catalog import load_catalog
from service.errors import ConfigurationError
from service.metrics import Metrics
from service.settings import load_settings


def export() -> None:
    """Export every model's ONNX graph into ATTENTION_ARTIFACTS, and compare the backends.

    A service that starts later finds the graphs and is ready sooner. Exits with 1 if backends disagree.
    """
    settings = load_settings()
    catalog = load_catalog(settings, Metrics())
    console = Console(highlight=False, soft_wrap=True)
    for versions in catalog.models.values():
        for model in versions.values():
            pairs = ", ".join(f"{pair} {difference:.1e}" for pair, difference in model.parity.items())
            console.print(f"{model.entry.spec.id}: largest relative difference {pairs}")
    for broken in catalog.broken:
        console.print(f"not served: {broken.origin}: {broken.reason}", style="red", markup=False)
    if catalog.failures:
        raise ConfigurationError(f"backends disagree: {'; '.join(catalog.failures)}")
    console.print(f"graphs are in {settings.artifacts}")
