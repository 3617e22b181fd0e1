"""`attention run`."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from service.catalog import load_catalog
from service.engine import LocalEngine
from service.errors import InvalidOption
from service.messages import AttentionInput, AttentionOutput, Options
from service.metrics import Metrics
from service.settings import Settings, load_settings

READ = {".npy": "application/x-npy", ".safetensors": "application/x-safetensors", ".json": "application/json"}
WRITE = {".json": "application/json", ".safetensors": "application/x-safetensors", ".npz": "application/x-npz"}


def run(
    file: Annotated[
        str, typer.Argument(help="A .npy, .safetensors or .json request; `-` reads .npy from standard input.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .json, .safetensors or .npz file; default: JSON on standard output."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="`name` or `name@version`; default: ATTENTION_DEFAULT_MODEL.")
    ] = None,
    returns: Annotated[str | None, typer.Option("--return", help="Comma-separated tensors.")] = None,
    is_causal: Annotated[bool, typer.Option("--is-causal", help="Row i attends to columns 0..i only.")] = False,
    scale: Annotated[float | None, typer.Option(help="Factor of the scores.")] = None,
    average_heads: Annotated[
        bool, typer.Option("--average-heads", help="Mean over heads of weights and scores.")
    ] = False,
    top_k: Annotated[int | None, typer.Option(help="Only the k largest weights of each row.")] = None,
    backend: Annotated[str | None, typer.Option(help="onnx, eager or reference.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float16: what the answer is rounded to.")] = None,
    decimals: Annotated[int | None, typer.Option(help="Decimals of the numbers in a .json answer, 0 to 9.")] = None,
) -> None:
    """Compute one request without a server: the same answer the service gives, bit by bit."""
    from service.codecs import DECODERS, ENCODERS  # noqa: PLC0415 - with them comes Numba, which takes a second
    from service.codecs.options import check_media_type  # noqa: PLC0415 - as above
    from service.codecs.options import options as read_options  # noqa: PLC0415 - as above

    given = {
        "model": model,
        "return": returns,
        "is_causal": "true" if is_causal else None,
        "scale": scale,
        "average_heads": "true" if average_heads else None,
        "top_k": top_k,
        "backend": backend,
        "dtype": dtype,
        "decimals": decimals,
    }
    fields = {name: str(value) for name, value in given.items() if value is not None}
    read_options(fields, Options, strict=False)  # refuse before anything is loaded
    reader = DECODERS[_media_type(READ, ".npy" if file == "-" else Path(file).suffix, "read")]
    writer = ENCODERS[_media_type(WRITE, output.suffix if output else ".json", "written")]
    body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    request = reader.decode(body, query)
    check_media_type(request.options, writer.media_type)
    content = writer.encode(asyncio.run(_compute(load_settings(), request, len(body))))
    if output is None:
        sys.stdout.buffer.write(content + b"\n")
    else:
        output.write_bytes(content)


async def _compute(settings: Settings, request: AttentionInput, size: int) -> AttentionOutput:
    metrics = Metrics()
    catalog = await asyncio.to_thread(load_catalog, settings, metrics)
    loop = asyncio.get_running_loop()
    engine = LocalEngine(settings, catalog, metrics, loop)
    submission = engine.submit(request, size, time.monotonic() + settings.request_timeout_ms / 1e3)
    try:
        return await submission.result()
    finally:
        engine.batcher.release(submission.ticket)
        engine.batcher.close()


def _media_type(table: dict[str, str], suffix: str, verb: str) -> str:
    if suffix not in table:
        raise InvalidOption(f"{suffix or 'a file without a suffix'} is not {verb} here; {', '.join(table)} are")
    return table[suffix]
