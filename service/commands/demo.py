"""`attention demo`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.errors import Unavailable

START_TIMEOUT_S = 120.0


def demo(
    url: Annotated[
        str, typer.Option(help="A running service; if nothing answers there, one is started for the demonstration.")
    ] = "http://127.0.0.1:8000",
) -> None:
    """Post a real request and show its weights as a table."""
    console = Console(highlight=False)
    with _service(url, console) as base:
        model = _call(f"{base}/v1/models/lesson")
        example = model["example"]
        request = {"model": "lesson", "inputs": example["inputs"]}
        console.print(f"POST {base}/v1/attention", style="bold")
        console.print(json.dumps(request), style="dim")
        answer = _call(f"{base}/v1/attention", request)
    labels = example["labels"]
    console.print("\nweights: each row is a token looking at all tokens; it sums to 1", style="bold")
    console.print(_weights(labels, answer["weights"]))
    console.print("\noutputs = weights × values", style="bold")
    table = Table(box=None)
    table.add_column("")
    for i in range(len(answer["outputs"][0])):
        table.add_column(f"v{i}", justify="right")
    for label, row in zip(labels, answer["outputs"], strict=True):
        table.add_row(label, *(f"{x:.3f}" for x in row))
    console.print(table)
    backend = answer["backend"]
    console.print(
        f"\nComputed by {backend['name']} on {backend['device']} ({backend['provider']}, {backend['dtype']})."
    )


def _weights(labels: list[str], weights: list[list[float]]) -> Table:
    table = Table(box=None, padding=(0, 0))
    table.add_column("")
    for label in labels:
        table.add_column(label, justify="right")
    table.add_column(" sum", justify="right")
    for label, row in zip(labels, weights, strict=True):
        cells = [_cell(weight) for weight in row]
        table.add_row(f"{label} ", *cells, f" {sum(row):.3f}")
    return table


def _cell(weight: float) -> Text:
    """A number on a background between white and blue."""
    red, green, blue = (round(255 + (end - 255) * weight) for end in (8, 48, 107))
    ink = "white" if weight > 0.5 else "black"
    return Text(f"  {weight:.3f} ", style=f"{ink} on rgb({red},{green},{blue})")


def _call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def _ready(url: str) -> bool:
    try:
        return bool(_call(f"{url}/healthz/ready")["status"] == "ready")
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _service(url: str, console: Console) -> Iterator[str]:
    """The service at `url`, or one of our own on a free port for as long as the demonstration takes."""
    if _ready(url):
        yield url
        return
    console.print(f"Nothing is ready at {url}; starting a service for this demonstration …", style="dim")
    command = [sys.executable, "-m", "service", "serve", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "PORT"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield _own_url(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def _own_url(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    end = time.monotonic() + START_TIMEOUT_S
    for line in process.stdout:
        if "ready at " in line:
            return line.rpartition("ready at ")[2].strip()
        if time.monotonic() > end:
            break
    raise Unavailable("the service did not start; run `attention serve` to see why")
