"""`attention loadtest`."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

NEEDED = ("loadtest", "locust", "jinja2", "matplotlib")
INSTALL = "pip install 'self-attention-service[loadtest]'"


def loadtest(
    compare: Annotated[
        str, typer.Option(help="Backends to start and measure in turns: of eager, onnx, reference.")
    ] = "eager,onnx",
    devices: Annotated[str, typer.Option(help="Devices to start each backend on, such as cpu,cuda.")] = "auto",
    url: Annotated[str | None, typer.Option(help="Measure the service that runs there, and start none.")] = None,
    slo: Annotated[str, typer.Option(help="The latency to keep, as a percentile.")] = "p99=50ms",
    users: Annotated[
        str, typer.Option(help="Who asks: json, base64, binary, app (these three), v2, tutor or text.")
    ] = "binary",
    models: Annotated[
        str,
        typer.Option(
            help="Models to ask, with commas between; one of your own is name:embed_dim. With text, an encoder."
        ),
    ] = "",
    tokens: Annotated[str, typer.Option(help="Lengths of sequences: mixed, or fixed sizes such as 16,64.")] = "mixed",
    arrivals: Annotated[
        str, typer.Option(help="How requests of an open loop come: constant, or poisson, as those of a crowd.")
    ] = "constant",
    connections: Annotated[
        str | None, typer.Option(help="Connections of the closed loops; default: 1,2,4,8,16,32.")
    ] = None,
    seconds: Annotated[
        int | None, typer.Option(min=1, max=3600, help="Time of each measurement, s; default: 5.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often all is measured, medians count; default: 3.")
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(min=0.005, max=0.5, help="Share by which the highest rate may be missed; default: 0.05."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first impression: 2 s, 1 round, connections 1,4,16, precision 0.1.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed sends the same bytes.")] = 0,
    pin: Annotated[bool, typer.Option(help="Services on one half of the cores, the generator on the other.")] = True,
    thresholds: Annotated[
        Path | None, typer.Option(help="TOML file of what has to be reached; docs/loadtest.md describes it.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, report.json and report.csv.")] = Path(
        "loadtest-report"
    ),
) -> None:
    """Find the highest rate that keeps a latency, of backends beside each other or of a service that runs.

    Exits with 1 if a threshold is missed or an answer was wrong, and with 2 if nothing could be measured.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        typer.echo(f"attention loadtest: {', '.join(missing)} not installed. Run: {INSTALL}", err=True)
        raise typer.Exit(2)
    from loadtest.payloads import parse_models, parse_tokens  # noqa: PLC0415 - is not installed with the service
    from loadtest.report import command  # noqa: PLC0415 - as above
    from loadtest.report import plan as plans  # noqa: PLC0415 - as above
    from loadtest.report.thresholds import load  # noqa: PLC0415 - as above

    try:
        if users not in plans.USERS:
            raise ValueError(f"--users {users!r}: there are {', '.join(plans.USERS)}")
        if models and users != "text":
            _check("--models", parse_models, models)
        _check("--tokens", parse_tokens, tokens)
        if arrivals not in plans.ARRIVALS:
            raise ValueError(f"--arrivals {arrivals!r}: there are {', '.join(plans.ARRIVALS)}")
        subjects = plans.subjects_of(compare.split(","), devices.split(","), url)
        plan = plans.Plan(
            subjects=subjects,
            users=users,
            models=models,
            tokens=tokens,
            arrivals=arrivals,
            slo=plans.parse_slo(slo),
            ladder=plans.parse_ladder(connections) if connections else plans.QUICK_LADDER if quick else plans.LADDER,
            seconds=seconds or (2 if quick else 5),
            rounds=rounds or (1 if quick else 3),
            precision=precision or (0.1 if quick else 0.05),
            seed=seed,
            pin=pin,
        )
        names = [subject.name for subject in subjects]
        judged = command.Judged(str(thresholds), load(thresholds, names)) if thresholds else None
    except ValueError as error:
        typer.echo(f"attention loadtest: {error}", err=True)
        raise typer.Exit(2) from error
    raise typer.Exit(command.measure(plan, out, judged))


def _check(option: str, parse: Callable[[str], object], text: str) -> None:
    """Read an option as Locust will; its services would have been started for nothing."""
    try:
        parse(text)
    except ValueError as error:
        raise ValueError(f"{option} {error}") from error
