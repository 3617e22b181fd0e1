"""What `docs/loadtest.md` says of the report and of thresholds is what there is."""

import re
from pathlib import Path

from recorded import document, recorded
from typer.main import get_command

from loadtest.report.results import LATENCIES
from loadtest.report.thresholds import FIGURES, misses, parse
from service.cli import app

TEXT = (Path(__file__).parents[3] / "docs/loadtest.md").read_text()


def section(title):
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def named(text):
    return set(re.findall(r"`(?:….)?(\w+)(?:\[\])?`", text))


def test_the_example_of_thresholds_is_one():
    """As it stands there."""
    example = re.search(r"```toml\n(.*?)```", section("Thresholds in CI"), re.DOTALL)[1]

    wanted = parse(example, ("eager", "onnx"))

    assert [threshold.what for threshold in wanted][-1] == ("onnx.rate", "eager.rate")
    assert misses(wanted, document(recorded())) == []
    assert set(FIGURES) <= named(section("Thresholds in CI"))


def test_every_key_of_the_document_is_described():
    """Who reads `report.json` reads that table first."""
    found, described = document(recorded()), named(section("The report"))
    subject = found["subjects"][0]

    assert set(found) <= described
    assert set(subject) <= described
    for part in (
        subject["knee"],
        subject["closed"][0],
        subject["open"],
        subject["batches"]["open"],
        subject["counted"],
    ):
        assert set(part) - set(LATENCIES) <= described
    assert set(found["steps"][0]) | set(subject["stages"]) | set(LATENCIES) <= described


def test_every_option_of_the_command_is_described():
    """With its name, as `--help` has it."""
    options = [
        option for each in get_command(app).commands["loadtest"].params for option in each.opts if option != "--help"
    ]

    assert len(options) > 12
    assert [option for option in options if f"`{option}`" not in section("Compare backends")] == []
