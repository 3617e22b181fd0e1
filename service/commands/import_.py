"""`attention import`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from models import repository
from models.importers import FAMILIES, called, import_layer, open_checkpoint
from models.repository import ModelEntry
from models.spec import AttentionSpec, Provenance
from models.weights import AttentionWeights
from service.commands.models import show_encoder
from service.errors import InvalidOption
from service.settings import load_settings

COMMANDS = """attention serve
python -c "import numpy; numpy.save('tokens.npy', numpy.random.randn(5, {width}).astype('float32'))"
curl -s 'http://127.0.0.1:8000/v1/attention?model={id}' -H 'Content-Type: application/x-npy' \\
  -H 'Accept: application/json' --data-binary @tokens.npy"""


def import_(
    path: Annotated[
        Path,
        typer.Argument(help="A folder with config.json and model.safetensors, a .safetensors file, or a .gguf file."),
    ],
    name: Annotated[str, typer.Option(help="What to call it here.")],
    layer: Annotated[
        int | None, typer.Option(min=0, help="Number of the layer, from 0; without it the whole BERT-family encoder.")
    ] = None,
    version: Annotated[str, typer.Option(help="Its version here.")] = "1",
    family: Annotated[str | None, typer.Option(help=f"{', '.join(FAMILIES)}; default: as config.json says.")] = None,
    num_heads: Annotated[
        int | None, typer.Option(min=1, help="For the family multihead, whose files do not say.")
    ] = None,
    repository_folder: Annotated[
        Path | None, typer.Option("--repository", help="Where to write it; default: ATTENTION_MODEL_REPOSITORY.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Where the weights come from; default: what the checkpoint calls itself.")
    ] = None,
    license_: Annotated[
        str | None, typer.Option("--license", help="Their licence; default: what the checkpoint states.")
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not compare it with the library the checkpoint is made for.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model of that name and version.")] = False,
) -> None:
    """Take an attention layer, or a whole text encoder, out of a checkpoint, so that it can be served."""
    folder = repository_folder or load_settings().model_repository
    where = f"ATTENTION_MODEL_REPOSITORY={repository_folder.resolve()} " if repository_folder else ""
    if layer is None:
        from models.encoder_import import import_encoder  # noqa: PLC0415 - needs torch, which takes a second to load

        if family is not None or num_heads is not None:
            raise InvalidOption("--family and --num-heads are for a single layer; give --layer too")
        checkpoint = open_checkpoint(path)
        entry = import_encoder(
            path,
            name,
            version=version,
            description="A text encoder.",
            source=called(checkpoint) if source is None else source,
            license=checkpoint.license if license_ is None else license_,
            parity=not no_check,
        )
        show_encoder(entry.spec, repository.write(folder, entry, replace=force), where)
        return
    imported = import_layer(
        path,
        layer,
        name,
        version=version,
        family=family,
        num_heads=num_heads,
        source=source,
        license=license_,
        check=not no_check,
    )
    place = repository.write(folder, ModelEntry(imported.spec, imported.weights, ""), replace=force)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{imported.spec.id}[/bold]", end="")
    for line in _lines(imported.spec, imported.weights, place, checked=not no_check):
        console.print(line, markup=False)
    commands = where + COMMANDS.format(id=imported.spec.id, width=imported.spec.embed_dim)
    console.print(f"\nServe it, and ask it about five tokens:\n{commands}", markup=False)


def _lines(spec: AttentionSpec, weights: AttentionWeights, place: Path, *, checked: bool) -> list[str]:
    """What was imported, for people."""
    provenance = spec.provenance
    assert provenance is not None, "an imported layer has one"
    heads = f"{spec.num_heads} heads" + (f", {spec.kv_heads} key heads" if spec.kv_heads != spec.num_heads else "")
    traits = [heads, f"embed_dim {spec.embed_dim}", f"d_k {spec.head_dim}", f"positions {_positions(spec)}"]
    traits += ["causal"] if spec.is_causal else []
    traits += [f"window {spec.window}"] if spec.window else []
    hashes = ", ".join(f"{file} {digest[:12]}…" for file, digest in provenance.files.items())
    return [
        f"  {spec.description}",
        f"  layer       {', '.join(traits)}",
        f"  tensors     {', '.join(weights.tensors())}",
        f"  source      {spec.source}" + (f", license {spec.license}" if spec.license else ", license not stated"),
        f"  SHA-256     {hashes}",
        f"  compared    {_comparison(provenance, checked=checked)}",
        f"  written to  {place}",
    ]


def _positions(spec: AttentionSpec) -> str:
    scaling = getattr(spec.position, "scaling", None)
    return spec.position.scheme + (f" ({scaling.type})" if scaling else "")


def _comparison(provenance: Provenance, *, checked: bool) -> str:
    if provenance.parity is not None:
        figures = ", ".join(f"{name} {value:.1e}" for name, value in provenance.parity.differences.items())
        return f"with {provenance.parity.library}; largest differences: {figures}"
    if checked:
        return "with nothing: transformers 5 or newer is not installed (pip install transformers, then import again)"
    return "with nothing, as --no-check asks"
