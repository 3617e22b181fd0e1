"""`attention serve`."""

import logging
from typing import Annotated

import typer
from rich.console import Console

from service import logs, tracing
from service.settings import load_settings
from service.workers.share import engine_apart, worker_count

log = logging.getLogger(__name__)

CURL = """curl -s {url}/v1/attention -H 'Content-Type: application/json' -d '{{"model": "lesson",
  "inputs": [[1,0,0,0,0.5], [0,0,1,0,0.5], [0.2,0,0,1,0.5], [0,1,0,0,0.5]]}}'"""


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: ATTENTION_HOST or 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(envvar="PORT", help="Port to listen on; default: ATTENTION_PORT or 8000; 0: a free one."),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Backend of requests that name none: onnx, eager, reference.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that answer; default: ATTENTION_WORKERS or one per core.")
    ] = None,
) -> None:
    """Serve over HTTP until Ctrl-C or SIGTERM, then answer what was accepted and stop.

    Everything else is set by ATTENTION_* variables; docs/settings.md lists them.
    """
    settings = load_settings(host=host, port=port, backend=backend, device=device, workers=workers)
    logs.set_up(settings)
    tracing.check(settings)
    console = Console(highlight=False, soft_wrap=True)

    def on_ready(url: str, rpc: str) -> None:
        if not settings.signing_key:  # said only now: who cannot listen is told of that alone
            log.warning("exercises are signed with a published key, and can be forged; set ATTENTION_SIGNING_KEY")
        if rpc:
            console.print(f"Open Inference Protocol over gRPC at {rpc}", markup=False)
        console.print(f"[bold]Self-attention service ready at {url}[/bold]\n")
        console.print("Try it:", CURL.format(url=url), sep="\n", markup=False)
        console.print(f"\nStart page {url}/   API docs {url}/docs   Metrics {url}/metrics   Models {url}/v1/models")
        console.print("Ctrl-C drains and stops.")

    console.print("Loading models; the first start exports their ONNX graphs, which takes some seconds …")
    count = worker_count(settings)
    if count == 1 and not engine_apart(settings, count):
        from service.server import serve as run  # noqa: PLC0415 - other commands need no HTTP server
    else:
        from service.workers.supervisor import serve as run  # noqa: PLC0415 - as above
    run(settings, on_ready)
