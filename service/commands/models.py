"""`attention models`."""

from rich.console import Console

from service.catalog import available
from service.settings import load_settings


def models() -> None:
    """List the models that would be served, and folders of the repository that would not."""
    settings = load_settings()
    entries, broken = available(settings)
    console = Console(highlight=False)
    for entry in entries:
        spec = entry.spec
        default = " (default)" if settings.default_model in (spec.name, spec.id) else ""
        heads = "1 head" if spec.num_heads == 1 else f"{spec.num_heads} heads"
        causal = ", causal" if spec.is_causal else ""
        sizes = f"embed_dim {spec.embed_dim}, {heads}, d_k {spec.head_dim}, d_v {spec.v_dim}{causal}, {entry.origin}"
        console.print(f"[bold]{spec.id}[/bold]{default}  {sizes}")
        if spec.description:
            console.print(f"    {spec.description}", style="dim", markup=False)
    for fault in broken:
        console.print(f"not served: {fault.origin}: {fault.reason}", style="red", markup=False)
