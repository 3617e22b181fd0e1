import xml.etree.ElementTree as ET

import pytest

from loadtest.bench import report
from loadtest.bench.compare import compare
from loadtest.bench.compare import main as compare_files
from loadtest.bench.results import Results, Row, load, medians
from loadtest.bench.tables import number

LOADED = {"rate": 1000.0, "p50_ms": 2.0, "p99_ms": 5.0, "errors": 0, "client_us": 9.0}
STAGED = {"p50_ms": 0.4, "p99_ms": 0.9} | {f"{part}_ms": 0.08 for part in report.PARTS}


def recorded(rate: float = 1000.0) -> Results:
    """A small run, with something of every section."""
    loaded = LOADED | {"rate": rate}
    of = {"case": "M", "backend": "onnx"}
    rows = [
        Row("floor", of | {"processes": 1, "batch": 1}, {"rate": 2000.0}),
        Row("floor", of | {"processes": 2, "batch": 1}, {"rate": 4000.0}),
        Row("floor", of | {"processes": 2, "batch": 16}, {"rate": 3000.0}),
        Row("service", of | {"format": "json", "connections": 16, "workers": 0}, loaded),
        Row("stages", {"case": "GET /healthz/live"}, {"p50_ms": 0.1, "p99_ms": 0.2}),
        Row(
            "stages",
            {"case": "M", "format": "json"},
            STAGED | {"overhead_p50_ms": 0.32, "overhead_p99_ms": 0.5},
        ),
        Row("memory", {"after": "at the start"}, {"rss_mib": 700.0, "peak_mib": 710.0}),
        Row("memory", {"after": "outputs alone", "n": 1024}, {"rss_mib": 701.0, "peak_mib": 720.0, "grown_mib": 20.0}),
        Row("memory", {"after": "outputs alone", "n": 4096}, {"rss_mib": 702.0, "peak_mib": 740.0, "grown_mib": 40.0}),
        Row("hand over", {"work": "nothing", "to": "a thread"}, {"p50_us": 30.0, "p90_us": 40.0, "p99_us": 90.0}),
    ]
    for connections in (1, 8):
        key = {"case": "M", "format": "json", "workers": 2, "connections": connections}
        rows.append(Row("concurrency", key, loaded))
    rows += [Row("sizes", {"over": "n", "n": n, "d": 384}, STAGED) for n in (16, 4096)]
    rows += [Row("sizes", {"over": "d", "n": 128, "d": width}, STAGED) for width in (64, 1024)]
    for n, shared in ((64, 2.0), (512, 0.5), (1024, 0.25)):
        key = {"d": 384, "heads": 12, "wanted": "outputs", "n": n}
        rows.append(Row("tile", key, {"whole_ms": 1.0, "tiles_ms": 1.25, "shared_ms": shared}))
    return Results({"processor": "of this test"}, {"seconds": 1.0, "rounds": 1}, rows)


def test_rounds_are_summed_up_by_their_medians():
    """One round that something else disturbed must not move the result; an error in any of them is not lost."""
    rows = [Row("a", {"n": 1}, {"rate": rate, "errors": 1}) for rate in (1.0, 50.0, 2.0)]
    other = Row("a", {"n": 2}, {"rate": 9.0, "errors": 0})

    assert medians([*rows[:1], other, *rows[1:]]) == [Row("a", {"n": 1}, {"rate": 2.0, "errors": 3}), other]


def test_the_report_has_every_section_that_was_measured():
    """And none that was not."""
    text = report.markdown(recorded())

    assert "| processor | of this test |" in text
    assert "| M | 2,000 | 4,000 | 3,000 | json | 1,000 | 0.25 | 0 |" in text
    assert "| json, 2 workers | 8 | 1,000 | 2.000 | 5.000 | 0 | 9.000 |" in text
    assert "| 4096 | 0.400 | 0.900 | 0.080 |" in text
    assert "| outputs alone of 4,096 tokens | 702 | 740 | 40.00 |" in text
    assert "outputs: tiles keep up on one thread at no length, on two from 512 tokens." in text
    assert "| 1024 | 1.000 | 1.250 | 0.250 | 0.80 | 4.00 |" in text
    assert "| a thread | 30.00 | 40.00 | 90.00 |" in text
    few = Results({}, {}, [row for row in recorded().rows if row.section == "memory"])
    assert "## Memory" in report.markdown(few)
    assert "## Over concurrency" not in report.markdown(few)


def test_the_report_is_written_with_its_pictures(tmp_path):
    """Every picture that the text shows is there, and is one."""
    path = report.write(recorded(), tmp_path)

    shown = {line.rpartition("(")[2].rstrip(")") for line in path.read_text().splitlines() if line.startswith("![")}
    assert shown == {file.name for file in tmp_path.glob("*.svg")}
    assert len(shown) == 7
    for name in shown:
        assert ET.parse(tmp_path / name).getroot().tag.endswith("svg")
    assert load(tmp_path / "results.json") == recorded()


@pytest.mark.parametrize(
    ("value", "shown"), [(0.01234, "0.012"), (12.345, "12.35"), (123.4, "123"), (12345.6, "12,346"), (float("nan"), "")]
)
def test_numbers_keep_what_matters(value, shown):
    """Nobody needs microseconds of a second."""
    assert number(value) == shown


def test_two_runs_are_compared_by_their_ratios(tmp_path, capsys):
    """Of what both have measured."""
    before, after = recorded(1000.0), recorded(1500.0)
    before.save(tmp_path / "before.json")
    after.save(tmp_path / "after.json")

    assert compare_files([str(tmp_path / "before.json"), str(tmp_path / "after.json")]) == 0

    text = capsys.readouterr().out
    assert text == compare(before, after)
    assert "| concurrency | case M, format json, workers 2, connections 8 | 1.50 | 1.00 |" in text
