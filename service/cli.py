"""The command `attention`."""

import sys
from typing import Annotated

import typer

from models.errors import AttentionError
from service.commands.demo import demo
from service.commands.doctor import doctor
from service.commands.export import export
from service.commands.import_ import import_
from service.commands.loadtest import loadtest
from service.commands.measure import measure
from service.commands.models import models
from service.commands.run import run
from service.commands.serve import serve
from service.metrics import package_version

app = typer.Typer(
    help="Self-attention, served: token embeddings in, attention weights and outputs out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (serve, demo, run, import_, export, doctor, measure, loadtest):
    app.command(command.__name__.strip("_"))(command)
app.add_typer(models, name="models")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"attention {package_version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line; an error with a name is one line on standard error and exit status 1."""
    try:
        app()
    except AttentionError as error:
        typer.echo(f"attention: {error}", err=True)
        sys.exit(1)
    except FileNotFoundError as error:
        typer.echo(f"attention: {error.filename}: no such file", err=True)
        sys.exit(1)
