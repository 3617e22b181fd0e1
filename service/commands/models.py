"""`attention models`."""

from rich.console import Console
from rich.table import Table

from models import repository
from models.repository import BrokenEntry
from service.settings import load_settings


def models() -> None:
    """List the models that would be served, and folders of the repository that would not."""
    settings = load_settings()
    entries = repository.builtin()
    broken: list[BrokenEntry] = []
    if settings.model_repository is not None:
        own, broken = repository.scan(settings.model_repository)
        mine = {entry.spec.id for entry in own}
        entries = [entry for entry in entries if entry.spec.id not in mine] + own
    table = Table(box=None, header_style="bold")
    for column in ("model", "embed_dim", "heads", "d_k", "d_v", "causal", "origin", "description"):
        table.add_column(column)
    for entry in entries:
        spec = entry.spec
        default = " (default)" if settings.default_model in (spec.name, spec.id) else ""
        sizes = (str(size) for size in (spec.embed_dim, spec.num_heads, spec.head_dim, spec.v_dim))
        causal = "yes" if spec.is_causal else "no"
        table.add_row(spec.id + default, *sizes, causal, entry.origin, spec.description)
    console = Console()
    console.print(table)
    for fault in broken:
        console.print(f"not served: {fault.origin}: {fault.reason}", style="red", markup=False)
