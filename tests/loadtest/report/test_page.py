import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browsing import MARKS, SCREENS, violations, visiting
from recorded import document, plan, recorded

from loadtest.report import page
from loadtest.report.command import repeated, write
from loadtest.report.plan import Subject
from loadtest.report.results import COLUMNS
from loadtest.report.words import shown

MISSED = {"file": "thresholds.toml", "wanted": 2, "misses": ["onnx.rate: wanted at least 500, got 418"]}


class Reader(HTMLParser):
    """What is loaded, and what is read."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.titles, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.loaded += [found[name] for name in ("src", "href", "xlink:href", "data", "action") if name in found]
        self.loaded += ["script"] if tag in ("script", "link", "iframe", "object", "embed") else []
        if tag == "svg":
            assert found["role"] == "img"
            self.titles.append(found["aria-label"])

    def handle_data(self, data):
        self.words.append(data.strip())


def figures(value):
    """Every number of a document, as the page writes it; settings are in its command."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in ("options", "slo", "schema", "took_s", "share_of_knee"):
                yield from figures(part)
    elif isinstance(value, list):
        for part in value:
            yield from figures(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield shown(value)


def asked_by(visited):
    """The addresses that a page asks for, as it does."""
    found = []
    visited.on("request", lambda request: found.append(request.url))
    return found


def test_every_figure_of_the_document_is_on_the_page():
    """Nobody has to open the JSON to see one."""
    found = document(thresholds=MISSED)

    text = page.html(found)

    cells = {word.strip() for part in Reader(text).words for word in part.split(",  ") + part.split(", ")}
    missing = [value for value in figures(found) if value not in cells]
    assert missing == []
    assert len(list(figures(found))) > 500


def test_the_page_loads_nothing():
    """It can be mailed, kept, and opened without a network."""
    text = page.html(document())

    reader = Reader(text)
    assert [place for place in reader.loaded if not place.startswith("#")] == []
    assert re.findall(r"url\((?!#)", text) == []
    assert "@import" not in text
    assert len(reader.titles) == 6


def test_pictures_say_in_words_what_they_show():
    """With the numbers that matter."""
    titles = Reader(page.html(document())).titles

    assert titles[0].startswith("Latency over percentiles. eager: p50 ")
    assert re.search(r"Where the time goes\. eager, medians: waiting 0.1 ms, decode [\d.]+ ms, queue", titles[3])
    assert "onnx: 1: 120, 2: 60, 3-4: 20" in titles[4]


def test_what_services_and_people_write_is_text():
    """Not markup."""
    run = recorded(plan(subjects=(Subject("<b>", "onnx", "cpu"),)))

    text = page.html(document(run, processor="<script>alert(1)</script>"))

    assert "<script" not in text
    assert "<b>" not in text


def test_a_part_of_a_run_has_a_page_too():
    """As much of it as there is."""
    run = recorded()
    run.steps = [step for step in run.steps if step.phase in ("warm-up", "closed")][:4]
    run.knees = {name: [] for name in run.knees}

    text = page.html(document(run))

    assert "Broken off before it was known which rate keeps p99 ≤ 50 ms." in text
    assert "Requests a second" in text
    assert "Latency below it" not in text


def test_the_files_hold_the_same(tmp_path):
    """A row of the CSV for each measurement, and a documented schema."""
    found = document()

    write(found, tmp_path)

    read = json.loads((tmp_path / "report.json").read_text())
    assert read["schema"] == 1
    assert read["subjects"][1]["knee"]["rate"] == found["subjects"][1]["knee"]["rate"]
    with (tmp_path / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(read["steps"]) == len(found["steps"])
    assert tuple(rows[0]) == COLUMNS
    assert float(rows[-1]["p99_ms"]) == read["steps"][-1]["p99_ms"]
    assert "418 requests/s" in (tmp_path / "report.html").read_text()


def test_the_command_to_repeat_it_is_complete():
    """With what the defaults are today, and without secrets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTENTION_WORKERS", "2")
        patch.setenv("ATTENTION_SIGNING_KEY", "secret")
        command = repeated(plan(models="lesson"), Path("out dir"), None)

    assert command == (
        "ATTENTION_WORKERS=2 attention loadtest --compare eager,onnx --devices cpu --slo p99=50ms --users binary "
        "--tokens mixed --arrivals constant --models lesson --connections 1,4,16 --seconds 5 --rounds 2 "
        "--precision 0.05 --seed 7 --pin --out 'out dir'"
    )


@pytest.mark.browser
@pytest.mark.skipif(MARKS[1].args[0], reason="no Chromium")
def test_it_is_readable_on_every_screen(browser, tmp_path):
    """Light and dark, wide and narrow; nothing is asked of a network."""
    write(document(thresholds=MISSED), tmp_path)
    for scheme, width in SCREENS:
        with visiting(browser, width=width, scheme=scheme) as visited:
            asked = asked_by(visited)
            visited.goto((tmp_path / "report.html").as_uri())
            assert visited.evaluate("document.documentElement.scrollWidth") <= width
            assert violations(visited) == []
            assert len(asked) == 1
